"""The proof's quantities in a run: how far momentum, clients and control variables are from what they should be.

Definitions of the paper's appendix A, with the expectation over all clients, on their whole data where it is an exact
gradient. Each is a question to the run (`ask`), so nothing of the run changes and nothing is charged to it.
"""

import math
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from kedge.checks import whole
from kedge.direction import GRAD, Direction, Vector
from kedge.exchange import Effort, Exchange, Heard, Local
from kedge.questions import FullGradient, Point
from kedge.round import AnyExchange
from kedge.simulator import Answer, Simulation

EXACT_DRIFT = 8
"""Up to this many local steps, the drift after every step is measured; of more, at about six of them."""


class Number(NamedTuple):
    """A reply that is one number per client."""

    value: Tensor


class _Squares(Exchange[Any, Any, Any, Number]):
    """A question whose reply is a squared norm per client: it changes nothing."""

    cohort = "everyone"

    def fold(self, server: Any, up: Number, heard: Heard) -> Any:
        """Change nothing."""
        return server


@dataclass(frozen=True, eq=False)
class _Following(_Squares):
    """|x_i - x^r|² after some steps of an algorithm's own exchange."""

    exchange: AnyExchange

    def broadcast(self, server: Any) -> Any:
        """Send what the algorithm sends."""
        return self.exchange.broadcast(server)

    def direction(self, down: Any, client: Any) -> Direction:
        """Go where the algorithm goes."""
        return self.exchange.direction(down, client)

    def start(self, down: Any, client: Any) -> Vector:
        """Start where the algorithm starts."""
        return self.exchange.start(down, client)

    def reply(self, down: Any, client: Any, local: Local) -> tuple[Number, Any]:
        """Reply with the squared distance from the server's model."""
        return Number((local.x - down.x).square().sum(-1, keepdim=True)), client


@dataclass(frozen=True, eq=False)
class Drift(_Following):
    """|x_i^{r,k} - x^r|² after k of the algorithm's steps."""

    steps: int

    def effort(self, base: Effort) -> Effort:
        """Take only the first steps."""
        return self.exchange.effort(base)._replace(steps=self.steps)


@dataclass(frozen=True, eq=False)
class FirstStep(_Following):
    """|E[x_i^{r,1} - x^r]|²: the algorithm's first step with the exact gradient."""

    def effort(self, base: Effort) -> Effort:
        """Take one step on all of the client's samples."""
        return Effort(steps=1, minibatches=None)


@dataclass(frozen=True, eq=False)
class ControlError(_Squares):
    """|c_i - ∇f_i(at)|²."""

    at: Vector

    def broadcast(self, server: Any) -> Point:
        """Send the point."""
        # kedge finds the form of a reply by running the rules on tiny vectors.
        return Point(self.at if self.at.shape == server.x.shape else server.x)

    def direction(self, down: Point, client: Any) -> Direction:
        """Take the gradient at the point."""
        return GRAD

    def reply(self, down: Point, client: Any, local: Local) -> tuple[Number, Any]:
        """Compare it with the control variable."""
        return Number((local.mean_direction - client.c_i).square().sum(-1, keepdim=True)), client

    def effort(self, base: Effort) -> Effort:
        """Take one step on all of the client's samples."""
        return Effort(steps=1, minibatches=None)


class Run(Protocol):
    """What a diagnosis needs of a live run (`kedge.LiveRun`)."""

    rounds: int

    @property
    def round(self) -> int:
        """How many rounds have been played."""

    @property
    def server(self) -> dict[str, Tensor]:
        """The server's vectors by name."""

    @property
    def simulation(self) -> Simulation:
        """The run itself."""

    def ask(self, exchange: AnyExchange, clients: Iterable[int] | None = None) -> Answer:
        """Ask a question."""


class Diagnose:
    """A callback that adds the proof's quantities to the rows of every n-th round and of the last.

    After the round from x^r to x^{r+1}, the row has these columns; docs/theory.md says more.

        gradient_norm2       |∇f(x^r)|²
        momentum_error       E_r = |∇f(x^r) - g^{r+1}|²
        gradient_angle       degrees between the step x^r - x^{r+1} and ∇f(x^r)
        control_error        V_{r+1} = mean_i |c_i^{r+1} - ∇f_i(x^r)|², where clients keep c_i
        client_drift         U_{r+1} = mean_i mean_k |x_i^{r+1,k} - x^{r+1}|², of the round that follows, by all clients
        first_step_norm2     Ξ_{r+1} = mean_i |E[x_i^{r+1,1} - x^{r+1}]|², likewise
        diagnosis_gradients  what these numbers cost, in minibatch gradients; the run's own count does not contain them

    >>> import kedge
    >>> model, federation = kedge.build_model("logistic", (64,), 10), kedge.load_federation("digits", clients=10)
    >>> look = [kedge.theory.Diagnose(every=2)]
    >>> result = kedge.simulate(model, federation, kedge.FedAvgM(eta=0.1), rounds=4, cohort=5, callbacks=look)
    >>> "momentum_error" in result.history[1]
    True
    """

    def __init__(self, every: int = 1) -> None:
        self.every = whole("every", every, 1)
        self._x: Tensor | None = None

    def on_start(self, run: Run) -> None:
        """Note the first model."""
        self._x = run.server["x"]

    def on_evaluate(self, run: Run, row: MutableMapping[str, Any]) -> None:
        """Add the columns."""
        if self._x is not None and (run.round % self.every == 0 or run.round == run.rounds):
            row.update(quantities(run, self._x))

    def on_round(self, run: Run) -> None:
        """Note the model before the next round."""
        self._x = run.server["x"]


def quantities(run: Run, before: Vector) -> dict[str, float]:
    """Return the columns of `Diagnose` for a run whose last round started at ``before``."""
    found: dict[str, float] = {}
    asked: list[Answer] = []

    def number(question: AnyExchange) -> float:
        asked.append(run.ask(question))
        return float(asked[-1].mean["value"])

    asked.append(run.ask(FullGradient(at=before)))
    gradient = asked[0].mean["gradient"]
    found["gradient_norm2"] = _square(gradient)
    step = before - run.server["x"]
    momentum = _momentum(run.simulation, run.server, step)
    if momentum is not None:
        found["momentum_error"] = _square(gradient - momentum)
    if (norms := math.sqrt(_square(step) * _square(gradient))) > 0:
        found["gradient_angle"] = math.degrees(math.acos(max(-1.0, min(1.0, _dot(step, gradient) / norms))))
    simulation = run.simulation
    if "c_i" in simulation.algorithm.init_client(before)._fields:
        found["control_error"] = number(ControlError(before))
    exchange = _exchange(simulation)
    if exchange is not None:
        drifts = {k: number(Drift(exchange, k)) for k in sampled_steps(simulation.settings.local_steps)}
        found["client_drift"] = mean_drift(drifts, simulation.settings.local_steps)
        found["first_step_norm2"] = number(FirstStep(exchange))
    found["diagnosis_gradients"] = sum(answer.gradients for answer in asked)
    return found


def sampled_steps(steps: int) -> list[int]:
    """Return after which of the steps 1 .. K-1 to measure the drift."""
    last = steps - 1
    if steps <= EXACT_DRIFT:
        return list(range(1, steps))
    return sorted({1, *(round(last * place / 5) for place in range(1, 6))})


def mean_drift(drifts: Mapping[int, float], steps: int) -> float:
    """Return mean_k over k = 0 .. K-1 from some of them: between two, the distance is linear in k."""
    known = [0, *drifts]
    distances = torch.tensor([0.0, *(math.sqrt(max(value, 0.0)) for value in drifts.values())], dtype=torch.float64)
    total = 0.0
    for k in range(steps):
        right = next((place for place, step in enumerate(known) if step >= k), len(known) - 1)
        left = max(right - 1, 0)
        share = 0.0 if right == left else (k - known[left]) / (known[right] - known[left])
        total += float(distances[left] + share * (distances[right] - distances[left])) ** 2
    return total / steps


def _exchange(simulation: Simulation) -> AnyExchange | None:
    """Return the exchange of the next round, if there is a single one and all clients take the same K steps in it."""
    algorithm = simulation.algorithm.at(simulation.round)
    exchanges = algorithm.exchanges(simulation.round, simulation.settings.seed)
    steps = simulation.settings.local_steps
    alone = len(exchanges) == 1 and simulation.settings.local_epochs is None
    return exchanges[0] if alone and exchanges[0].effort(Effort(steps)).steps == steps else None


def _momentum(simulation: Simulation, server: Mapping[str, Tensor], step: Vector) -> Vector | None:
    """Return g^{r+1}: what the server keeps, or its step divided by its rate; None if it has no such rate."""
    if "g" in server:
        return server["g"]
    algorithm = simulation.algorithm.at(simulation.round - 1)
    if not hasattr(algorithm, "gamma"):
        return None
    steps = simulation.settings.steps(simulation.federation.sizes).mean()
    rate = algorithm.eta * float(steps) if algorithm.gamma is None else algorithm.gamma
    return step / rate


def _square(vector: Vector) -> float:
    return _dot(vector, vector)


def _dot(one: Vector, other: Vector) -> float:
    """Return the inner product, the same to the bit with any number of threads."""
    return float((one.double() * other.double()).cpu().numpy().sum())
