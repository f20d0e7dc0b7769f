"""Exchanges that several algorithms share: a gradient query, and plain local training."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kedge.algorithms.messages import Displacement, MeanDirection, Model
from kedge.direction import GRAD, Direction, Vector
from kedge.exchange import Cohort, Effort, Exchange, Heard, Local, Nothing


def stay(server: Any, heard: Heard) -> Any:
    """Leave x where it is: another exchange will move it."""
    return server


@dataclass(frozen=True)
class MeanGradient(Exchange[Any, Any, Model, MeanDirection]):
    """The mean of the clients' gradients at x^r: it becomes the server's vector ``field``, then ``then`` acts."""

    field: str
    minibatches: int | None  # B per client; None: its whole data
    cohort: Cohort = "everyone"
    then: Callable[[Any, Heard], Any] = stay

    def effort(self, base: Effort) -> Effort:
        return Effort(steps=1, minibatches=self.minibatches)

    def broadcast(self, server: Any) -> Model:
        return Model(server.x)

    def direction(self, down: Model, client: Any) -> Direction:
        return GRAD

    def reply(self, down: Model, client: Any, local: Local) -> tuple[MeanDirection, Any]:
        return MeanDirection(local.mean_direction), client

    def fold(self, server: Any, up: MeanDirection, heard: Heard) -> Any:
        return self.then(server._replace(**{self.field: up.direction}), heard)


@dataclass(frozen=True)
class LocalTraining(Exchange[Any, Nothing, Model, Displacement]):
    """The exchange of FedAvg: K steps from x^r, and ``then`` takes the mean over the cohort of x^r - x_i^{r,K}."""

    then: Callable[[Any, Vector, Heard], Any]
    along: Direction = GRAD

    def broadcast(self, server: Any) -> Model:
        return Model(server.x)

    def direction(self, down: Model, client: Nothing) -> Direction:
        return self.along

    def reply(self, down: Model, client: Nothing, local: Local) -> tuple[Displacement, Nothing]:
        return Displacement(local.displacement), client

    def fold(self, server: Any, up: Displacement, heard: Heard) -> Any:
        return self.then(server, up.displacement, heard)
