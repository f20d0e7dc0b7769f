"""FedProx, Li et al. 2020, and FedNova, Wang et al. 2020: other local objectives, other numbers of local steps."""

from dataclasses import dataclass
from typing import NamedTuple

from kedge.algorithm import Algorithm, SingleExchange, hyper, hyper_gamma, server_rate
from kedge.algorithms.exchanges import LocalTraining
from kedge.algorithms.messages import Model
from kedge.direction import DISPLACEMENT, GRAD, Direction, Vector
from kedge.exchange import Heard, Local, Nothing


@dataclass(frozen=True)
class FedProx(Algorithm[Model, Nothing]):
    """FedProx: FedAvg whose clients take K steps on f_i(y) + μ/2 |y - x^r|² (Li et al. 2020).

    Use it against instability from many local steps; the limit stays biased.

        local direction  g_i^{r,k} = ∇F(x_i^{r,k}; ξ) + μ (x_i^{r,k} - x^r)
        server           g^{r+1} = mean_i (x^r - x_i^{r,K}) / (ηK)
                         x^{r+1} = x^r - γ g^{r+1}

    >>> import kedge
    >>> model, federation = kedge.build_model("mlp", (64,), 10), kedge.load_federation("digits", clients=10)
    >>> result = kedge.simulate(model, federation, kedge.FedProx(eta=0.1, mu=0.1), rounds=2, cohort=5)
    >>> list(result.server)
    ['x']
    """

    any_solver = True

    mu: float = hyper(0.01, help="weight of the proximal term; 0 is FedAvg", at_least=0)
    gamma: float | None = hyper_gamma()

    def init_server(self, x: Vector) -> Model:
        return Model(x)

    def exchanges(self, round: int, seed: int) -> tuple[LocalTraining]:
        return (LocalTraining(self.step, along=GRAD + self.mu * DISPLACEMENT),)

    def step(self, server: Model, displacement: Vector, heard: Heard) -> Model:
        """x^{r+1} = x^r - gamma g^{r+1}."""
        g = displacement / (self.eta * heard.local_steps)
        return Model(x=server.x - server_rate(self.gamma, self.eta, heard) * g)


class Normalized(NamedTuple):
    """d_i = (x^r - x_i^{r,K_i}) / (eta K_i), and K_i."""

    direction: Vector
    steps: Vector  # one number


@dataclass(frozen=True)
class FedNova(SingleExchange[Model, Nothing, Model, Normalized]):
    """FedNova: normalised averaging, in which more local steps give no more weight (Wang et al. 2020).

    Use it where clients take different numbers K_i of local steps, as with ``local_epochs``.

        local direction  g_i^{r,k} = ∇F(x_i^{r,k}; ξ), for K_i steps
        server           x^{r+1} = x^r - η τ mean_i d_i with d_i = (x^r - x_i^{r,K_i}) / (η K_i) and τ = mean_i K_i

    >>> import kedge
    >>> model, federation = kedge.build_model("mlp", (64,), 10), kedge.load_federation("digits", clients=10)
    >>> result = kedge.simulate(model, federation, kedge.FedNova(eta=0.1), rounds=2, local_epochs=1)
    >>> list(result.server)
    ['x']
    """

    any_solver = True

    def init_server(self, x: Vector) -> Model:
        return Model(x)

    def broadcast(self, server: Model) -> Model:
        return server

    def direction(self, down: Model, client: Nothing) -> Direction:
        return GRAD

    def reply(self, down: Model, client: Nothing, local: Local) -> tuple[Normalized, Nothing]:
        return Normalized(local.mean_direction, local.steps), client

    def fold(self, server: Model, up: Normalized, heard: Heard) -> Model:
        tau_eff = up.steps
        return Model(x=server.x - self.eta * tau_eff * up.direction)
