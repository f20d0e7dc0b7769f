"""A run in progress, and the callbacks that it notifies.

A callback is any object with one or more of these methods; each gets the live run::

    on_start(run)           before the first round that is played
    on_evaluate(run, row)   after a round that was evaluated; row["name"] = value adds a column
    on_round(run)           after every round, when its row is in the history
    on_end(run)             after the last round, even if the run was stopped or diverged
    on_failure(run)         instead, if an error or a second Ctrl-C ends the run: close what is open, and ask nothing

In a run of several processes, every process calls its callbacks, because `run.ask` needs all of them. `run.leads` is
true in one of them, and its rows are kept.
"""

import numbers
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from kedge.client import Metric
from kedge.errors import RunWarning, UsageError, shown
from kedge.round import AnyExchange
from kedge.runs.reader import Row
from kedge.simulator import Answer, Simulation

MOMENTS = ("on_start", "on_evaluate", "on_round", "on_end", "on_failure")


class CallbackError(RuntimeError):
    """A callback failed; the message names it."""


class LiveRun:
    """What a callback sees of the run, and may do with it."""

    def __init__(
        self,
        simulation: Simulation,
        rounds: int,
        history: list[Row],
        directory: Path | None = None,
        metrics: Mapping[str, Metric] | None = None,
    ) -> None:
        self._simulation = simulation
        self._asking = 0.0
        self.directory = directory
        """Where the run is recorded; None if it is not."""
        self._metrics = metrics
        self.rounds = rounds
        """How many rounds the run will play."""
        self.history = history
        """One row per evaluated round."""
        self.stopping = False
        """Whether a callback has asked the run to stop."""
        self.interrupted = False
        """Whether Ctrl-C has."""

    @property
    def round(self) -> int:
        """How many rounds have been played."""
        return self._simulation.round

    @property
    def cohort(self) -> list[int]:
        """The clients of the last round, in the order in which they were drawn."""
        return self._simulation.cohorts[-1] if self.round else []

    @property
    def server(self) -> dict[str, Tensor]:
        """Copies of the server's vectors by name: `x`, and whatever else the algorithm keeps."""
        return _copied(self._simulation.server)

    @property
    def model(self) -> nn.Module:
        """The current model: an independent copy, ready to predict."""
        return self._simulation.model

    @property
    def simulation(self) -> Simulation:
        """The run itself: its algorithm, settings and federation."""
        return self._simulation

    @property
    def parameters(self) -> dict[str, Any]:
        """The algorithm, its hyper-parameters and the settings of the federation, in one flat table."""
        method = self._simulation.algorithm
        values = {"algorithm": type(method).__name__} | asdict(method) | self._simulation.settings.values()
        plain = (bool, int, float, str, type(None))
        return {name: value if isinstance(value, plain) else str(value) for name, value in values.items()}

    def evaluate_clients(self) -> list[dict[str, float]]:
        """Return the model's loss, accuracy and your metrics at each client.

        They are evaluated on the clients' test sets if the federation has any, else on the data that they train on.
        If layers are personal, every process of a run must call this, and only the first one gets the values.
        """
        return self._simulation.evaluate_clients(self._metrics)

    @property
    def leads(self) -> bool:
        """Whether this is the process that keeps the history; a run of one process always is."""
        return self._simulation.processes.leads

    def client(self, number: Any) -> dict[str, Tensor]:
        """Return copies of a client's own vectors by name; the client is given by its number or name."""
        return _copied(self._simulation.client(number))

    def ask(self, exchange: AnyExchange, clients: Iterable[Any] | None = None) -> Answer:
        """Ask clients (None: all) a question such as `kedge.FullGradient`; no trace is left, no cost is counted."""
        began = time.perf_counter()
        answer = self._simulation.ask(exchange, clients)
        self._asking += time.perf_counter() - began
        return answer

    def take_asking(self) -> float:
        """Return the seconds that questions took since the last call: they are not part of the run's."""
        asking, self._asking = self._asking, 0.0
        return asking

    def interrupt(self) -> None:
        """Stop, because of Ctrl-C."""
        self.interrupted = True
        self.stop()

    def stop(self) -> None:
        """End the run after this round; with a directory, a checkpoint is left to resume from."""
        self.stopping = True


class Callbacks:
    """Tells several objects what happens; a failure names the object."""

    def __init__(self, objects: Sequence[object]) -> None:
        if not isinstance(objects, Sequence) or isinstance(objects, str):
            raise UsageError(f"callbacks is {shown(objects)}, but must be a list of callbacks")
        for one in objects:
            if isinstance(one, type) or not any(callable(getattr(one, name, None)) for name in MOMENTS):
                methods = ", ".join(MOMENTS)
                raise UsageError(f"{shown(one)} is not a callback: it must be an object with one of {methods}")
        self._objects = objects
        self._started = self._ended = 0  # how many of them, in this order

    def tell(self, moment: str, *arguments: Any) -> None:
        """Call the method ``moment`` of every object that has it."""
        for number, one in enumerate(self._objects, 1):
            _call(one, moment, *arguments)
            if moment == "on_start":
                self._started = number
            elif moment == "on_end":
                self._ended = number

    @contextmanager
    def closed_on_failure(self, run: LiveRun) -> Iterator[None]:
        """If something fails, call `on_failure` of the objects that have started and not ended."""
        try:
            yield
        except BaseException:
            for one in self._objects[self._ended : self._started]:
                try:
                    _call(one, "on_failure", run)
                except CallbackError as error:  # what failed first is raised
                    warnings.warn(str(error), RunWarning, stacklevel=2)
            raise


def _copied(vectors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: vector.clone() for name, vector in vectors.items()}


def _call(one: object, moment: str, *arguments: Any) -> None:
    method = getattr(one, moment, None)
    if method is None:
        return
    try:
        method(*arguments)
    except Exception as error:
        text = f"the callback {type(one).__name__} failed in {moment}: {type(error).__name__}: {error}"
        raise CallbackError(text) from error
    if moment == "on_evaluate":
        _check_row(type(one).__name__, arguments[1])


def _check_row(name: str, row: Row) -> None:
    for column, value in row.items():
        if not isinstance(column, str) or isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise UsageError(f"the callback {name} set {shown(column)} to {shown(value)}, but it must be a number")
        row[column] = value if isinstance(value, int) else float(value)


class Watch:
    """Calls a function with the number of every round and, where it was evaluated, its row."""

    def __init__(self, function: Callable[[int, Row | None], None]) -> None:
        self._function = function

    def on_round(self, run: LiveRun) -> None:
        """Report a round."""
        last = run.history[-1] if run.history else None
        self._function(run.round, last if last is not None and last["round"] == run.round else None)


class StopWhen:
    """Stops the run as soon as a function of no arguments returns True."""

    def __init__(self, condition: Callable[[], bool]) -> None:
        self._condition = condition

    def on_round(self, run: LiveRun) -> None:
        """Ask."""
        if self._condition():
            run.stop()
