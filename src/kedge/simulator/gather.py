"""How the simulator gathers replies: from the threads of this process and, if there are any, from other ranks.

In every exchange each rank plays the clients of neighbouring shards, chosen so that the work is even. A client's state
follows it to the rank that plays it.
"""

import bisect
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from kedge.direction import Vector
from kedge.exchange import Effort
from kedge.round import Question, Rounds, Total
from kedge.shards import Node, Sums, within
from kedge.simulator.crew import Crew
from kedge.simulator.ranks import Move, Processes
from kedge.simulator.store import ClientStore, Rows


@dataclass(frozen=True)
class Gatherer:
    """Asks clients and adds up what they reply."""

    rounds: Rounds
    crew: Crew
    store: ClientStore
    processes: Processes
    x: Vector  # for its structure

    def __call__(self, question: Question, clients: list[int], *, commit: bool = True, weighted: bool = True) -> Total:
        """Return the sum of the clients' replies; with ``commit``, the proposed states become theirs."""
        shards = self.rounds.settings.shards
        ends = divided(self._loads(question, clients), self.processes.count)
        ranges = list(itertools.pairwise(ends))
        self._fetch(clients, ends)
        active = {self._shard(client) for client in clients}
        branches = [_active(within((0, shards), *some), active) for some in ranges]
        first, end = ranges[self.processes.rank]
        mine = [client for client in clients if first <= self._shard(client) < end]
        needs, sums = self.rounds.form(question.exchange).needs, Sums(branches[self.processes.rank])
        for reply in self.crew.replies(question, needs, mine, self.store.__getitem__):
            if commit:
                self.store[reply.client] = reply.state
            weight = self.rounds.weight(question.exchange, reply.client) if weighted else 1.0
            sums.add(self._shard(reply.client), self.rounds.summands(question, reply, weight))
        layout = self.rounds.layout(question, self.x)
        return Total(self.processes.total(sums.finished(), branches, (0, shards), layout), clients)

    def has(self, client: int) -> bool:
        """Whether this process knows the client's state."""
        return self._holders.get(client, self.processes.rank) == self.processes.rank

    def restore(self, rows: Rows) -> None:
        """Load rows that every process reads; each keeps those of its own clients."""
        shards, count = self.rounds.settings.shards, self.processes.count
        homes = {client: self._shard(client) * count // shards for client in rows["clients"].tolist()}
        self._holders.update(homes)
        self.store.put(rows, lambda client: homes[client] == self.processes.rank)

    @cached_property
    def _holders(self) -> dict[int, int]:
        """Which rank has a client's state, unless it is still the initial one. Every rank knows this of all clients."""
        return {}

    def _shard(self, client: int) -> int:
        return self.rounds.shard(client)

    def _loads(self, question: Question, clients: list[int]) -> list[float]:
        """Return the work in each shard."""
        steps = self.rounds.settings.steps(self.rounds.sizes[clients])
        work: Counter[int] = Counter()
        for client, count in zip(clients, steps.tolist(), strict=True):
            work[self._shard(client)] += question.exchange.effort(Effort(count)).steps
        return [work[shard] for shard in range(self.rounds.settings.shards)]

    def _fetch(self, clients: list[int], ends: Sequence[int]) -> None:
        """Bring the clients' states to the ranks that play them."""
        if self.store.is_empty:
            return
        moves: dict[Move, list[int]] = {}
        for client in clients:
            here = bisect.bisect_right(ends, self._shard(client)) - 1
            there = self._holders.get(client, here)
            if there != here:
                moves.setdefault((there, here), []).append(client)
            self._holders[client] = here
        rank = self.processes.rank
        outgoing = {
            move: self.store.rows(some) | {"changed": self.store.changed(some)}
            for move, some in moves.items()
            if move[0] == rank
        }
        like = self.store.template | {"changed": torch.zeros(1, dtype=torch.uint8)}
        incoming = {move: len(some) for move, some in moves.items() if move[1] == rank}
        for rows in self.processes.exchanged(outgoing, incoming, like).values():
            self.store.put(rows)
        self.store.drop(client for move, some in moves.items() if move[0] == rank for client in some)


def divided(loads: Sequence[float], count: int) -> list[int]:
    """Divide shards into ``count`` runs of neighbours whose loads are as even as possible; return where they end."""
    reached = [0.0, *itertools.accumulate(loads)]
    wanted = [reached[-1] * part / count for part in range(1, count)]
    ends = [min(range(len(reached)), key=lambda end: abs(reached[end] - goal)) for goal in wanted]
    return [0, *ends, len(loads)]


def _active(nodes: list[Node], active: set[int]) -> list[Node]:
    return [node for node in nodes if not active.isdisjoint(range(*node))]
