"""A federation: one shared tensor of samples and, for every client, the indices of its own.

The formulation is that of McMahan et al., "Communication-Efficient Learning of Deep Networks from
Decentralized Data" (AISTATS 2017): client i holds a finite data set, and the objective is an average of the
clients' empirical losses.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from kedge.checks import is_finite, tensor
from kedge.errors import UsageError, shown
from kedge.keyed import OWN_TEST, keyed
from kedge.problem.indices import ClientIndices
from kedge.problem.sources import columns, read_leaf, tables
from kedge.samples import Eager, Lazy, joined, leaves, mapped, read_input, read_labels, shapes, structure

Samples = tuple[Any, Any] | Dataset[Any]
Clients = Iterable[Samples] | Mapping[Any, Samples]


class Federation:
    """The clients' samples, an optional common test set, and optional test sets for each client.

    ``clients`` holds, for each client, a pair ``(features, labels)`` of tensors, arrays or lists, or a
    ``torch.utils.data.Dataset``; a dict gives each client a name. ``test`` is of the same kind. Features may be a tuple
    of arrays, which become the arguments of the model, or a dict of arrays, its keyword arguments. Labels may have any
    shape; whole numbers become int64, several yes-or-no labels per sample 0.0 and 1.0, and every other dtype is kept.

    ``lazy``: every client is a Dataset that makes its samples when they are needed, with random transforms applied anew
    each time, keyed by (seed, round, client, step). Otherwise a Dataset is read once.

    ``client_tests`` holds a test set per client, in the same form as ``clients``; or it is a share, say 0.2, that is
    split off every client's samples at random, at least one of them.
    """

    features: Any
    """A tensor, a tuple or dict of tensors with a row per sample, or what makes lazy samples."""
    labels: Tensor
    """The labels of all samples; of lazy samples none are known."""
    indices: ClientIndices
    test: tuple[Any, Tensor] | None
    client_tests: "Federation | None" = None
    """A federation whose client i is the test set of client i."""
    names: tuple[Any, ...] | None = None
    """What the clients are called, if they were given in a dict."""
    origin: Mapping[str, Any] | None = None
    """What `kedge.load_federation` made it from; None if it did not."""
    _loaded: tuple[tuple[Any, int], ...] = ()

    def __init__(
        self,
        clients: Clients,
        test: Samples | None = None,
        *,
        client_tests: Clients | float | None = None,
        lazy: bool = False,
    ) -> None:
        if isinstance(clients, str | bytes) or not isinstance(clients, Iterable):
            raise UsageError(f"clients is of type {type(clients).__name__}, but must be a list of (features, labels)")
        if isinstance(clients, Mapping):
            self.names = tuple(clients)
            clients = list(clients.values())
        if lazy:
            self._make_lazy(list(clients), test, client_tests)
            return
        pairs = [_pair(data, self._called(i)) for i, data in enumerate(clients)]
        if not pairs:
            raise UsageError("a federation has 0 clients, but needs at least 1")
        for i, pair in enumerate(pairs):
            _check_alike(pair, self._called(i), pairs[0], self._called(0))
        sizes = np.array([len(labels) for _, labels in pairs], np.int64)
        ends = sizes.cumsum()

        def holder(row: int) -> str:
            return self._called(int(np.searchsorted(ends, row, side="right")))

        self.features = joined([features for features, _ in pairs], torch.cat)
        self.labels = torch.cat([labels for _, labels in pairs])
        _check_values(self.features, self.labels, holder)
        self.indices = ClientIndices(ends - sizes, sizes).to(self.labels.device)
        self.test = self._checked_test(test)
        self._add_client_tests(client_tests)

    def _called(self, i: int) -> str:
        return f"client {i if self.names is None else shown(self.names[i])}"

    def _make_lazy(self, clients: list[Any], test: Samples | None, client_tests: Clients | float | None) -> None:
        if not clients:
            raise UsageError("a federation has 0 clients, but needs at least 1")
        for i, data in enumerate(clients):
            if not isinstance(data, Dataset) or not hasattr(data, "__len__"):
                raise UsageError(
                    f"lazy is True, but client {i} is a {type(data).__name__} and not a Dataset with a length"
                )
            if not len(data):
                raise UsageError(f"client {i} has no samples")
        sizes = np.array([len(data) for data in clients], np.int64)
        self.features = Lazy(clients, sizes.tolist())
        self.labels = self.features.take(torch.zeros(1, dtype=torch.int64))[1][:0]
        self.indices = ClientIndices(sizes.cumsum() - sizes, sizes)
        self.test = None if test is None else self._checked_test(test)
        if client_tests is not None and not isinstance(client_tests, Iterable):
            raise UsageError("client_tests is a share, but lazy samples cannot be divided; give a test set per client")
        self._add_client_tests(client_tests)

    @property
    def is_lazy(self) -> bool:
        """Whether samples are made when they are needed."""
        return isinstance(self.features, Lazy)

    @property
    def samples(self) -> Eager | Lazy:
        """Where minibatches come from."""
        return self.features if isinstance(self.features, Lazy) else Eager(self.features, self.labels)

    @classmethod
    def from_indices(
        cls,
        features: Any,
        labels: Any,
        indices: Iterable[Any],
        test: Samples | None = None,
        *,
        client_tests: Clients | float | None = None,
    ) -> Self:
        """Share ``features`` and ``labels``, without a copy, between clients given by their indices.

        ``indices`` holds the sample numbers of each client: a list of arrays, a table with one row per client or, for
        very many clients, a `ClientIndices`.
        """
        self = cls.__new__(cls)
        self.features, self.labels = _pair((features, labels), "the data set")
        _check_values(self.features, self.labels, lambda row: f"sample {row}")
        self.indices = ClientIndices.read(indices, len(self.labels)).to(self.labels.device)
        self.test = self._checked_test(test)
        self._add_client_tests(client_tests)
        return self

    @classmethod
    def from_datasets(
        cls,
        source: Any,
        inputs: str | Sequence[str],
        label: str,
        *,
        by: str | None = None,
        test: Any = None,
        client_tests: float | None = None,
    ) -> Self:
        """Make a federation of tables of Hugging Face's `datasets`.

        ``source`` is a list or dict of tables, one per client; a partitioner of `flwr-datasets`; or one table, which
        the column ``by`` divides. ``inputs`` names the column of the features, or several that the model gets by name;
        ``label`` that of the labels. Images become numbers from 0 to 1 with the channels first.
        """
        clients = {name: columns(table, inputs, label, f"client {name}") for name, table in tables(source, by).items()}
        common = None if test is None else columns(test, inputs, label, "the test set")
        return cls(clients, common, client_tests=client_tests)

    @classmethod
    def from_leaf(cls, folder: str | os.PathLike[str]) -> Self:
        """Make a federation of LEAF's JSON files in ``folder/train`` and ``folder/test``, if any: a client per user.

        All the test samples are the common test set; if every user has some, they are the users' own test sets too.
        Letters (Shakespeare) become their numbers in LEAF's list.
        """
        clients, place = read_leaf(Path(folder) / "train"), Path(folder) / "test"
        if not place.exists():
            return cls(clients)
        tests = {user: data for user, data in read_leaf(place).items() if user in clients}
        if not tests:
            raise UsageError(f"{place} has no samples of the users in {Path(folder) / 'train'}")
        x, y = (np.concatenate([np.asarray(data[part]) for data in tests.values()]) for part in (0, 1))
        return cls(clients, (x, y), client_tests=tests if set(tests) == set(clients) else None)

    def _add_client_tests(self, given: Clients | float | None) -> None:
        if given is None:
            return
        if isinstance(given, Iterable):
            self.client_tests = self._read_client_tests(given)
            return
        if isinstance(given, bool) or not is_finite(given) or not 0 < given < 1:
            raise UsageError(f"client_tests is {shown(given)}, but must be test sets or a share between 0 and 1")
        self._check_divisible("client_tests", given)
        kept, tests = self._divided(given)
        self.client_tests = type(self).from_indices(self.features, self.labels, tests)
        self.indices = ClientIndices.read(kept, len(self.labels)).to(self.labels.device)

    def _check_divisible(self, name: str, share: float) -> None:
        small = int(self.sizes.argmin())
        if self.sizes[small] < 2:
            raise UsageError(f"{name} is {share:g}, but client {small} has only one sample to train on")

    def _divided(self, share: float) -> tuple[list[Tensor], list[Tensor]]:
        """Return the samples that every client keeps, at least one of them, and the share that is split off."""
        kept, apart = [], []
        for client, own in enumerate(self.indices):
            count = min(max(1, round(share * len(own))), len(own) - 1)
            order = keyed(0, OWN_TEST, 0, client=client).permutation(len(own))
            kept.append(own[np.sort(order[count:])])
            apart.append(own[np.sort(order[:count])])
        return kept, apart

    def held_out(self, share: float) -> "Federation":
        """Return the federation without that share of every client's samples, which become its test set instead.

        If the clients have test sets of their own, each client's held-out samples take their place too. Which samples
        they are depends on nothing but the share, so that tuning never sees a test set.
        """
        if isinstance(share, bool) or not is_finite(share) or not 0 < share < 1:
            raise UsageError(f"holdout is {shown(share)}, but must be above 0 and below 1")
        if self.is_lazy:
            raise UsageError("lazy samples cannot be held out; set holdout to 0 to choose on the test set")
        if self.client_tests is not None:
            self._check_divisible("holdout", share)
        kept, apart = self._divided(share)
        rows = torch.cat(apart)
        if not len(rows):
            raise UsageError(f"holdout is {share:g}, but no client has more than one sample")
        whole = type(self).from_indices(self.features, self.labels, kept)
        whole.test = mapped(lambda leaf: leaf[rows], self.features), self.labels[rows]
        if self.client_tests is not None:
            whole.client_tests = type(self).from_indices(self.features, self.labels, apart)
        whole.names = self.names
        return whole

    def _read_client_tests(self, given: Clients) -> "Federation":
        if isinstance(given, Mapping):
            if self.names is None or set(given) != set(self.names):
                raise UsageError("client_tests is a dict, but its keys are not those of clients")
            given = [given[name] for name in self.names]
        tests = type(self)(given)
        tests.features, tests.labels = self._as_made((tests.features, tests.labels))
        if len(tests) != len(self):
            raise UsageError(f"client_tests has {len(tests)} test sets, but there are {len(self)} clients")
        _check_alike((tests.features, tests.labels), "client_tests", self._example(), "the training data")
        return tests

    def _as_made(self, pair: tuple[Any, Tensor]) -> tuple[Any, Tensor]:
        """Return samples with the dtype of lazy ones, whose floats are all made alike; others as they are."""
        if not isinstance(self.features, Lazy):
            return pair
        return mapped(self.features.moved, pair[0]), self.features.moved(pair[1])

    def _example(self) -> tuple[Any, Tensor]:
        """Return samples whose shapes and dtypes are those of all."""
        first = torch.zeros(1, dtype=torch.int64)
        return self.features.take(first) if self.is_lazy else (self.features, self.labels)

    def _checked_test(self, test: Samples | None) -> tuple[Any, Tensor] | None:
        if test is None:
            return None
        pair = self._as_made(_pair(test, "the test set"))
        _check_alike(pair, "the test set", self._example(), "the training data")
        _check_values(*pair, lambda row: f"test sample {row}")
        return pair

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The number of samples of each client."""
        return self.indices.sizes

    def __len__(self) -> int:
        return len(self.indices)

    def number(self, client: Any) -> int:
        """Return the number of a client, given by its number or by its name."""
        if isinstance(client, int | np.integer) and not isinstance(client, bool):
            if not 0 <= client < len(self):
                raise UsageError(f"client is {client}, but the federation has clients 0 to {len(self) - 1}")
            return int(client)
        if client not in (self.names or ()):
            raise UsageError(f"client is {shown(client)}, but no client of the federation has that name")
        return (self.names or ()).index(client)

    def client(self, i: Any) -> tuple[Any, Tensor]:
        """Return a copy of a client's features and labels, by its number or name.

        Lazy samples always have the same transforms here.
        """
        rows = self.indices[self.number(i)]
        if isinstance(self.features, Lazy):
            return self.features.take(rows)
        return mapped(lambda leaf: leaf[rows], self.features), self.labels[rows]

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu", *, channels_last: bool = False) -> Self:
        """Return the federation on ``device``, with floating features and labels of ``dtype``.

        ``channels_last`` stores the channels of a pixel together, which makes convolutions faster.
        """

        def move(values: Tensor) -> Tensor:
            return values.to(device, dtype if values.is_floating_point() else values.dtype)

        moved = type(self).__new__(type(self))
        moved.features = self.features.to(dtype, device) if self.is_lazy else mapped(move, self.features)
        moved.labels = move(self.labels)
        if channels_last:
            moved.features = moved.features.contiguous(memory_format=torch.channels_last)
        moved.indices = self.indices.to(device)
        moved.test = None if self.test is None else (mapped(move, self.test[0]), move(self.test[1]))
        tests = self.client_tests
        moved.names, moved.client_tests = self.names, None if tests is None else tests.to(dtype, device)
        return moved.loaded_from(self.origin) if self.origin is not None and self.is_as_loaded else moved

    def loaded_from(self, origin: Mapping[str, Any]) -> Self:
        """Note what made this federation, and what it holds now."""
        self.origin, self._loaded = origin, self._holds()
        return self

    @property
    def is_as_loaded(self) -> bool:
        """Whether it still holds what `origin` made, as far as torch notices changes."""
        pairs = zip(self._loaded, self._holds(), strict=False)
        return all(one is other and before == after for (one, before), (other, after) in pairs)

    def _holds(self) -> tuple[tuple[Any, int], ...]:
        parts = [self.features, self.labels, self.indices, self.client_tests, *(self.test or (None, None))]
        return tuple((part, part._version if isinstance(part, Tensor) else 0) for part in parts)

    def __repr__(self) -> str:
        real = self.labels.is_floating_point()
        labels = "real targets" if real else f"{len(np.unique(self.labels.cpu().numpy()))} labels"
        labels = "made when needed" if self.is_lazy else labels
        test = "no test set" if self.test is None else f"{len(self.test[1])} test samples"
        if self.client_tests is not None:
            test += f", {int(self.client_tests.sizes.sum())} test samples of the clients' own"
        shape = shapes(self._example()[0], 1)
        clients = f"{len(self)} client{'s' * (len(self) != 1)}"
        return f"Federation({clients}, {int(self.sizes.sum())} samples of shape {shape}, {labels}, {test})"


def _pair(data: Any, who: str) -> tuple[Any, Tensor]:
    if isinstance(data, Dataset):
        data = _stacked(data, who)
    if hasattr(data, "column_names"):
        raise UsageError(f"{who} is a table of Hugging Face's datasets; use Federation.from_datasets")
    try:
        features, labels = data
    except (TypeError, ValueError):
        kind = type(data).__name__
        raise UsageError(f"{who} is of type {kind}, but must be a pair (features, labels) or a Dataset") from None
    labels = read_labels(labels, f"{who}'s labels")
    features = read_input(features, f"{who}'s features", len(labels) if labels.ndim else None)
    for leaf in leaves(features):
        if leaf.ndim == 0 or labels.ndim == 0:
            raise UsageError(f"{who} has a single number for features or labels, but must have one row per sample")
        if len(leaf) != len(labels):
            raise UsageError(f"{who} has {len(leaf)} samples, but {len(labels)} labels")
    if len(labels) == 0:
        raise UsageError(f"{who} has no samples")
    return features, labels


def _stacked(data: Dataset[Any], who: str) -> tuple[Any, list[Any]]:
    if isinstance(data, IterableDataset):
        items = list(data)
    elif hasattr(data, "__len__"):
        # Iterating a map-style data set relies on an IndexError that many never raise.
        items = [data[i] for i in range(len(data))]
    else:
        raise UsageError(f"{who} is a Dataset without a length, but its samples must be countable")
    columns: tuple[list[Any], list[Any]] = ([], [])
    for item in items:
        if not isinstance(item, Sequence) or len(item) != 2:
            raise UsageError(f"{who} is a Dataset whose items are not pairs (features, label)")
        for column, value in zip(columns, item, strict=True):
            column.append(value if isinstance(value, Tensor | tuple | Mapping) else np.asarray(value))
    if columns[0] and isinstance(columns[0][0], tuple | Mapping):
        items = [mapped_item(item, who) for item in columns[0]]
        return joined(items, torch.stack), columns[1]
    return columns


def mapped_item(item: Any, who: str) -> Any:
    """Return one sample of several inputs as tensors."""
    if isinstance(item, Mapping):
        return {name: tensor(part, f"{who}'s features") for name, part in item.items()}
    return tuple(tensor(part, f"{who}'s features") for part in item)


def _check_alike(pair: tuple[Any, Tensor], who: str, reference: tuple[Any, Tensor], reference_name: str) -> None:
    if structure(pair[0]) != structure(reference[0]):
        mine, theirs = (structure(each[0]) or "a single array" for each in (pair, reference))
        raise UsageError(f"{who} has features {mine}, but {reference_name} has {theirs}")
    kinds = [("features", *both) for both in zip(leaves(pair[0]), leaves(reference[0]), strict=True)]
    for what, own, other in (*kinds, ("labels", pair[1], reference[1])):
        if (own.shape[1:], own.dtype, own.device) != (other.shape[1:], other.dtype, other.device):
            mine, theirs = (f"{what} of shape {tuple(t.shape[1:])} and {t.dtype} on {t.device}" for t in (own, other))
            raise UsageError(f"{who} has {mine}, but {reference_name} has {theirs}")


def _check_values(features: Any, labels: Tensor, holder: Callable[[int], str]) -> None:
    for what, values in (*(("features", leaf) for leaf in leaves(features)), ("labels", labels)):
        if not values.is_floating_point():
            continue
        # Block by block: torch.isfinite on everything would need as much memory again as the samples.
        for start, block in zip(range(0, len(values), 4096), torch.split(values, 4096), strict=True):
            finite = torch.isfinite(block)
            if not finite.all():
                row = int(torch.nonzero(~finite)[0, 0])
                kind = "NaN" if block[row].isnan().any() else "an infinity"
                raise UsageError(f"{holder(start + row)} has {kind} in its {what}")
