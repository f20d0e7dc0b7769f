"""Many processes, on one machine or many: ranks, each with the clients of whole shards.

The server's state is on every rank; a client's own is on the rank that has its shard. Only rank 0 reads and writes
files.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from kedge.errors import UnlikeError
from kedge.simulator.shards import Node, Values, within
from kedge.simulator.transport import TORCH, Transport, current

Rows = dict[str, Tensor]
"""Rows of client state: the numbers of the `clients`, and a row of every field for each."""

ALIGNMENT = 16
"""Bytes: where a tensor begins in a message."""

ABSENT = ...
"""Stands for a fact that a rank does not have."""


@dataclass(frozen=True)
class Ranks:
    """This process among those of a run; alone, unless a launcher or torch.distributed says otherwise."""

    rank: int = 0
    count: int = 1
    transport: Transport = TORCH

    @classmethod
    def current(cls) -> "Ranks":
        """Return what the launcher says, or torch.distributed."""
        return cls(*current())

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
        return [bool(flag) for flag in self._all(torch.tensor(flags, dtype=torch.uint8)).amax(0)]

    def check_alike(self, facts: Mapping[str, Any]) -> None:
        """Refuse to run unless all ranks have the same facts; each says the first difference."""
        if self.count == 1:
            return
        text = json.dumps(facts).encode()
        digest = torch.frombuffer(bytearray(hashlib.sha256(text).digest()), dtype=torch.uint8)
        if bool((self._all(digest) == digest).all()):
            return
        longest = int(self._all(torch.tensor(len(text))).amax())
        padded = torch.frombuffer(bytearray(text.ljust(longest)), dtype=torch.uint8)
        first, *others = (json.loads(bytes(row.tolist())) for row in self._all(padded))
        for rank, other in enumerate(others, 1):
            for key in [*first, *other]:
                if first.get(key, ABSENT) != other.get(key, ABSENT):
                    raise UnlikeError(
                        f"the processes of this run differ: {key} is {first.get(key, ABSENT)!r} for process 0, "
                        f"but {other.get(key, ABSENT)!r} for process {rank}"
                    )

    def _all(self, tensor: Tensor) -> Tensor:
        """Return a small tensor of every rank, as rows."""
        rows = tensor.new_empty(self.count, *tensor.shape)
        self.transport.all_gather(rows.unbind(), tensor)
        return rows

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
        self.transport.all_gather(messages, message)
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
            self.transport.broadcast(shared[name])
        return shared

    def share_rows(self, portions: Iterable[Rows], like: Rows) -> Iterator[Rows]:
        """Return rank 0's portions of client rows; ``like`` has one row."""
        if self.count == 1:
            yield from portions
            return
        if self.leads:
            for portion in portions:
                self._count(len(portion["clients"]))
                yield self.share(portion)
            self._count(0)
            return
        while rows := self._count(0):
            yield self.share(_rows_like(like, rows))

    def _count(self, number: int) -> int:
        """Return rank 0's number."""
        shared = torch.tensor(number)
        self.transport.broadcast(shared)
        return int(shared)

    def collect(self, portions: Iterable[Rows], like: Rows) -> Iterator[Rows]:
        """Return, on rank 0, the portions of client rows of all ranks; ``like`` has one row."""
        if self.leads:
            yield from portions
            for rank in range(1, self.count):
                yield from self._received(rank, like)
            return
        for portion in portions:
            self.transport.send(torch.tensor(len(portion["clients"])), 0)
            for name in sorted(portion):
                self.transport.send(portion[name], 0)
        self.transport.send(torch.tensor(0), 0)

    def _received(self, rank: int, like: Rows) -> Iterator[Rows]:
        while True:
            rows = torch.tensor(0)
            self.transport.receive(rows, rank)
            if not rows:
                return
            portion = _rows_like(like, int(rows))
            for name in sorted(portion):
                self.transport.receive(portion[name], rank)
            yield portion


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
