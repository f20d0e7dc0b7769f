"""A federation: one shared tensor of samples and, for every client, the indices of its own.

The formulation is that of McMahan et al., "Communication-Efficient Learning of Deep Networks from
Decentralized Data" (AISTATS 2017): client i holds a finite data set, and the objective is an average of the
clients' empirical losses.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
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

Samples = tuple[Any, Any] | Dataset[Any]
Clients = Iterable[Samples] | Mapping[Any, Samples]


class Federation:
    """The clients' samples, an optional common test set, and optional test sets of the clients' own.

    ``clients`` holds, for each client, a pair ``(features, labels)`` of tensors, arrays or lists, or a
    ``torch.utils.data.Dataset``; a dict gives each client a name. ``test`` is of the same kind. Integer labels become
    int64; every other dtype is kept.

    ``client_tests`` holds a test set per client, in the same form as ``clients``; or it is a share, say 0.2, that is
    split off every client's samples at random, at least one of them.
    """

    features: Tensor
    labels: Tensor
    indices: ClientIndices
    test: tuple[Tensor, Tensor] | None
    client_tests: "Federation | None" = None
    """A federation whose client i is the test set of client i."""
    names: tuple[Any, ...] | None = None
    """What the clients are called, if they were given in a dict."""
    origin: Mapping[str, Any] | None = None
    """What `kedge.load_federation` made it from; None if it did not."""

    def __init__(
        self, clients: Clients, test: Samples | None = None, *, client_tests: Clients | float | None = None
    ) -> None:
        if isinstance(clients, str | bytes) or not isinstance(clients, Iterable):
            raise UsageError(f"clients is of type {type(clients).__name__}, but must be a list of (features, labels)")
        if isinstance(clients, Mapping):
            self.names = tuple(clients)
            clients = list(clients.values())
        pairs = [_pair(data, f"client {i}") for i, data in enumerate(clients)]
        if not pairs:
            raise UsageError("a federation has 0 clients, but needs at least 1")
        for i, pair in enumerate(pairs):
            _check_alike(pair, f"client {i}", pairs[0], "client 0")
        sizes = np.array([len(labels) for _, labels in pairs], np.int64)
        ends = sizes.cumsum()

        def holder(row: int) -> str:
            return f"client {int(np.searchsorted(ends, row, side='right'))}"

        self.features = torch.cat([features for features, _ in pairs])
        self.labels = torch.cat([labels for _, labels in pairs])
        _check_values(self.features, self.labels, holder)
        self.indices = ClientIndices(ends - sizes, sizes).to(self.features.device)
        self.test = self._checked_test(test)
        self._add_client_tests(client_tests)

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
        self.indices = ClientIndices.read(indices, len(self.labels)).to(self.features.device)
        self.test = self._checked_test(test)
        self._add_client_tests(client_tests)
        return self

    def _add_client_tests(self, given: Clients | float | None) -> None:
        if given is None:
            return
        if isinstance(given, Iterable):
            self.client_tests = self._read_client_tests(given)
            return
        if isinstance(given, bool) or not is_finite(given) or not 0 < given < 1:
            raise UsageError(f"client_tests is {shown(given)}, but must be test sets or a share between 0 and 1")
        small = int(self.sizes.argmin())
        if self.sizes[small] < 2:
            raise UsageError(f"client_tests is {given:g}, but client {small} has only one sample")
        kept, tests = [], []
        for client, own in enumerate(self.indices):
            count = min(max(1, round(given * len(own))), len(own) - 1)
            order = keyed(0, OWN_TEST, 0, client=client).permutation(len(own))
            kept.append(own[np.sort(order[count:])])
            tests.append(own[np.sort(order[:count])])
        self.client_tests = type(self).from_indices(self.features, self.labels, tests)
        self.indices = ClientIndices.read(kept, len(self.labels)).to(self.features.device)

    def _read_client_tests(self, given: Clients) -> "Federation":
        if isinstance(given, Mapping):
            if self.names is None or set(given) != set(self.names):
                raise UsageError("client_tests is a dict, but its keys are not those of clients")
            given = [given[name] for name in self.names]
        tests = type(self)(given)
        if len(tests) != len(self):
            raise UsageError(f"client_tests has {len(tests)} test sets, but there are {len(self)} clients")
        _check_alike((tests.features, tests.labels), "client_tests", (self.features, self.labels), "the training data")
        return tests

    def _checked_test(self, test: Samples | None) -> tuple[Tensor, Tensor] | None:
        if test is None:
            return None
        pair = _pair(test, "the test set")
        _check_alike(pair, "the test set", (self.features, self.labels), "the training data")
        _check_values(*pair, lambda row: f"test sample {row}")
        return pair

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The number of samples of each client."""
        return self.indices.sizes

    def __len__(self) -> int:
        return len(self.indices)

    def client(self, i: int) -> tuple[Tensor, Tensor]:
        """Return a copy of the features and labels of client ``i``."""
        if not 0 <= i < len(self):
            raise UsageError(f"client is {i}, but the federation has clients 0 to {len(self) - 1}")
        return self.features[self.indices[i]], self.labels[self.indices[i]]

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu", *, channels_last: bool = False) -> Self:
        """Return the federation on ``device``, with floating features and labels of ``dtype``.

        ``channels_last`` stores the channels of a pixel together, which makes convolutions faster.
        """

        def move(values: Tensor) -> Tensor:
            return values.to(device, dtype if values.is_floating_point() else values.dtype)

        moved = type(self).__new__(type(self))
        moved.features, moved.labels = move(self.features), move(self.labels)
        if channels_last:
            moved.features = moved.features.contiguous(memory_format=torch.channels_last)
        moved.indices = self.indices.to(device)
        moved.test = None if self.test is None else (move(self.test[0]), move(self.test[1]))
        tests = self.client_tests
        moved.origin = self.origin
        moved.names, moved.client_tests = self.names, None if tests is None else tests.to(dtype, device)
        return moved

    def __repr__(self) -> str:
        real = self.labels.is_floating_point()
        labels = "real targets" if real else f"{len(np.unique(self.labels.cpu().numpy()))} labels"
        test = "no test set" if self.test is None else f"{len(self.test[1])} test samples"
        if self.client_tests is not None:
            test += f", {int(self.client_tests.sizes.sum())} test samples of the clients' own"
        shape = tuple(self.features.shape[1:])
        return f"Federation({len(self)} clients, {int(self.sizes.sum())} samples of shape {shape}, {labels}, {test})"


def _pair(data: Any, who: str) -> tuple[Tensor, Tensor]:
    if isinstance(data, Dataset):
        data = _stacked(data, who)
    try:
        features, labels = data
    except (TypeError, ValueError):
        kind = type(data).__name__
        raise UsageError(f"{who} is of type {kind}, but must be a pair (features, labels) or a Dataset") from None
    features, labels = tensor(features, f"{who}'s features"), tensor(labels, f"{who}'s labels")
    if features.ndim == 0 or labels.ndim == 0:
        raise UsageError(f"{who} has a single number for features or labels, but must have one row per sample")
    if len(features) != len(labels):
        raise UsageError(f"{who} has {len(features)} samples, but {len(labels)} labels")
    if len(labels) == 0:
        raise UsageError(f"{who} has no samples")
    return features, labels if labels.is_floating_point() else labels.to(torch.int64)


def _stacked(data: Dataset[Any], who: str) -> tuple[list[Any], list[Any]]:
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
            column.append(value if isinstance(value, Tensor) else np.asarray(value))
    return columns


def _check_alike(pair: tuple[Tensor, Tensor], who: str, reference: tuple[Tensor, Tensor], reference_name: str) -> None:
    for what, own, other in zip(("features", "labels"), pair, reference, strict=True):
        if (own.shape[1:], own.dtype, own.device) != (other.shape[1:], other.dtype, other.device):
            mine, theirs = (f"{what} of shape {tuple(t.shape[1:])} and {t.dtype} on {t.device}" for t in (own, other))
            raise UsageError(f"{who} has {mine}, but {reference_name} has {theirs}")


def _check_values(features: Tensor, labels: Tensor, holder: Callable[[int], str]) -> None:
    for what, values in (("features", features), ("labels", labels)):
        if not values.is_floating_point():
            continue
        # Block by block: torch.isfinite on everything would need as much memory again as the samples.
        for start, block in zip(range(0, len(values), 4096), torch.split(values, 4096), strict=True):
            finite = torch.isfinite(block)
            if not finite.all():
                row = int(torch.nonzero(~finite)[0, 0])
                kind = "NaN" if block[row].isnan().any() else "an infinity"
                raise UsageError(f"{holder(start + row)} has {kind} in its {what}")
    if not labels.is_floating_point() and int(labels.min()) < 0:
        row = int(torch.nonzero(labels < 0)[0, 0])
        raise UsageError(f"{holder(row)} has the label {int(labels.min())}, but labels must be at least 0")
