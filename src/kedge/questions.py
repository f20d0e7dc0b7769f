"""Questions to put to a federation with `ask`: exchanges of no algorithm, which leave no trace in a run."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from kedge.direction import GRAD, Direction, Vector
from kedge.exchange import Effort, Exchange, Heard, Local


class Point(NamedTuple):
    """Where a gradient is wanted."""

    x: Vector


class Gradient(NamedTuple):
    """A gradient, weight decay included."""

    gradient: Vector


@dataclass(frozen=True, eq=False)
class FullGradient(Exchange[Any, Any, Point, Gradient]):
    """∇f_i of each client's whole data, by default at the server's model; the mean over all clients is ∇f.

    >>> run.ask(kedge.FullGradient()).mean["gradient"]
    """

    at: Vector | None = None

    cohort = "everyone"

    def broadcast(self, server: Any) -> Point:
        """Say where."""
        return Point(server.x if self.at is None else self.at)

    def direction(self, down: Point, client: Any) -> Direction:
        """Take the gradient there."""
        return GRAD

    def reply(self, down: Point, client: Any, local: Local) -> tuple[Gradient, Any]:
        """Reply with it; the state stays."""
        return Gradient(local.mean_direction), client

    def fold(self, server: Any, up: Gradient, heard: Heard) -> Any:
        """Change nothing."""
        return server

    def effort(self, base: Effort) -> Effort:
        """One step on all of a client's samples."""
        return Effort(steps=1, minibatches=None)
