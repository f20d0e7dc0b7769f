"""Samples: the inputs of a model, whatever their structure, and how minibatches are taken from them.

An input is a tensor, a tuple of tensors (`model(a, b)`) or a dict of tensors (`model(ids=..., mask=...)`). Samples are
either there (`Eager`), or made when they are needed (`Lazy`), with random transforms that a key decides.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from kedge.checks import tensor
from kedge.errors import UsageError

Input = Any
"""A tensor, or a tuple or dict of tensors."""

IGNORED = -100
"""The label that a loss and an accuracy leave out, as torch's cross-entropy does."""


def leaves(data: Input) -> list[Tensor]:
    """Return the tensors of an input, in a fixed order."""
    if isinstance(data, Tensor):
        return [data]
    return [leaf for part in (data.values() if isinstance(data, Mapping) else data) for leaf in leaves(part)]


def mapped(function: Callable[[Tensor], Tensor], data: Input) -> Input:
    """Return an input of the same structure, with every tensor replaced."""
    if isinstance(data, Tensor):
        return function(data)
    if isinstance(data, Mapping):
        return {name: mapped(function, part) for name, part in data.items()}
    return tuple(mapped(function, part) for part in data)


def joined(parts: Sequence[Input], how: Callable[[list[Tensor]], Tensor]) -> Input:
    """Join inputs of one structure, tensor by tensor: by ``torch.cat`` or ``torch.stack``."""
    first = parts[0]
    if isinstance(first, Tensor):
        return how(list(parts))
    if isinstance(first, Mapping):
        return {name: joined([part[name] for part in parts], how) for name in first}
    return tuple(joined([part[place] for part in parts], how) for place in range(len(first)))


def structure(data: Input) -> str:
    """Return the structure in words: "" of a tensor, (,) of a pair, {ids, mask} of a dict."""
    if isinstance(data, Tensor):
        return ""
    if isinstance(data, Mapping):
        return f"{{{', '.join(f'{name}{structure(part)}' for name, part in data.items())}}}"
    return f"({','.join(structure(part) for part in data)})"


def shapes(data: Input, first: int = 0) -> str:
    """Return the shapes of the tensors, from dimension ``first`` on."""
    return " and ".join(str(tuple(leaf.shape[first:])) for leaf in leaves(data))


def read_input(value: Any, what: str, rows: int | None = None) -> Input:
    """Return an input from arrays, tensors or lists: a dict of them, or a tuple of arrays with a row per sample."""
    if isinstance(value, Mapping):
        if not value or not all(isinstance(name, str) for name in value):
            raise UsageError(f"{what} are a dict, but it must have names and arrays")
        return {name: read_input(part, f"{what} {name!r}", rows) for name, part in value.items()}
    arrays = (Tensor, np.ndarray, Mapping)
    if isinstance(value, tuple) and value and all(isinstance(part, arrays) for part in value):
        long = [len(part) for part in value if not isinstance(part, Mapping) and part.ndim]
        if rows is None or all(length == rows for length in long):
            return tuple(read_input(part, what, rows) for part in value)
    return tensor(value, what)


def read_labels(value: Any, what: str) -> Tensor:
    """Return labels: whole numbers as int64, several yes-or-no labels per sample as numbers 0.0 and 1.0."""
    labels = tensor(value, what)
    if labels.dtype == torch.bool and labels.ndim > 1:
        return labels.to(torch.get_default_dtype())
    return labels if labels.is_floating_point() else labels.to(torch.int64)


def called(module: Callable[..., Any], data: Input) -> Any:
    """Run a module, or a function of the same arguments, on an input."""
    if isinstance(data, Tensor):
        return module(data)
    return module(**data) if isinstance(data, Mapping) else module(*data)


def scores(output: Any) -> Any:
    """Return a module's scores: its output, or the logits in it."""
    if isinstance(output, Tensor):
        return output
    found = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    return output if found is None else found


class Samples(Protocol):
    """Where minibatches come from."""

    lazy: bool

    def take(self, chosen: Tensor, seed: int | None = None) -> tuple[Input, Tensor]:
        """Return some samples by their numbers; ``seed`` decides their random transforms, if they have any."""
        ...


class _Rows:
    """Samples as rows, whatever their memory layout: a minibatch is one copy."""

    def __init__(self, features: Tensor) -> None:
        self._last = features.ndim == 4 and features.is_contiguous(memory_format=torch.channels_last)
        ordered = features.permute(0, 2, 3, 1) if self._last else features
        self._shape = ordered.shape[1:]
        self._rows = ordered.reshape(len(features), -1)

    def __call__(self, chosen: Tensor) -> Tensor:
        batch = self._rows.index_select(0, chosen).view(len(chosen), *self._shape)
        return batch.permute(0, 3, 1, 2) if self._last else batch


class Eager:
    """Samples that are all there."""

    lazy = False

    def __init__(self, features: Input, labels: Tensor) -> None:
        self._labels = labels
        self._plain = _Rows(features) if isinstance(features, Tensor) else None
        self._features = features

    def take(self, chosen: Tensor, seed: int | None = None) -> tuple[Input, Tensor]:
        """Return copies of some samples."""
        labels = self._labels.index_select(0, chosen)
        if self._plain is not None:
            return self._plain(chosen), labels
        return mapped(lambda leaf: leaf.index_select(0, chosen), self._features), labels


class Lazy:
    """Samples of several data sets, one per client, each made when it is needed. They are numbered one after another.

    The transforms of a data set may draw from Python's, NumPy's and torch's global generators: all of them start from
    the seed of the minibatch, and the caller's random state is left as it was.
    """

    lazy = True

    def __init__(self, datasets: Sequence[Any], sizes: Sequence[int]) -> None:
        self.datasets = list(datasets)
        self._ends = np.cumsum(np.asarray(sizes, np.int64))
        self._dtype, self._device = torch.get_default_dtype(), torch.device("cpu")

    def __len__(self) -> int:
        return int(self._ends[-1])

    def to(self, dtype: torch.dtype, device: torch.device | str) -> Self:
        """Return the same samples, given as the model takes them."""
        moved = type(self)(self.datasets, np.diff(self._ends, prepend=0).tolist())
        moved._dtype, moved._device = dtype, torch.device(device)
        return moved

    def take(self, chosen: Tensor, seed: int | None = None) -> tuple[Input, Tensor]:
        """Make some samples."""
        numbers = chosen.cpu().numpy()
        owners = np.searchsorted(self._ends, numbers, side="right")
        starts = np.concatenate([[0], self._ends[:-1]])[owners]
        with _seeded(seed or 0):
            items = [
                _item(self.datasets[int(owner)][int(number - start)], int(owner))
                for number, owner, start in zip(numbers, owners, starts, strict=True)
            ]
        try:
            features, labels = (joined([item[place] for item in items], torch.stack) for place in (0, 1))
        except RuntimeError as error:
            found = "; ".join(sorted({f"{shapes(value)} with a label {shapes(label)}" for value, label in items}))
            raise UsageError(f"the samples have several shapes: {found}; pad or resize them first") from error
        return mapped(self.moved, features), self.moved(labels)

    def moved(self, values: Tensor) -> Tensor:
        """Return a tensor as the model takes it."""
        return values.to(self._device, self._dtype if values.is_floating_point() else values.dtype)


def _item(item: Any, client: int) -> tuple[Input, Tensor]:
    who = f"client {client}"
    if not isinstance(item, Sequence) or len(item) != 2:
        raise UsageError(f"{who} is a Dataset whose items are not pairs (features, label)")
    value, label = item
    if isinstance(value, tuple) and value and not isinstance(value[0], int | float):
        features: Input = tuple(tensor(part, f"{who}'s features") for part in value)
    elif isinstance(value, Mapping):
        features = {name: tensor(part, f"{who}'s features") for name, part in value.items()}
    else:
        features = tensor(value, f"{who}'s features")
    return features, read_labels(label, f"{who}'s labels")


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    # Not the very numbers of a dropout mask, which starts from the same seed.
    mixed = (seed * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) % 2**63
    random.seed(mixed)
    np.random.seed(mixed % 2**32)  # noqa: NPY002
    torch.manual_seed(mixed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        torch.set_rng_state(before[2])
