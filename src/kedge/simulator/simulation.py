"""The round loop: one federation.

A round is a tuple of exchanges. Clients may run at once, in threads and processes, but their replies are summed in an
order that their numbers fix: the result depends on who took part and on nothing else.
"""

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
from kedge.cost import fresh
from kedge.errors import UsageError
from kedge.exchange import Effort, Round
from kedge.forming import formed
from kedge.problem import Federation
from kedge.problem.checks import real, whole, whole_seed
from kedge.problem.keyed import LOSS, keyed, sample_cohort
from kedge.simulator.cohort import AnyExchange, Cohorts, Reply
from kedge.simulator.engines import Engine, FlatModule, Loss, make_engines, try_model
from kedge.simulator.engines.module import ModuleEngine, convolves
from kedge.simulator.pool import Pool, thread_count
from kedge.simulator.ranks import Ranks, Rows
from kedge.simulator.shards import Replies, Values, completed, summed
from kedge.simulator.store import ClientStore

Weights = Literal["uniform", "size"]

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
    shards: int = 16  # of the clients: the most processes that a run can have

    def __post_init__(self) -> None:
        for name, optional in (("cohort", True), ("local_steps", False), ("batch_size", True), ("shards", False)):
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
    threads: int | None = None  # clients at once; None: as torch.get_num_threads() says
    state_memory: float = math.inf  # bytes of client state to keep in memory; the rest goes to a file
    scratch: Path | None = None  # where that file is; None: where the system keeps temporary ones
    round: int = 0
    counters: Counters = field(default_factory=Counters)
    cohorts: list[list[int]] = field(default_factory=list)
    ranks: Ranks = field(default_factory=Ranks.current)

    def __post_init__(self) -> None:
        for name, kind in (("model", nn.Module), ("federation", Federation), ("algorithm", Algorithm)):
            if not isinstance(getattr(self, name), kind):
                raise UsageError(f"{name} is {getattr(self, name)!r}, but must be a {kind.__module__}.{kind.__name__}")
        dtype = next(self.model.parameters(), torch.zeros(0)).dtype
        device = usable_device(self.device)
        self.federation = self.federation.to(dtype, device, channels_last=convolves(self.model, self.federation))
        self._sizes = self.federation.sizes
        self._samples = int(self._sizes.sum())
        self._check()
        self.flat = FlatModule(self.model, device)
        self.random = try_model(self.flat, self.federation, self.loss, self.settings.batch_size)
        algorithm, x = self.algorithm, self.flat.initial
        self.server = algorithm.init_server(x)
        # The function does not know this run, or its data would stay in memory until a cycle is found.
        self.clients = ClientStore(lambda: algorithm.init_client(x), self.state_memory, self.scratch)
        self.buffers = self.flat.buffers.clone()
        everyone = (self.settings.cohort or len(self.federation)) == len(self.federation)
        # Clients of every round keep its message; with lost replies the server's steps are no longer alike.
        self._formed = formed(algorithm) if everyone and not self.settings.lost_replies else frozenset()
        self._steps = self._all_local_steps()
        self._mean_steps = int(self._steps.sum()) / len(self._steps)
        pool = self._hire(device)
        self._cohorts = Cohorts(
            self.federation, self.algorithm, self.settings, self._steps, self.clients, pool, x.to("meta"), self.random
        )

    def _hire(self, device: torch.device) -> Pool:
        def engines(count: int) -> list[Engine]:
            decay = self.settings.weight_decay
            return make_engines(self.engine, count, self.model, self.federation, self.loss, decay, device)

        (first,) = engines(1)
        alone = device.type != "cpu" or (self.random and first.name == ModuleEngine.name)
        clients = self.settings.cohort or len(self.federation)
        count = thread_count(self.server.x.numel(), alone, clients, self.threads)
        return Pool([first, *engines(count - 1)])

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

    def all_client_rows(self, *, changed: bool) -> Iterator[Rows]:
        """Return, on rank 0, `client_rows` of all ranks; all of them must call it, and iterate."""
        return self.ranks.collect(self.client_rows(changed=changed), self.row_template())

    def row_template(self) -> Rows:
        """Return one row of `client_rows`, for its shapes."""
        initial = self.clients[0]._asdict()
        return {"clients": torch.zeros(1, dtype=torch.int64)} | {f"client.{k}": v[None] for k, v in initial.items()}

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
        for client in filter(self.owns, {int(name.split(".")[1]) for name in state if name.startswith("client.")}):
            self.clients[client] = own(*(state[f"client.{client}.{name}"].to(device) for name in own._fields))
        for some in rows:
            for at, client in enumerate(some["clients"].tolist()):
                if self.owns(client):  # copied, lest one row keep its whole portion in memory
                    row = (some[f"client.{name}"][at].to(device, copy=True) for name in own._fields)
                    self.clients[client] = own(*row)
        self.settle()
        self.cohorts = [self._sampled(round) for round in range(self.round)]

    def description(self) -> str:
        """Say how the clients are run."""
        engines = self._cohorts.pool.engines
        processes = f", {self.ranks.count} processes" if self.ranks.count > 1 else ""
        return f"engine: {engines[0].name}, {_counted(len(engines), 'thread')}{processes}"

    def computes_with(self) -> dict[str, str]:
        """Return what changes no more than the last bits of the result."""
        return {"device": self.device, "engine": self._cohorts.pool.engines[0].name}

    def close(self) -> None:
        """End the worker threads."""
        self._cohorts.pool.close()

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
        if self.ranks.count > settings.shards:
            raise UsageError(
                f"there are {self.ranks.count} processes, but shards is {settings.shards}, and each needs at least one"
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
            new = fresh(exchange, down, sent)
            message = [value for name, value in new.items() if round < 1 or (number, name) not in self._formed]
            message += [self.buffers] if exchange.effort(Effort(1)).steps else []
            self.counters.bytes_down += len(asked) * _nbytes(message)
            if heard:
                self._exchange(exchange, down, round, number, sorted(heard))

    def _is_lost(self, round: int, client: int) -> bool:
        probability = self.settings.lost_replies
        return probability > 0 and keyed(self.settings.seed, LOSS, round, client=client).random() < probability

    def _exchange(self, exchange: AnyExchange, down: Any, round: int, number: int, cohort: list[int]) -> None:
        up = self._cohorts.traced(exchange).up
        total = self._total(exchange, down, round, number, cohort, up)
        *mean, buffers, (sent, gradients) = total
        self.counters.bytes_up += int(sent)
        self.counters.gradients += float(gradients)
        self.buffers = self.buffers + buffers / len(cohort) if buffers.numel() else self.buffers
        share = len(cohort) / len(self.federation)
        mean_up = type(up)(*(value / len(cohort) for value in mean))
        self.server = exchange.fold(self.server, mean_up, Round(share, self._mean_steps))

    def _total(self, exchange: AnyExchange, down: Any, round: int, number: int, cohort: list[int], up: Any) -> Values:
        """Return the sum of the cohort's replies, to which every process adds those of its own clients."""
        mine = [client for client in cohort if self.owns(client)]
        computed = self._cohorts.replies(exchange, down, round, number, mine, self.buffers)
        replies = Replies((self._shard(reply.client), self._taken(exchange, reply)) for reply in computed)
        active = {self._shard(client) for client in cohort}
        branches = [
            [node for node in own if not active.isdisjoint(range(*node))]
            for own in self.ranks.branches(self.settings.shards)
        ]
        own = {node: summed(node, replies) for node in branches[self.ranks.rank]}
        parts = {node: values for node, values in own.items() if values is not None}
        if self.ranks.count > 1:
            device = self.buffers.device
            forms = [torch.empty(value.shape, dtype=value.dtype, device=device) for value in up]
            layout = [*forms, self.buffers, _numbers(0, 0)]
            parts = self.ranks.gather(parts, branches, layout)
        total = completed((0, self.settings.shards), parts)
        assert total is not None, "somebody has replied"
        return total

    def _taken(self, exchange: AnyExchange, reply: Reply) -> list[Tensor]:
        """Commit a client's new state, and return what of its reply is summed."""
        self.clients[reply.client] = reply.own
        return self._summands(exchange, reply)

    def _summands(self, exchange: AnyExchange, reply: Reply) -> list[Tensor]:
        """What of a reply is summed: the message, the change of the buffers, bytes sent and gradients taken."""
        weight = self._weight(exchange, reply.client)
        up = [value if weight == 1 else weight * value for value in reply.up]
        # As changes: what is constant stays so to the bit.
        buffers = reply.buffers - self.buffers if reply.buffers.numel() else reply.buffers
        sent = _nbytes([*reply.up, *([reply.buffers] if reply.effort.steps else [])])
        return [*up, buffers, _numbers(sent, reply.gradients * self._minibatches(reply.effort, reply.client))]

    def _shard(self, client: int) -> int:
        return client * self.settings.shards // len(self.federation)

    def owns(self, client: int) -> bool:
        """Whether this process has the client's shard."""
        return self.ranks.owner(self._shard(client), self.settings.shards) == self.ranks.rank

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


def _nbytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number > 1 else ''}"


def _numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
