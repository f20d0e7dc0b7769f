"""The processes of a run: this one alone, or ranks on one machine or many, behind one interface.

Every rank has the server's state; a client's own state is on the rank that played it last. Only rank 0 reads and writes
files.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from kedge.errors import UnlikeError
from kedge.shards import Node, Values, completed
from kedge.simulator.store import Rows
from kedge.simulator.transport import Transport, current

Move = tuple[int, int]
"""The rank a client's state leaves and the rank it goes to."""

CHUNK = 1 << 21
"""How many bytes of a sum are sent at a time."""

ALIGNMENT = 16
"""The alignment, in bytes, of tensors in a message."""

ABSENT = ...
"""Stands for a fact that a rank does not have."""


class Processes(Protocol):
    """What a run needs from its processes. If there are several, all must make the same calls in the same order."""

    @property
    def rank(self) -> int:
        """Which process this is."""
        ...

    @property
    def count(self) -> int:
        """How many there are."""
        ...

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        ...

    def agree(self, *flags: bool) -> list[bool]:
        """Return, for each flag, whether any rank has set it."""
        ...

    def check_alike(self, facts: Callable[[], Mapping[str, Any]]) -> None:
        """Refuse to run unless all ranks have the same facts; each reports the first difference."""
        ...

    def total(
        self, own: Mapping[Node, Values], branches: Sequence[Sequence[Node]], tree: Node, layout: Sequence[Tensor]
    ) -> Values:
        """Return the sum over the whole tree; ``branches`` says which rank has which, and this one has ``own``.

        ``layout``: tensors with the shapes, dtypes and device of a branch's sum.
        """
        ...

    def exchanged(self, outgoing: Mapping[Move, Rows], incoming: Mapping[Move, int], like: Rows) -> dict[Move, Rows]:
        """Send rows to other ranks and return what they sent here, ``incoming`` of each move; ``like`` is one row."""
        ...

    def share(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return rank 0's tensors; the other ranks pass tensors of the same shapes and dtypes."""
        ...

    def share_rows(self, portions: Iterable[Rows], like: Rows) -> Iterator[Rows]:
        """Return rank 0's portions of client rows; ``like`` is one row."""
        ...

    def collect(self, portions: Iterable[Rows], like: Rows) -> Iterator[Rows]:
        """Return, on rank 0, the portions of client rows of all ranks; ``like`` is one row."""
        ...


def current_processes() -> Processes:
    """Return this process among those that a launcher or torch.distributed started, or on its own."""
    rank, count, transport = current()
    return Alone() if count == 1 else Ranks(rank, count, transport)


@dataclass(frozen=True)
class Alone:
    """One process: nothing is sent."""

    rank: int = 0
    count: int = 1
    leads: bool = True

    def agree(self, *flags: bool) -> list[bool]:
        """As the protocol says."""
        return list(flags)

    def check_alike(self, facts: Callable[[], Mapping[str, Any]]) -> None:
        """As the protocol says."""

    def total(
        self, own: Mapping[Node, Values], branches: Sequence[Sequence[Node]], tree: Node, layout: Sequence[Tensor]
    ) -> Values:
        """As the protocol says."""
        return _complete(tree, own)

    def exchanged(self, outgoing: Mapping[Move, Rows], incoming: Mapping[Move, int], like: Rows) -> dict[Move, Rows]:
        """As the protocol says."""
        return {}

    def share(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """As the protocol says."""
        return tensors

    def share_rows(self, portions: Iterable[Rows], like: Rows) -> Iterator[Rows]:
        """As the protocol says."""
        return iter(portions)

    def collect(self, portions: Iterable[Rows], like: Rows) -> Iterator[Rows]:
        """As the protocol says."""
        return iter(portions)


@dataclass(frozen=True)
class Ranks:
    """One of several processes."""

    rank: int
    count: int
    transport: Transport

    @property
    def leads(self) -> bool:
        """As the protocol says."""
        return self.rank == 0

    def agree(self, *flags: bool) -> list[bool]:
        """As the protocol says."""
        return [bool(flag) for flag in self._all(torch.tensor(flags, dtype=torch.uint8)).amax(0)]

    def check_alike(self, facts: Callable[[], Mapping[str, Any]]) -> None:
        """As the protocol says."""
        text = json.dumps(facts()).encode()
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

    def total(
        self, own: Mapping[Node, Values], branches: Sequence[Sequence[Node]], tree: Node, layout: Sequence[Tensor]
    ) -> Values:
        """As the protocol says. Large vectors go in pieces, which stay in the caches until they are added."""
        result = [torch.empty_like(like) for like in layout]
        for pieces in _pieces(layout):
            likes = [_piece(layout, piece) for piece in pieces]
            places, width = _places(likes)
            message = layout[0].new_empty(max(map(len, branches)), width, dtype=torch.uint8)
            for row, node in zip(message, branches[self.rank], strict=False):
                for (begin, end), piece in zip(places, pieces, strict=True):
                    row[begin:end] = _piece(own[node], piece).contiguous().view(torch.uint8)
            messages = [torch.empty_like(message) for _ in branches]
            self.transport.all_gather(messages, message)
            parts = {
                node: [row[begin:end].view(like.dtype) for (begin, end), like in zip(places, likes, strict=True)]
                for nodes, rows in zip(branches, messages, strict=True)
                for node, row in zip(nodes, rows, strict=False)
            }
            for piece, value in zip(pieces, _complete(tree, parts), strict=True):
                _piece(result, piece).copy_(value)
        return result

    def exchanged(self, outgoing: Mapping[Move, Rows], incoming: Mapping[Move, int], like: Rows) -> dict[Move, Rows]:
        """As the protocol says."""
        found: dict[Move, Rows] = {}
        # All ranks go through the moves in one order, so no two wait for each other.
        for move in sorted({*outgoing, *incoming}):
            if move in outgoing:
                for name in sorted(like):
                    self.transport.send(outgoing[move][name], move[1])
            else:
                found[move] = _rows_like(like, incoming[move])
                for name in sorted(like):
                    self.transport.receive(found[move][name], move[0])
        return found

    def share(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """As the protocol says."""
        shared = {name: tensor.clone() for name, tensor in tensors.items()}
        for name in sorted(shared):
            self.transport.broadcast(shared[name])
        return shared

    def share_rows(self, portions: Iterable[Rows], like: Rows) -> Iterator[Rows]:
        """As the protocol says."""
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
        """As the protocol says."""
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


class _Piece(NamedTuple):
    """A range of numbers in one of several tensors."""

    tensor: int
    begin: int
    end: int


def _piece(tensors: Sequence[Tensor], piece: _Piece) -> Tensor:
    return tensors[piece.tensor].reshape(-1)[piece.begin : piece.end]


def _pieces(layout: Sequence[Tensor]) -> Iterator[list[_Piece]]:
    """Divide tensors into pieces, and these into groups of at most `CHUNK` bytes."""
    group: list[_Piece] = []
    room = CHUNK
    for number, tensor in enumerate(layout):
        begin = 0
        while begin < tensor.numel() or tensor.numel() == begin == 0:
            fits = min(tensor.numel() - begin, max(1, room // tensor.element_size()))
            group.append(_Piece(number, begin, begin + fits))
            begin, room = begin + max(1, fits), room - fits * tensor.element_size()
            if room < ALIGNMENT:
                yield group
                group, room = [], CHUNK
    if group:
        yield group


def _complete(tree: Node, parts: Mapping[Node, Values]) -> Values:
    total = completed(tree, parts)
    assert total is not None, "at least one client has replied"
    return total


def _rows_like(like: Rows, rows: int) -> Rows:
    return {name: tensor.new_empty(rows, *tensor.shape[1:]) for name, tensor in like.items()}


def _places(layout: Sequence[Tensor]) -> tuple[list[tuple[int, int]], int]:
    """Return where each tensor's bytes are in a message, and the message's length."""
    places, end = [], 0
    for tensor in layout:
        begin = -(-end // ALIGNMENT) * ALIGNMENT
        end = begin + tensor.numel() * tensor.element_size()
        places.append((begin, end))
    return places, -(-end // ALIGNMENT) * ALIGNMENT
