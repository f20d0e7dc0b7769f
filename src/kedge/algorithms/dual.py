"""Dual variables that learn the clients' gradients: FedDyn, Acar et al. 2021, and FedPD, Zhang et al. 2021.

q_i is FedDyn's running gradient, and h its mean over all N clients; λ_i = -q_i is FedPD's multiplier, x_{0,i} its
anchor, and alpha is that paper's 1/η.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from kedge.algorithm import Algorithm, SingleExchange, hyper
from kedge.algorithms.messages import Displacement, Model
from kedge.direction import DISPLACEMENT, GRAD, Direction, Vector
from kedge.exchange import Exchange, Heard, Local, Nothing
from kedge.keyed import SKIP, keyed


def hyper_alpha() -> Any:
    """Declare the weight of the quadratic penalty."""
    return hyper(0.1, help="weight of the quadratic penalty, and rate of the dual variables", above=0)


class Dynamic(NamedTuple):
    """The server of FedDyn."""

    x: Vector
    h: Vector


class RunningGradient(NamedTuple):
    """A client of FedDyn."""

    q_i: Vector


@dataclass(frozen=True)
class FedDyn(SingleExchange[Dynamic, RunningGradient, Model, Displacement]):
    """FedDyn: dynamic regularisation, K steps on f_i(y) - <q_i, y> + α/2 |y - x^r|² (Acar et al. 2021).

    Use it where clients differ and few take part; it sends one vector each way. A small α can be unstable with few
    clients.

        local direction  g_i^{r,k} = ∇F(x_i^{r,k}; ξ) - q_i^r + α (x_i^{r,k} - x^r)
        client           q_i^{r+1} = q_i^r + α (x^r - x_i^{r,K})
        server           h^{r+1} = h^r + α (S/N) mean_i (x^r - x_i^{r,K})
                         x^{r+1} = mean_i x_i^{r,K} - h^{r+1}/α
        start            q_i^0 = 0, h^0 = 0

    >>> import kedge
    >>> model, federation = kedge.build_model("mlp", (64,), 10), kedge.load_federation("digits", clients=10)
    >>> result = kedge.simulate(model, federation, kedge.FedDyn(eta=0.1, alpha=0.1), rounds=2, cohort=5)
    >>> list(result.server)
    ['x', 'h']
    """

    any_solver = True

    alpha: float = hyper_alpha()

    def init_server(self, x: Vector) -> Dynamic:
        return Dynamic(x, h=0 * x)

    def init_client(self, x: Vector) -> RunningGradient:
        return RunningGradient(q_i=0 * x)

    def broadcast(self, server: Dynamic) -> Model:
        return Model(server.x)

    def direction(self, down: Model, client: RunningGradient) -> Direction:
        return GRAD - client.q_i + self.alpha * DISPLACEMENT

    def reply(self, down: Model, client: RunningGradient, local: Local) -> tuple[Displacement, RunningGradient]:
        return Displacement(local.displacement), RunningGradient(client.q_i + self.alpha * local.displacement)

    def fold(self, server: Dynamic, up: Displacement, heard: Heard) -> Dynamic:
        h = server.h + self.alpha * heard.share * up.displacement
        return Dynamic(x=server.x - up.displacement - h / self.alpha, h=h)


class PrimalDual(NamedTuple):
    """A client of FedPD."""

    x: Vector  # the last average it has heard
    x_0i: Vector  # its own x_{0,i}^+
    lambda_i: Vector


def communicates(seed: int, round: int, skip: float) -> bool:
    """Draw, from the run's seed and the round, whether the round averages, with probability 1 - ``skip``."""
    return bool(keyed(seed, SKIP, round).random() >= skip)


@dataclass(frozen=True)
class FedPD(Algorithm[Model, PrimalDual]):
    """FedPD: primal-dual steps of all clients, which may skip the average of their anchors (Zhang et al. 2021).

    Use it where all clients always take part; skip averages only if the clients are similar.

        local direction  g_i^{r,k} = ∇F(x_i^{r,k}; ξ) + λ_i^r + α (x_i^{r,k} - x_{0,i}^r),
                         started at the anchor x_{0,i}^r
        client           λ_i^{r+1} = λ_i^r + α (x_i^{r,K} - x_{0,i}^r)
                         x_{0,i}^+ = x_i^{r,K} + λ_i^{r+1}/α
        server           with probability 1 - p all anchors become x^{r+1} = mean_i x_{0,i}^+,
                         else each client keeps its own; p is ``skip``
        start            x_{0,i}^0 = x^0, λ_i^0 = 0

    >>> import kedge
    >>> model, federation = kedge.build_model("mlp", (64,), 10), kedge.load_federation("digits", clients=10)
    >>> result = kedge.simulate(model, federation, kedge.FedPD(eta=0.1, alpha=0.5, skip=0.2), rounds=2, cohort=None)
    >>> list(result.server)
    ['x']
    """

    full_participation = True
    any_solver = True

    alpha: float = hyper_alpha()
    skip: float = hyper(0.0, help="probability p of a round without communication", at_least=0, at_most=1, fixed=True)

    def init_server(self, x: Vector) -> Model:
        return Model(x)

    def init_client(self, x: Vector) -> PrimalDual:
        return PrimalDual(x, x_0i=x, lambda_i=0 * x)

    def exchanges(self, round: int, seed: int) -> tuple[Exchange[Model, PrimalDual, Any, Any], ...]:
        hears = round == 0 or communicates(seed, round - 1, self.skip)
        return (PrimalDualSteps(self.alpha, hears, tells=communicates(seed, round, self.skip)),)


@dataclass(frozen=True)
class PrimalDualSteps(Exchange[Model, PrimalDual, Any, Any]):
    """K steps on f_i(y) + <λ_i, y - x_{0,i}> + alpha/2 |y - x_{0,i}|² from x_{0,i}, then λ_i and x_{0,i}^+."""

    alpha: float
    hears: bool  # the last round averaged the anchors: x_{0,i} = x^r comes down
    tells: bool  # this round will do so: x_{0,i}^+ goes up

    def broadcast(self, server: Model) -> Model | Nothing:
        return server if self.hears else Nothing()

    def start(self, down: Any, client: PrimalDual) -> Vector:
        x: Vector = down.x if self.hears else client.x_0i
        return x

    def direction(self, down: Any, client: PrimalDual) -> Direction:
        return GRAD + client.lambda_i + self.alpha * DISPLACEMENT

    def reply(self, down: Any, client: PrimalDual, local: Local) -> tuple[Displacement | Nothing, PrimalDual]:
        x = local.start if self.hears else client.x
        lambda_i = client.lambda_i - self.alpha * local.displacement
        x_0i = local.x + lambda_i / self.alpha
        return Displacement(x - x_0i) if self.tells else Nothing(), PrimalDual(x, x_0i, lambda_i)

    def fold(self, server: Model, up: Any, heard: Heard) -> Model:
        return Model(x=server.x - up.displacement) if self.tells else server
