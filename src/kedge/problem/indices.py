"""Which samples belong to which client, in a few arrays however many clients there are."""

import copy
from collections.abc import Iterable, Sequence
from typing import Any, Self, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kedge.checks import tensor
from kedge.errors import UsageError


class ClientIndices(Sequence[Tensor]):
    """The samples of every client: client i holds ``sizes[i]`` of them, starting at place ``starts[i]`` of ``order``.

    Without ``order``, a place is a sample's own number: data sorted by client, or windows into common data, need no
    index per sample. ``sizes`` may be one number for all clients. An ``order`` of int32 or int64 is shared without a
    copy; an item is a tensor of int64.
    """

    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    order: Tensor | None

    def __init__(self, starts: Any, sizes: Any, order: Any = None) -> None:
        self.starts = _whole_numbers(starts, "starts").cpu().numpy().astype(np.int64, copy=False)
        counts = _whole_numbers(sizes, "sizes", (0, 1)).cpu().numpy().astype(np.int64, copy=False)
        if counts.ndim and len(counts) != len(self.starts):
            raise UsageError(f"sizes has {len(counts)} entries, but starts has {len(self.starts)}")
        self.sizes = np.broadcast_to(counts, self.starts.shape)
        self.order = None if order is None else _whole_numbers(order, "order")
        if self.order is not None and self.order.dtype not in (torch.int32, torch.int64):
            self.order = self.order.to(torch.int64)
        self._device = torch.device("cpu") if self.order is None else self.order.device

    @classmethod
    def read(cls, value: Any, samples: int) -> "ClientIndices":
        """Read the indices of each client, in a table or one by one, and check that the samples exist."""
        if isinstance(value, ClientIndices):
            found = value
        elif _is_table(value):
            clients, size = value.shape
            found = cls(np.arange(clients) * size, size, tensor(value, "the indices").reshape(-1))
        elif isinstance(value, Iterable):
            found = cls._joined(value, samples)
        else:
            raise UsageError(f"indices is of type {type(value).__name__}, but must hold the samples of each client")
        found.check(samples)
        return found

    @classmethod
    def _joined(cls, value: Iterable[Any], samples: int) -> Self:
        parts = [_part(index, f"client {i}") for i, index in enumerate(value)]
        sizes = np.array([len(part) for part in parts], np.int64)
        ends = np.cumsum(sizes)
        order = torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64)
        first_bad = _first_outside(order, samples)
        if first_bad is not None:  # before int32, in which it might look valid
            client = int(np.searchsorted(ends, first_bad, side="right"))
            raise _outside(f"client {client}", parts[client], samples)
        narrow = torch.int32 if samples <= torch.iinfo(torch.int32).max else torch.int64
        return cls(ends - sizes, sizes, order.to(narrow))

    def check(self, samples: int) -> None:
        """Refuse no clients, a client without samples, or samples that a data set of this size does not have."""
        if not len(self):
            raise UsageError("a federation has 0 clients, but needs at least 1")
        if self.sizes.min() < 1:
            raise UsageError(f"client {int((self.sizes < 1).argmax())} has no samples")
        places = samples if self.order is None else len(self.order)
        bad = (self.starts < 0) | (self.starts > places - self.sizes)
        if bad.any():
            client = int(bad.argmax())
            start, size = int(self.starts[client]), int(self.sizes[client])
            last = start if start < 0 else start + size - 1
            if self.order is None:
                raise UsageError(f"client {client} has the index {last}, but the data set has only {samples} samples")
            raise UsageError(f"client {client} has the place {last} of order, but order has only {places} entries")
        if self.order is not None and (place := _first_outside(self.order, samples)) is not None:
            held = (self.starts <= place) & (place < self.starts + self.sizes)
            client = int(held.argmax())
            who, index = (f"client {client}", self[client]) if held.any() else ("order", self.order)
            raise _outside(who, index, samples)

    def to(self, device: torch.device | str) -> "ClientIndices":
        """Return the same indices on ``device``."""
        moved = copy.copy(self)
        moved.order, moved._device = None if self.order is None else self.order.to(device), torch.device(device)
        return moved

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, client: int) -> Tensor: ...
    @overload
    def __getitem__(self, client: slice) -> "ClientIndices": ...
    def __getitem__(self, client: int | slice) -> "Tensor | ClientIndices":
        if isinstance(client, slice):
            some = copy.copy(self)
            some.starts, some.sizes = self.starts[client], self.sizes[client]
            return some
        start = int(self.starts[client])
        end = start + int(self.sizes[client])
        if self.order is None:
            return torch.arange(start, end, device=self._device)
        return self.order[start:end].to(torch.int64)

    def __repr__(self) -> str:
        return f"ClientIndices({len(self)} clients, {int(self.sizes.sum())} samples)"


def _is_table(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim == 2 and value.size > 0 and value.dtype.kind in "iu"
    return isinstance(value, Tensor) and value.ndim == 2 and value.numel() > 0 and _is_whole(value)


def _is_whole(value: Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)


def _whole_numbers(value: Any, name: str, dimensions: tuple[int, ...] = (1,)) -> Tensor:
    numbers = tensor(value, name)
    if numbers.ndim not in dimensions or (numbers.numel() and not _is_whole(numbers)):
        raise UsageError(f"{name} must be a flat list of whole numbers")
    return numbers


def _part(value: Any, who: str) -> Tensor:
    index = tensor(value, f"{who}'s indices")
    if index.numel() == 0:
        raise UsageError(f"{who} has no samples")
    if index.ndim != 1 or not _is_whole(index):
        raise UsageError(f"{who}'s indices must be a flat list of whole numbers")
    return index.cpu().to(torch.int64)


def _first_outside(index: Tensor, samples: int) -> int | None:
    """Return the first place in ``index`` that names no sample; the common case needs no memory."""
    if not index.numel() or (int(index.min()) >= 0 and int(index.max()) < samples):
        return None
    return int(((index < 0) | (index >= samples)).nonzero()[0])


def _outside(who: str, index: Tensor, samples: int) -> UsageError:
    worst = int(index.min()) if int(index.min()) < 0 else int(index.max())
    return UsageError(f"{who} has the index {worst}, but the data set has only {samples} samples")
