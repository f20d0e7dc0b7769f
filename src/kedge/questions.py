"""Questions to put to a federation with `ask`: exchanges that belong to no algorithm and leave no trace in a run."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from kedge.direction import GRAD, Direction, Vector
from kedge.exchange import Effort, Exchange, Heard, Local


class Point(NamedTuple):
    """The point at which to take a gradient."""

    x: Vector


class Gradient(NamedTuple):
    """A gradient, including weight decay."""

    gradient: Vector


@dataclass(frozen=True, eq=False)
class FullGradient(Exchange[Any, Any, Point, Gradient]):
    """∇f_i of each client's whole data, by default at the server's model; the mean over all clients is ∇f.

    >>> run.ask(kedge.FullGradient()).mean["gradient"]
    """

    at: Vector | None = None

    cohort = "everyone"

    def broadcast(self, server: Any) -> Point:
        """Send the point."""
        return Point(server.x if self.at is None else self.at)

    def direction(self, down: Point, client: Any) -> Direction:
        """Take the gradient at the point."""
        return GRAD

    def reply(self, down: Point, client: Any, local: Local) -> tuple[Gradient, Any]:
        """Reply with the gradient; the state stays the same."""
        return Gradient(local.mean_direction), client

    def fold(self, server: Any, up: Gradient, heard: Heard) -> Any:
        """Change nothing."""
        return server

    def effort(self, base: Effort) -> Effort:
        """Take one step on all of the client's samples."""
        return Effort(steps=1, minibatches=None)
