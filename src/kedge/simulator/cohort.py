"""What a cohort computes in one exchange: its clients in groups, one group a thread at a time."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kedge.algorithm import Algorithm
from kedge.costs import Trace, trace
from kedge.exchange import Effort, Exchange
from kedge.problem import Federation
from kedge.problem.keyed import NOISE, draw_minibatches, keyed
from kedge.simulator.engines import Done, Engine, Job
from kedge.simulator.engines.base import compute_threads
from kedge.simulator.pool import LARGE, Pool
from kedge.simulator.store import ClientStore

AnyExchange = Exchange[Any, Any, Any, Any]


class Reply(NamedTuple):
    """What a client has computed."""

    client: int
    effort: Effort
    up: Any
    own: Any  # its new state
    buffers: Tensor
    gradients: int  # how often it took one


class Drawing(Protocol):
    """The settings that decide what a client draws."""

    @property
    def seed(self) -> int:
        """Of all that is drawn."""
        ...

    @property
    def batch_size(self) -> int | None:
        """Samples of a minibatch; None: all of the client's."""
        ...


@dataclass
class Cohorts:
    """Plays the clients' part of exchanges."""

    federation: Federation
    algorithm: Algorithm[Any, Any]
    settings: Drawing
    steps: NDArray[np.int64]  # K of each client
    clients: ClientStore
    pool: Pool
    model: Tensor  # x^0, without data
    random: bool  # whether the model draws random numbers
    _traces: dict[AnyExchange, Trace] = field(default_factory=dict)

    def replies(
        self, exchange: AnyExchange, down: Any, round: int, number: int, cohort: list[int], buffers: Tensor
    ) -> Iterator[Reply]:
        """Compute the replies of these clients, and return them in their order."""
        if not cohort:
            return
        efforts = [exchange.effort(Effort(int(self.steps[client]))) for client in cohort]
        needs = self.traced(exchange).cost.needs

        def play(engine: Engine, part: slice) -> tuple[list[Any], list[Any], Done]:
            clients, effort = cohort[part], efforts[part.start]
            own = _stacked([self.clients[client] for client in clients])
            rule, start = exchange.direction(down, own), exchange.start(down, own)
            start = start.expand(len(clients), -1)
            rows = self._batches(round, number, clients, effort)
            seeds = self._noise(round, number, clients, effort.steps) if self.random else None
            job = Job(rule, start, buffers, self.algorithm.eta, clients, effort.steps, rows, seeds, needs)
            done = engine.run(job)
            up, own = exchange.reply(down, own, done.local)
            # A row that is kept as a view would keep its whole group.
            owns = [type(row)(*(vector.clone() for vector in row)) for row in _split(own, len(clients))]
            return _split(up, len(clients)), owns, done

        parts = self._parts(efforts)
        # Large models divide their own operations between the threads; else each client has one.
        with compute_threads(1 if self.model.numel() < LARGE else None):
            for part, (ups, owns, done) in zip(parts, self.pool.map(play, parts), strict=True):
                for client, effort, up, own in zip(cohort[part], efforts[part], ups, owns, strict=True):
                    yield Reply(client, effort, up, own, done.buffers, done.gradients)

    def _parts(self, efforts: list[Effort]) -> list[slice]:
        """Divide a cohort into the groups that are run together: equal efforts, and work for every thread."""
        engine, threads = self.pool.engines[0], len(self.pool.engines)
        size, minibatches = self.settings.batch_size, efforts[0].minibatches
        most = engine.group(None if size is None or minibatches is None else size * minibatches)
        if any(effort != efforts[0] for effort in efforts):
            most = 1
        count = max(-(-len(efforts) // most), min(len(efforts), threads))
        ends = [len(efforts) * part // count for part in range(count + 1)]
        return [slice(begin, end) for begin, end in itertools.pairwise(ends)]

    def _noise(self, round: int, number: int, clients: list[int], steps: int) -> NDArray[np.int64]:
        seed = self.settings.seed
        return np.stack([keyed(seed, NOISE, round, number, client).integers(2**63, size=steps) for client in clients])

    def _batches(self, round: int, number: int, clients: list[int], effort: Effort) -> NDArray[np.int64] | None:
        """Draw the samples of every client and step; None stands for a client's whole data."""
        size = self.settings.batch_size
        if size is None or effort.minibatches is None:
            return None
        drawn = draw_minibatches(
            self.settings.seed, round, number, clients,
            samples=self.federation.sizes[clients],
            counts=[effort.steps * effort.minibatches] * len(clients),
            batch_size=size,
        )  # fmt: skip
        return np.stack(drawn).reshape(len(clients), effort.steps, effort.minibatches * size)

    def traced(self, exchange: AnyExchange) -> Trace:
        """Return what the exchange reads of the local steps, and the form of its reply."""
        if exchange not in self._traces:
            # On zeros: before it calculates on `meta`, torch loads a computer algebra system.
            x = torch.zeros(self.model.shape, dtype=self.model.dtype)
            server, client = self.algorithm.init_server(x), self.algorithm.init_client(x)
            traced = trace(self.algorithm, exchange, server, client, Effort(steps=1), {})
            up = type(traced.up)(*(torch.empty(v.shape, dtype=v.dtype, device="meta") for v in traced.up))
            self._traces[exchange] = traced._replace(up=up, server=None, client=None)
        return self._traces[exchange]


def _stacked(states: list[Any]) -> Any:
    """Put the states of a group on top of each other: vectors (clients, d)."""
    if len(states) == 1:
        return type(states[0])(*(vector.unsqueeze(0) for vector in states[0]))
    return type(states[0])(*(torch.stack(vectors) for vectors in zip(*states, strict=True)))


def _split(values: Any, clients: int) -> list[Any]:
    """Return each client's own part of what a rule made of a group; what is one for all is everyone's."""
    fields = [value.unbind(0) if value.ndim == 2 else [value] * clients for value in values]
    return [type(values)(*(field[i] for field in fields)) for i in range(clients)]
