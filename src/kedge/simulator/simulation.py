"""A federation in one place: threads and processes that play the clients, and the store of their state.

`kedge.round` defines what a round is. Clients may run at once, but their replies are summed in an order that their
numbers fix: the result depends only on who took part.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from kedge.algorithm import Algorithm
from kedge.checks import affordable
from kedge.client import FlatModule, Loss, Metric, check_metrics, convolves, evaluate, try_model
from kedge.client.trial import ModelTraits
from kedge.errors import UsageError, shown, warn
from kedge.exchange import Effort
from kedge.problem import Federation
from kedge.round import ASKED, AnyExchange, Moment, Question, Rounds, Rules, nbytes
from kedge.rules import PERSONAL
from kedge.settings import Settings
from kedge.simulator.crew import Crew
from kedge.simulator.engines import Engine, make_engines
from kedge.simulator.engines.module import ModuleEngine
from kedge.simulator.evaluate import each_client
from kedge.simulator.gather import Gatherer
from kedge.simulator.pool import Pool, thread_count
from kedge.simulator.ranks import Processes, current_processes
from kedge.simulator.store import ClientStore, Rows


class Simulation:
    """A run at one moment; `advance` plays the next round, `ask` asks a question that leaves no trace.

    Args:
        model: any module; it is not changed.
        federation: the clients' data.
        algorithm: for example ``kedge.ScaffoldM(eta=0.1)``.
        settings: the rules of the federation.
        loss: ``loss(output, y)``, a mean over the samples.
        device: where to compute.
        engine: how to compute, see `kedge.simulate`.
        threads: clients that run at once; None means torch.get_num_threads().
        state_memory: bytes of client state to keep in memory; the rest goes to a file.
        scratch: the directory of that file; None is the system's for temporary files.
        processes: the processes of the run; None is this one and those that a launcher started with it.
    """

    def __init__(
        self,
        model: nn.Module,
        federation: Federation,
        algorithm: Algorithm[Any, Any],
        settings: Settings | None = None,
        loss: Loss = cross_entropy,
        device: str = "cpu",
        engine: str = "auto",
        threads: int | None = None,
        state_memory: float = math.inf,
        scratch: Path | None = None,
        *,
        processes: Processes | None = None,
    ) -> None:
        for name, value, kind in (
            ("model", model, nn.Module), ("federation", federation, Federation), ("algorithm", algorithm, Algorithm),
        ):  # fmt: skip
            if not isinstance(value, kind):
                raise UsageError(f"{name} is {value!r}, but must be a {kind.__module__}.{kind.__name__}")
        if isinstance(loss, type) or not callable(loss):
            raise UsageError(f"loss is {shown(loss)}, but must be a function of outputs and labels, as is nn.MSELoss()")
        self.initial_model, self.algorithm, self.loss, self.device = model, algorithm, loss, device
        self.settings = _everyone(settings or Settings(), len(federation))
        self.processes = processes or current_processes()
        place = usable_device(device)
        dtype = next(model.parameters(), torch.zeros(0)).dtype
        self.federation = federation.to(dtype, place, channels_last=convolves(model, federation.features))
        self._check()
        self.flat = FlatModule(model, place)
        trial = self._tried()
        self.random, self.loss = trial.random or self.federation.is_lazy, trial.loss
        x = self.flat.initial
        rules = Rules.of(
            algorithm, self.settings, self.flat.places, x, self.random, statistics=self.flat.buffers.numel() > 0
        )
        self._rounds = Rounds(algorithm, self.settings, self.federation.sizes, hidden=rules.hidden)
        self.moment = self._rounds.begin(x, self.flat.buffers.clone())
        # A function that knew this run would keep its data in memory until the garbage collector finds the cycle.
        self._store = ClientStore(lambda: rules.initial_state(x), state_memory, scratch)
        self._crew = Crew(rules, self.federation.sizes, x.numel(), self._hire(engine, threads, place))
        self._gather = Gatherer(self._rounds, self._crew, self._store, self.processes, x)

    def _tried(self) -> ModelTraits:
        """Try the model on the smallest client."""
        data, size = self.federation, self.settings.batch_size
        smallest = int(data.sizes.argmin())
        rows = data.indices[smallest][:size]
        labels = [data.labels] if data.test is None else [data.labels, data.test[1]]
        own = None if data.client_tests is None else data.client_tests.labels
        who = f"batch_size is {size}" if size else f"client {smallest} has {len(rows)} sample"
        return try_model(self.flat, *data.samples.take(rows), self.loss, labels, who, own)

    def _hire(self, name: str, threads: int | None, device: torch.device) -> Pool:
        def engines(count: int) -> list[Engine]:
            return make_engines(name, count, self.initial_model, self.federation, self.loss, device)

        (first,) = engines(1)
        alone = device.type != "cpu" or (self.random and first.name == ModuleEngine.name)
        clients = self.settings.cohort or len(self.federation)
        count = thread_count(self.flat.initial.numel(), alone, clients, threads)
        return Pool([first, *engines(count - 1)])

    def _check(self) -> None:
        sizes, settings, name = self.federation.sizes, self.settings, type(self.algorithm).__name__
        clients, cohort = len(sizes), settings.cohort
        if cohort is not None and cohort > clients:
            raise UsageError(f"cohort is {cohort}, but the federation has {clients} clients")
        if self.algorithm.full_participation and (cohort or clients) < clients:
            raise UsageError(
                f"{name} is defined only for full participation, but cohort is {cohort} of {clients} clients"
            )
        if self.algorithm.full_participation and settings.lost_replies:
            raise UsageError(
                f"{name} needs every client's reply in every round, but lost_replies is {settings.lost_replies:g}"
            )
        if self.processes.count > settings.shards:
            raise UsageError(
                f"there are {self.processes.count} processes, but shards is {settings.shards}; each needs at least one"
            )
        if settings.batch_size is not None and settings.batch_size > sizes.min() and self.processes.leads:
            small = f"{int((sizes < settings.batch_size).sum())} of {clients} clients have fewer samples"
            text = f"batch_size is {settings.batch_size}, but {small}: their minibatches are all the samples they have"
            warn(text)
        most, first = Effort(int(settings.steps(sizes).max())), self.algorithm.at(0)
        for exchange in (*first.opening(), *first.exchanges(0, settings.seed)):
            effort = exchange.effort(most)
            if settings.batch_size is not None and effort.minibatches is not None:
                # For each sample: a number, an index and a candidate for it.
                size = 24 * effort.steps * effort.minibatches * min(settings.batch_size, int(sizes.max()))
                affordable(f"one client's {effort.steps * effort.minibatches} minibatches", size)

    # ---- where the run is

    @property
    def round(self) -> int:
        """How many rounds have been played."""
        return self.moment.round

    @property
    def cohorts(self) -> "Cohorts":
        """The clients of every round so far, in the order in which they were drawn."""
        return Cohorts(self._rounds, self.round)

    @property
    def server(self) -> dict[str, Tensor]:
        """The server's vectors by name: `x`, and whatever else the algorithm keeps."""
        return dict(self.moment.state._asdict())

    @property
    def model(self) -> nn.Module:
        """The current model: an independent copy, ready to predict."""
        return self.flat.exported(self.moment.state.x, self.moment.buffers)

    def module_now(self) -> nn.Module:
        """Return the run's own module with the current parameters, to be evaluated and not kept."""
        self.flat.bind(self.moment.state.x)
        self.flat.buffers.copy_(self.moment.buffers)
        return self.flat.module

    @property
    def is_personal(self) -> bool:
        """Whether every client has its own layers, so that no client has the server's model."""
        return self._crew.rules.hidden > 0

    def modules(self) -> Iterator[tuple[int, nn.Module]]:
        """Return every client and `module_now` as it sees it, to be used before the next one.

        If layers are personal, every process of a run must call this, and iterate; the first one gets all of them.
        """
        module = self.module_now()
        if not self.is_personal:
            yield from ((client, module) for client in range(len(self.federation)))
            return
        found = set()
        for rows in self.client_rows(changed=False):
            for at, client in enumerate(rows["clients"].tolist()):
                found.add(client)
                state = {name.removeprefix("client."): rows[name][at] for name in rows if name != "clients"}
                self.flat.bind(self._entered(state))
                yield client, module
        if self.processes.leads:  # those that have not taken part yet
            self.flat.bind(self._entered(self._crew.rules.initial_state(self.flat.initial)._asdict()))
            yield from ((client, module) for client in range(len(self.federation)) if client not in found)

    def _entered(self, state: Mapping[str, Tensor]) -> Tensor:
        return self._crew.rules.entered(self.moment.state.x, state)

    def evaluate(self, metrics: Mapping[str, Metric] | None = None) -> dict[str, float]:
        """Return the current model's loss, accuracy and your own metrics on the test set."""
        if self.federation.test is None:
            raise UsageError("the federation has no test set to evaluate on")
        if self.is_personal:
            raise UsageError(f"{PERSONAL}; evaluate_clients evaluates each client's own")
        return evaluate(self.module_now(), self.loss, *self.federation.test, check_metrics(metrics))

    def evaluate_clients(self, metrics: Mapping[str, Metric] | None = None) -> list[dict[str, float]]:
        """Return the same at each client: on the clients' test sets if there are any, else on their own data.

        If layers are personal, every process of a run must call this, and only the first one gets the values.
        """
        return each_client(self.modules(), self.loss, self.federation, check_metrics(metrics))

    def __repr__(self) -> str:
        return f"Simulation({type(self.algorithm).__name__} after {self.round} rounds of {self.federation})"

    def client(self, number: Any) -> dict[str, Tensor]:
        """Return a client's own vectors by name; the client is given by its number or name."""
        number = self.federation.number(number)
        if not self._gather.has(number):
            raise UsageError(f"the state of client {number} is not in this process, but in another process of the run")
        return dict(self._store[number]._asdict())

    def client_model(self, number: Any) -> nn.Module:
        """Return the current model as a client sees it, with its personal layers: an independent copy."""
        return self.flat.exported(self._entered(self.client(number)), self.moment.buffers)

    def description(self) -> str:
        """Describe how the clients are run."""
        engines = self._crew.pool.engines
        processes = f", {self.processes.count} processes" if self.processes.count > 1 else ""
        return f"engine: {engines[0].name}, {len(engines)} thread{'s' * (len(engines) > 1)}{processes}"

    def computes_with(self) -> dict[str, str]:
        """Return what affects only the last bits of the result."""
        return {"device": self.device, "engine": self._crew.pool.engines[0].name}

    def close(self) -> None:
        """End the worker threads."""
        self._crew.pool.close()

    # ---- playing

    def advance(self, *, measured: bool = False) -> None:
        """Play the next round (before the first one, the opening); if ``measured``, with its `train_loss`."""
        self.moment = self._rounds.play(self.moment, self._gather, measured=measured)

    @property
    def train_loss(self) -> float:
        """The mean loss of the minibatches that the last round's clients trained on; not a number if not measured."""
        return self.moment.train_loss

    def ask(self, exchange: AnyExchange, clients: Iterable[Any] | None = None) -> "Answer":
        """Ask clients, by number or name (None: all), a question; no state changes and no cost is counted.

        Every process of a run must ask the same question.
        """
        everyone = range(len(self.federation))
        if clients is not None and (isinstance(clients, str) or not isinstance(clients, Iterable)):
            raise UsageError(f"clients is {shown(clients)}, but must be a list of clients")
        asked = list(everyone) if clients is None else sorted({self.federation.number(each) for each in clients})
        if not asked:
            raise UsageError("clients is empty, but must name at least one")
        return Answer(self, self._rounds.question(self.moment, exchange, self.round, ASKED), asked)

    def mean_reply(self, question: Question, clients: list[int], *, weighted: bool = True) -> tuple[Any, float]:
        """Return the mean reply of some clients, and the minibatch gradients that it took; no state changes."""
        total = self._gather(question, clients, commit=False, weighted=weighted)
        return self._rounds.mean(question, total), float(total.values[-1][1])

    # ---- saving and restoring

    def server_state(self) -> dict[str, Tensor]:
        """Return the current state of the run, except for the clients' own state, as named tensors."""
        moment = self.moment
        state = {
            "round": torch.tensor(moment.round),
            "buffers": moment.buffers.clone(),
            "bytes_down": torch.tensor(moment.bytes_down),
            "bytes_up": torch.tensor(moment.bytes_up),
            "gradients": torch.tensor(moment.gradients, dtype=torch.float64),
        }
        return state | {f"server.{name}": vector.clone() for name, vector in self.server.items()}

    def client_rows(self, *, changed: bool) -> Iterator[Rows]:
        """Return, on rank 0, the clients' own state or only what changed since `settle`, in portions of bounded size.

        Every process of a run must call this, and iterate.
        """
        return self.processes.collect(self._store.portions(changed=changed), self._store.template)

    def unsaved_bytes(self) -> int:
        """Return how much `server_state` and the changed `client_rows` would hold."""
        server = nbytes([*self.moment.state, self.moment.buffers])
        return server + self._store.count_changed() * self._store.row_bytes

    @property
    def row_template(self) -> Rows:
        """One row of `client_rows`, for its shapes."""
        return self._store.template

    def settle(self) -> None:
        """Mark the current state as saved: only later changes count as changed."""
        self._store.settle()

    def restore(self, state: Mapping[str, Tensor], rows: Iterable[Rows] = ()) -> None:
        """Continue, to the bit, from what `server_state` and `client_rows` of a run with the same settings returned.

        If several portions hold a client, the last one counts.
        """
        kind, device = type(self.moment.state), self.flat.initial.device
        self.moment = Moment(
            int(state["round"]),
            kind(*(state[f"server.{name}"].to(device, copy=True) for name in kind._fields)),
            state["buffers"].to(device, copy=True),
            int(state["bytes_down"]), int(state["bytes_up"]), float(state["gradients"]),
        )  # fmt: skip
        for some in rows:
            self._gather.restore(some)
        self.settle()


class Cohorts(Sequence[list[int]]):
    """The cohorts of the rounds so far; each is drawn on demand."""

    def __init__(self, rounds: Rounds, count: int) -> None:
        self._rounds, self._count = rounds, count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> list[int]: ...
    @overload
    def __getitem__(self, at: slice) -> list[list[int]]: ...
    def __getitem__(self, at: int | slice) -> list[int] | list[list[int]]:
        if isinstance(at, slice):
            return [self._rounds.cohort(round) for round in range(*at.indices(self._count))]
        return self._rounds.cohort(range(self._count)[at])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as of every sequence that equals a list

    def __repr__(self) -> str:
        return f"<the cohorts of {self._count} rounds>"


class Answer:
    """The clients' answer to `Simulation.ask`."""

    def __init__(self, run: Simulation, question: Question, clients: list[int]) -> None:
        self._run, self._question, self._round = run, question, run.round
        self.clients = clients
        mean, self.gradients = run.mean_reply(question, clients)
        """What it cost, in minibatch gradients; the run's own count does not contain them."""
        self.mean: dict[str, Tensor] = mean._asdict()
        """The mean reply, weighted like the objective: its vectors by name."""

    def each(self, client: Any) -> dict[str, Tensor]:
        """Return one client's reply, computed again; only until the run plays its next round."""
        client = self._run.federation.number(client)
        if client not in self.clients:
            raise UsageError(f"client {client} was not asked")
        if self._run.round != self._round:
            raise UsageError(f"the question was asked after round {self._round}, but the run has moved on since")
        reply, _ = self._run.mean_reply(self._question, [client], weighted=False)
        own: dict[str, Tensor] = reply._asdict()
        return own


def _everyone(settings: Settings, clients: int) -> Settings:
    """Return the settings; a default cohort that is larger than the federation becomes all clients."""
    declared = Settings.declared["cohort"]
    if (
        settings.cohort is None
        or settings.cohort <= clients
        or settings.cohort not in (declared.default, declared.start)
    ):
        return settings
    text = f"cohort is {settings.cohort}, a default, but there are {clients} clients: all of them take part"
    warn(text)
    return settings.model_copy(update={"cohort": None})


def usable_device(name: str) -> torch.device:
    """Return the device, or say why torch cannot use it."""
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, TypeError) as error:
        raise UsageError(f"device is {name!r}, but torch cannot use it: {str(error).splitlines()[0]}") from error
