"""STEM, Khanduri et al. 2021: the recursive direction of STORM on every client, averaged together with the model.

β is their a_t and K their I. One iteration of the paper is a step here:

    d_i <- ∇F(x_i; ξ) + (1-β)(d_i - ∇F(x_i^old; ξ)),   x_i^old <- x_i,   x_i <- x_i - eta d_i.

The step that follows the K-th direction is taken after the average, by everyone along the mean direction.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from kedge.algorithm import SingleExchange, hyper, hyper_opening
from kedge.algorithms.exchanges import MeanGradient
from kedge.algorithms.storm import hyper_storm_beta
from kedge.direction import GRAD, Direction, Vector, last_direction, last_grad
from kedge.exchange import Exchange, Heard, Local


class Synchronized(NamedTuple):
    """The server: the mean model and the mean direction."""

    x: Vector
    d: Vector


class Own(NamedTuple):
    """A client: its own model as it was before the average."""

    x_i: Vector


class ModelAndDirection(NamedTuple):
    """x^r - x_i and d_i."""

    displacement: Vector
    d: Vector


@dataclass(frozen=True)
class Stem(SingleExchange[Synchronized, Own, Synchronized, ModelAndDirection]):
    """STEM: a recursive direction on every client, averaged together with the model (Khanduri et al. 2021).

    Use it where noise dominates and all clients take part; it takes two gradients of every minibatch.

        local direction  d_i = ∇F(x_i; ξ) + (1-β) (d_i^old - ∇F(x_i^old; ξ)), where old is one local step earlier;
                         a round starts at x^r - η d^r, and the K-th direction moves no client yet
        client           keeps x_i as it was before the average: x_i^old of the first step of the next round
        server           x^{r+1} = mean_i x_i
                         d^{r+1} = mean_i d_i
        start            d^0 is the mean of B minibatch gradients at x^0 on every client

    >>> import kedge
    >>> model, federation = kedge.build_model("mlp", (64,), 10), kedge.load_federation("digits", clients=10)
    >>> result = kedge.simulate(model, federation, kedge.Stem(eta=0.1, beta=0.2), rounds=2, cohort=None)
    >>> list(result.server)
    ['x', 'd']
    """

    full_participation = True

    beta: float = hyper_storm_beta()
    opening_batches: int = hyper_opening()
    reference: str = hyper(
        "local", help="the old model after an average: the client's own, or the average", choices=("local", "average")
    )

    def init_server(self, x: Vector) -> Synchronized:
        return Synchronized(x, d=0 * x)

    def init_client(self, x: Vector) -> Own:
        return Own(x_i=x)

    def opening(self) -> tuple[Exchange[Synchronized, Own, Any, Any], ...]:
        return (MeanGradient("d", self.opening_batches),) if self.opening_batches else ()

    def broadcast(self, server: Synchronized) -> Synchronized:
        return server

    def start(self, down: Synchronized, client: Own) -> Vector:
        return down.x - self.eta * down.d

    def direction(self, down: Synchronized, client: Own) -> Direction:
        x_old = client.x_i if self.reference == "local" else down.x
        return GRAD + (1 - self.beta) * (last_direction(first=down.d) - last_grad(first=x_old))

    def reply(self, down: Synchronized, client: Own, local: Local) -> tuple[ModelAndDirection, Own]:
        x_i = local.x + self.eta * local.last_direction  # the K-th direction does not move anyone yet
        return ModelAndDirection(down.x - x_i, local.last_direction), Own(x_i)

    def fold(self, server: Synchronized, up: ModelAndDirection, heard: Heard) -> Synchronized:
        return Synchronized(x=server.x - up.displacement, d=up.d)
