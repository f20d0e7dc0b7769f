"""The round loop: one federation in one process.

A round is a tuple of exchanges. Clients may run at once, but each is computed by itself and their replies are summed in
the order of their numbers: the result depends on who took part and on nothing else.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from kedge.algorithm import Algorithm
from kedge.cost import fresh, trace
from kedge.errors import UsageError
from kedge.exchange import Effort, Exchange, Needs, Round
from kedge.problem import Federation
from kedge.problem.checks import real, whole, whole_seed
from kedge.problem.keyed import LOSS, NOISE, draw_minibatches, keyed, sample_cohort
from kedge.simulator.engines import Done, Engine, FlatModule, Job, Loss, make_engines, try_model
from kedge.simulator.engines.base import compute_threads
from kedge.simulator.engines.module import ModuleEngine
from kedge.simulator.store import ClientStore
from kedge.simulator.workers import LARGE, Workers, worker_count

Weights = Literal["uniform", "size"]
AnyExchange = Exchange[Any, Any, Any, Any]
Rows = dict[str, Tensor]

PORTION = 1 << 27
"""Bytes of client state that are copied at a time."""


@dataclass(frozen=True)
class Settings:
    """How a federation is run, whatever the algorithm."""

    cohort: int | None = 10  # S; None: everyone
    local_steps: int = 16  # K
    local_epochs: float | None = None  # instead of K: passes over the client's own data, so K_i differ
    batch_size: int | None = 32  # None: the whole local data
    weight_decay: float = 0.0
    weights: Weights = "uniform"  # of the clients in the objective; "size": by their number of samples
    lost_replies: float = 0.0  # the probability that a sampled client's reply never arrives
    seed: int = 0

    def __post_init__(self) -> None:
        for name, optional in (("cohort", True), ("local_steps", False), ("batch_size", True)):
            if not (optional and getattr(self, name) is None):
                whole(name, getattr(self, name), 1)
        whole_seed(self.seed)
        if self.local_epochs is not None:
            real("local_epochs", self.local_epochs, positive=True)
        real("weight_decay", self.weight_decay, positive=False)
        if real("lost_replies", self.lost_replies, positive=False) >= 1:
            raise UsageError(f"lost_replies is {self.lost_replies:g}, but must be below 1")
        if self.weights not in ("uniform", "size"):
            raise UsageError(f"weights is {self.weights!r}, but must be uniform or size")


@dataclass
class Counters:
    """What a run has spent so far."""

    bytes_down: int = 0
    bytes_up: int = 0
    gradients: float = 0.0  # minibatch gradients; a pass over n samples counts n / batch_size


@dataclass
class Simulation:
    """A run at one moment; `advance` plays the next round."""

    model: nn.Module
    federation: Federation
    algorithm: Algorithm[Any, Any]
    settings: Settings
    loss: Loss = cross_entropy
    device: str = "cpu"
    engine: str = "auto"
    workers: int | None = None  # clients at once; None: as torch.get_num_threads() says
    state_memory: float = math.inf  # bytes of client state to keep in memory; the rest goes to a file
    scratch: Path | None = None  # where that file is; None: where the system keeps temporary ones
    round: int = 0
    counters: Counters = field(default_factory=Counters)
    cohorts: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name, kind in (("model", nn.Module), ("federation", Federation), ("algorithm", Algorithm)):
            if not isinstance(getattr(self, name), kind):
                raise UsageError(f"{name} is {getattr(self, name)!r}, but must be a {kind.__module__}.{kind.__name__}")
        dtype = next(self.model.parameters(), torch.zeros(0)).dtype
        device = usable_device(self.device)
        self.federation = self.federation.to(dtype, device)
        self._sizes = self.federation.sizes
        self._samples = int(self._sizes.sum())
        self._check()
        self.flat = FlatModule(self.model, device)
        self.random = try_model(self.flat, self.federation, self.loss, self.settings.batch_size)
        x = self.flat.initial
        self.server = self.algorithm.init_server(x)
        self.clients = ClientStore(lambda: self.algorithm.init_client(x), self.state_memory, self.scratch)
        self.buffers = self.flat.buffers.clone()
        self._steps = self._all_local_steps()
        self._mean_steps = int(self._steps.sum()) / len(self._steps)
        self._needs: dict[AnyExchange, Needs] = {}
        self._workers = self._hire(device)

    def _hire(self, device: torch.device) -> Workers:
        def engines(count: int) -> list[Engine]:
            decay = self.settings.weight_decay
            return make_engines(self.engine, count, self.model, self.federation, self.loss, decay, device)

        (first,) = engines(1)
        alone = device.type != "cpu" or (self.random and first.name == ModuleEngine.name)
        clients = self.settings.cohort or len(self.federation)
        count = worker_count(self.server.x.numel(), alone, clients, self.workers)
        return Workers([first, *engines(count - 1)])

    def state(self) -> dict[str, Tensor]:
        """Return all that a run is at this moment, as named tensors; `restore` goes on from there to the bit."""
        state = self.server_state()
        for client, own in self.clients.touched():  # clients may share a vector
            state |= {f"client.{client}.{name}": vector.clone() for name, vector in own._asdict().items()}
        return state

    def server_state(self) -> dict[str, Tensor]:
        """Return all but the clients' own: the server's vectors, the buffers, the round and the counters."""
        counters = {
            "bytes_down": torch.tensor(self.counters.bytes_down),
            "bytes_up": torch.tensor(self.counters.bytes_up),
            "gradients": torch.tensor(self.counters.gradients, dtype=torch.float64),
        }
        state = {"round": torch.tensor(self.round), "buffers": self.buffers, **counters}
        state |= {f"server.{name}": vector for name, vector in self.server._asdict().items()}
        return {name: value.clone() for name, value in state.items()}

    def client_rows(self, *, changed: bool) -> Iterator[Rows]:
        """Return the clients' own state, or what of it changed since `settle`, in portions of bounded size.

        A portion holds the numbers of its clients as `clients`, and their vectors as rows of `client.<name>`.
        """
        initial = self.clients[0]
        portion = max(1, PORTION // max(1, _nbytes(initial)))
        clients = self.clients.clients(changed=changed)
        for some in (clients[at : at + portion] for at in range(0, len(clients), portion)):
            fields = zip(initial._fields, zip(*(self.clients[client] for client in some), strict=True), strict=True)
            yield {"clients": torch.tensor(some)} | {f"client.{name}": torch.stack(rows) for name, rows in fields}

    def unsaved_bytes(self) -> int:
        """Return how much `server_state` and the changed `client_rows` would hold."""
        return _nbytes([*self.server, self.buffers]) + self.clients.count_changed() * _nbytes(self.clients[0])

    def settle(self) -> None:
        """Take the present state as saved: from now on rows count as changed anew."""
        self.clients.settle()

    def restore(self, state: Mapping[str, Tensor], rows: Iterable[Rows] = ()) -> None:
        """Go on from a state that a run of the same settings has returned: `state`, or `server_state` and rows.

        Of a client that several portions hold the last one counts.
        """
        device = self.server.x.device
        self.round, self.buffers = int(state["round"]), state["buffers"].to(device)
        self.counters = Counters(int(state["bytes_down"]), int(state["bytes_up"]), float(state["gradients"]))
        self.server = type(self.server)(*(state[f"server.{name}"].to(device) for name in self.server._fields))
        own = type(self.clients[0])
        for client in {int(name.split(".")[1]) for name in state if name.startswith("client.")}:
            self.clients[client] = own(*(state[f"client.{client}.{name}"].to(device) for name in own._fields))
        for some in rows:
            for at, client in enumerate(some["clients"].tolist()):
                # Copied, lest one row keep its whole portion in memory.
                self.clients[client] = own(*(some[f"client.{name}"][at].to(device, copy=True) for name in own._fields))
        self.settle()
        self.cohorts = [self._sampled(round) for round in range(self.round)]

    def description(self) -> str:
        """Say how the clients are run."""
        engines = self._workers.engines
        return f"engine: {engines[0].name}, {len(engines)} client{'s' if len(engines) > 1 else ''} at a time"

    def computes_with(self) -> dict[str, str]:
        """Return what changes no more than the last bits of the result."""
        return {"device": self.device, "engine": self._workers.engines[0].name}

    def close(self) -> None:
        """End the worker threads."""
        self._workers.close()

    def _check(self) -> None:
        clients, settings = len(self.federation), self.settings
        if settings.cohort is not None and settings.cohort > clients:
            raise UsageError(f"cohort is {settings.cohort}, but the federation has {clients} clients")
        if self.algorithm.full_participation and (settings.cohort or clients) < clients:
            raise UsageError(
                f"{type(self.algorithm).__name__} is defined for full participation only, "
                f"but cohort is {settings.cohort} of {clients} clients"
            )
        if self.algorithm.full_participation and settings.lost_replies:
            raise UsageError(
                f"{type(self.algorithm).__name__} needs every client's reply in every round, "
                f"but lost_replies is {settings.lost_replies:g}"
            )
        smallest = int(self._sizes.argmin())
        if settings.batch_size is not None and settings.batch_size > self._sizes[smallest]:
            raise UsageError(
                f"batch_size is {settings.batch_size}, but client {smallest} has only {self._sizes[smallest]} samples"
            )

    def _all_local_steps(self) -> NDArray[np.int64]:
        settings, sizes = self.settings, self._sizes
        if settings.local_epochs is None:
            return np.broadcast_to(np.int64(settings.local_steps), sizes.shape)
        steps = np.ceil(settings.local_epochs * sizes / (settings.batch_size or sizes))
        return np.clip(steps, 1, 2**53).astype(np.int64)

    def advance(self) -> None:
        """Play the next round (before the first one, the opening)."""
        if self.round == 0:
            self._play(self.algorithm.opening(), -1, range(len(self.federation)))
        cohort = self._sampled(self.round)
        self.cohorts.append(cohort)
        self._play(self.algorithm.exchanges(self.round), self.round, cohort)
        self.round += 1

    def _sampled(self, round: int) -> list[int]:
        everyone = len(self.federation)
        return sample_cohort(self.settings.seed, round, everyone, self.settings.cohort or everyone)

    def _play(self, exchanges: Sequence[AnyExchange], round: int, sampled: Sequence[int]) -> None:
        sent: dict[str, Any] = {}
        for number, exchange in enumerate(exchanges):
            asked = range(len(self.federation)) if exchange.cohort == "everyone" else sampled
            heard = [client for client in asked if not self._is_lost(round, client)]
            if exchange.cohort == "first":
                asked = heard = heard[:1]
            down = exchange.broadcast(self.server)
            message = [*fresh(exchange, down, sent).values()]
            message += [self.buffers] if exchange.effort(Effort(1)).steps else []
            self.counters.bytes_down += len(asked) * _nbytes(message)
            if heard:
                self._exchange(exchange, down, round, number, sorted(heard))

    def _is_lost(self, round: int, client: int) -> bool:
        probability = self.settings.lost_replies
        return probability > 0 and keyed(self.settings.seed, LOSS, round, client=client).random() < probability

    def _exchange(self, exchange: AnyExchange, down: Any, round: int, number: int, cohort: list[int]) -> None:
        efforts = [exchange.effort(Effort(int(self._steps[client]))) for client in cohort]
        batches = self._batches(round, number, cohort, efforts)
        needs = self._needed(exchange)
        parts = self._parts(exchange, efforts)

        def play(engine: Engine, part: slice) -> tuple[Any, Any, Done]:
            clients, effort = cohort[part], efforts[part.start]
            own = _stacked([self.clients[client] for client in clients])
            rule, start = exchange.direction(down, own), exchange.start(down, own)
            start = start.expand(len(clients), -1)
            rows = None if batches is None else np.stack(batches[part])
            seeds = None
            if self.random:
                seeds = np.stack([self._noise(round, number, client, effort.steps) for client in clients])
            done = engine.run(
                Job(rule, start, self.buffers, self.algorithm.eta, clients, effort.steps, rows, seeds, needs)
            )
            up, own = exchange.reply(down, own, done.local)
            # A row that is kept as a view would keep its whole group.
            owns = [type(row)(*(vector.clone() for vector in row)) for row in _split(own, len(clients))]
            return _split(up, len(clients)), owns, done

        mean, buffers = Mean(), Mean()
        # Large models divide their own operations between the threads; else each client has one.
        with compute_threads(1 if self.server.x.numel() < LARGE else None):
            for part, (ups, owns, done) in zip(parts, self._workers.map(play, parts), strict=True):
                for client, effort, up, own in zip(cohort[part], efforts[part], ups, owns, strict=True):
                    self.clients[client] = own
                    mean.add(up, self._weight(exchange, client))
                    self.counters.bytes_up += _nbytes([*up, *([done.buffers] if effort.steps else [])])
                    self.counters.gradients += done.gradients * self._minibatches(effort, client)
                if done.buffers.numel():
                    buffers.add((done.buffers - self.buffers,), 1.0)  # as changes: what is constant stays so to the bit
        if buffers:
            self.buffers = self.buffers + buffers.value()[0]
        share = len(cohort) / len(self.federation)
        self.server = exchange.fold(self.server, type(up)(*mean.value()), Round(share, self._mean_steps))

    def _parts(self, exchange: AnyExchange, efforts: list[Effort]) -> list[slice]:
        """Divide a cohort into the groups that are run together: equal efforts, and work for every worker."""
        engine, workers = self._workers.engines[0], len(self._workers.engines)
        size = self.settings.batch_size
        minibatches = efforts[0].minibatches
        most = engine.group(None if size is None or minibatches is None else size * minibatches)
        if any(effort != efforts[0] for effort in efforts):
            most = 1
        count = max(-(-len(efforts) // most), min(len(efforts), workers))
        ends = [len(efforts) * part // count for part in range(count + 1)]
        return [slice(begin, end) for begin, end in itertools.pairwise(ends)]

    def _noise(self, round: int, number: int, client: int, steps: int) -> NDArray[np.int64]:
        return keyed(self.settings.seed, NOISE, round, number, client).integers(2**63, size=steps)

    def _batches(
        self, round: int, number: int, cohort: list[int], efforts: list[Effort]
    ) -> list[NDArray[np.int64]] | None:
        """Draw the samples of every client and step; None stands for a client's whole data."""
        size = self.settings.batch_size
        if size is None or efforts[0].minibatches is None:
            return None
        drawn = draw_minibatches(
            self.settings.seed, round, number, cohort,
            samples=self._sizes[cohort],
            counts=[effort.steps * (effort.minibatches or 1) for effort in efforts],
            batch_size=size,
        )  # fmt: skip
        return [
            rows.reshape(effort.steps, len(rows) // max(1, effort.steps) * size)
            for rows, effort in zip(drawn, efforts, strict=True)
        ]

    def _needed(self, exchange: AnyExchange) -> Needs:
        if exchange not in self._needs:
            server, client = (type(t)(*(v.to("meta") for v in t)) for t in (self.server, self.clients[0]))
            self._needs[exchange] = trace(self.algorithm, exchange, server, client, Effort(steps=1), {})[0].needs
        return self._needs[exchange]

    def _weight(self, exchange: AnyExchange, client: int) -> float:
        """N p_i: its mean over the clients is 1, so a plain mean over a random cohort is unbiased."""
        if self.settings.weights == "uniform" or exchange.cohort == "first":
            return 1.0
        return len(self._sizes) * int(self._sizes[client]) / self._samples

    def _minibatches(self, effort: Effort, client: int) -> float:
        """How many minibatches one gradient of this effort stands for."""
        if self.settings.batch_size is None:
            return 1.0
        if effort.minibatches is None:
            return int(self._sizes[client]) / self.settings.batch_size
        return effort.minibatches


def usable_device(name: str) -> torch.device:
    """Return the device, or say why torch cannot use it."""
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, TypeError) as error:
        raise UsageError(f"device is {name!r}, but torch cannot use it: {str(error).splitlines()[0]}") from error


class Mean:
    """A running mean of tuples of tensors."""

    def __init__(self) -> None:
        self._total: list[Tensor] = []
        self._count = 0

    def add(self, values: tuple[Tensor, ...], weight: float) -> None:
        """Add a weighted reply."""
        if self._count == 0:
            self._total = [weight * value for value in values]
        else:
            for total, value in zip(self._total, values, strict=True):
                total.add_(value, alpha=weight)
        self._count += 1

    def __bool__(self) -> bool:
        return self._count > 0

    def value(self) -> list[Tensor]:
        """Return the sum over the number of replies (not over the weights)."""
        return [total / self._count for total in self._total]


def _stacked(states: list[Any]) -> Any:
    """Put the states of a group on top of each other: vectors (clients, d)."""
    if len(states) == 1:
        return type(states[0])(*(vector.unsqueeze(0) for vector in states[0]))
    return type(states[0])(*(torch.stack(vectors) for vectors in zip(*states, strict=True)))


def _split(values: Any, clients: int) -> list[Any]:
    """Return each client's own part of what a rule made of a group; what is one for all is everyone's."""
    fields = [value.unbind(0) if value.ndim == 2 else [value] * clients for value in values]
    return [type(values)(*(field[i] for field in fields)) for i in range(clients)]


def _nbytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
