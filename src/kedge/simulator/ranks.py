"""Many processes, on one machine or many: the ranks of torch.distributed, each with the clients of whole shards.

The server's state is on every rank; a client's own is on the rank that has its shard. Only rank 0 reads and writes
files.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor

from kedge.errors import LostProcessError
from kedge.simulator.shards import Node, Values, within

Rows = dict[str, Tensor]
"""Rows of client state: the numbers of the `clients`, and a row of every field for each."""

ALIGNMENT = 16
"""Bytes: where a tensor begins in a message."""


@dataclass(frozen=True)
class Ranks:
    """This process among those of a run; alone, unless torch.distributed was initialised."""

    rank: int = 0
    count: int = 1

    @classmethod
    def current(cls) -> "Ranks":
        """Return what torch.distributed says."""
        return cls(dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else cls()

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def owner(self, shard: int, shards: int) -> int:
        """Return the rank that has a shard: each has a run of neighbours, of equal length but for one."""
        return shard * self.count // shards

    def agree(self, *flags: bool) -> list[bool]:
        """Return, for each flag, whether any rank has set it."""
        if self.count == 1:
            return list(flags)
        common = torch.tensor(flags, dtype=torch.int32)
        with _together():
            dist.all_reduce(common, dist.ReduceOp.MAX)
        return [bool(flag) for flag in common]

    def branches(self, shards: int) -> list[list[Node]]:
        """Return, for each rank, the largest branches of the tree of shards that are all its own, in their order."""
        ends = [-(-shards * rank // self.count) for rank in range(self.count + 1)]
        return [within((0, shards), first, end) for first, end in pairwise(ends)]

    def gather(
        self, own: Mapping[Node, Values], branches: Sequence[Sequence[Node]], layout: Sequence[Tensor]
    ) -> dict[Node, Values]:
        """Return the sums of all branches; ``branches`` says which rank gives which, and this one gives ``own``.

        ``layout``: tensors of the shapes, dtypes and device of what belongs to a branch.
        """
        places, width = _places(layout)
        message = layout[0].new_empty(max(map(len, branches)), width, dtype=torch.uint8)
        for row, node in zip(message, branches[self.rank], strict=False):
            for (begin, end), tensor in zip(places, own[node], strict=True):
                row[begin:end] = tensor.reshape(-1).contiguous().view(torch.uint8)
        messages = [torch.empty_like(message) for _ in branches]
        with _together():
            dist.all_gather(messages, message)
        found: dict[Node, Values] = {}
        for nodes, rows in zip(branches, messages, strict=True):
            for node, row in zip(nodes, rows, strict=False):
                parts = zip(places, layout, strict=True)
                found[node] = [row[begin:end].view(like.dtype).view(like.shape) for (begin, end), like in parts]
        return found

    def share(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return rank 0's tensors; the others give some of the same shapes and dtypes."""
        if self.count == 1:
            return tensors
        shared = {name: tensor.clone() for name, tensor in tensors.items()}
        for name in sorted(shared):
            _broadcast(shared[name])
        return shared

    def share_rows(self, portions: Iterable[Rows], like: Rows) -> Iterator[Rows]:
        """Return rank 0's portions of client rows; ``like`` has one row."""
        if self.count == 1:
            yield from portions
            return
        if self.leads:
            for portion in portions:
                _broadcast(torch.tensor(len(portion["clients"])))
                yield self.share(portion)
            _broadcast(torch.tensor(0))
            return
        while rows := _broadcast(torch.tensor(0)):
            yield self.share(_rows_like(like, int(rows)))

    def collect(self, portions: Iterable[Rows], like: Rows) -> Iterator[Rows]:
        """Return, on rank 0, the portions of client rows of all ranks; ``like`` has one row."""
        if self.leads:
            yield from portions
            for rank in range(1, self.count):
                yield from self._received(rank, like)
            return
        with _together():
            for portion in portions:
                dist.send(torch.tensor(len(portion["clients"])), 0)
                for name in sorted(portion):
                    dist.send(portion[name].contiguous(), 0)
            dist.send(torch.tensor(0), 0)

    @staticmethod
    def _received(rank: int, like: Rows) -> Iterator[Rows]:
        while rows := _receive(torch.tensor(0), rank):
            portion = _rows_like(like, int(rows))
            for name in sorted(portion):
                _receive(portion[name], rank)
            yield portion


@contextmanager
def _together() -> Iterator[None]:
    """Say what an error of the transport means."""
    try:
        yield
    except RuntimeError as error:
        raise LostProcessError(f"another process of this run is gone: {error}") from error


def _broadcast(tensor: Tensor) -> Tensor:
    with _together():
        dist.broadcast(tensor, 0)
    return tensor


def _receive(tensor: Tensor, rank: int) -> Tensor:
    with _together():
        dist.recv(tensor, rank)
    return tensor


def _rows_like(like: Rows, rows: int) -> Rows:
    return {name: tensor.new_empty(rows, *tensor.shape[1:]) for name, tensor in like.items()}


def _places(layout: Sequence[Tensor]) -> tuple[list[tuple[int, int]], int]:
    """Return where each tensor's bytes lie in a message, and the message's length."""
    places, end = [], 0
    for tensor in layout:
        begin = -(-end // ALIGNMENT) * ALIGNMENT
        end = begin + tensor.numel() * tensor.element_size()
        places.append((begin, end))
    return places, -(-end // ALIGNMENT) * ALIGNMENT
