"""Recursive gradient estimates on the server: MB-STORM and CE-LSGD, Patel et al. 2022; BVR-L-SGD, Murata and Suzuki
2021, which is the case β = 0 with restarts.

All estimate the gradient from the whole cohort, v_r = mean_i u_i + (1-β) v_{r-1} with
u_i = mean_k [∇F(x^r; ξ_k) - (1-β) ∇F(x^{r-1}; ξ_k)], and v_0 a large batch over all clients.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from kedge.algorithm import Algorithm, hyper, hyper_gamma, hyper_opening, server_rate
from kedge.algorithms.exchanges import MeanGradient, stay
from kedge.algorithms.messages import Displacement, MeanDirection, Model, TwoModels
from kedge.direction import GRAD, LAST_GRAD, Direction, Vector, grad_at, last_direction
from kedge.exchange import Cohort, Effort, Exchange, Heard, Local, Nothing


class Storm(NamedTuple):
    """The server: v estimates the gradient at x^r once the round has asked for it."""

    x: Vector
    x_prev: Vector
    v: Vector


class ModelAndGradient(NamedTuple):
    """x^r and v_r."""

    x: Vector
    v: Vector


def hyper_storm_beta() -> Any:
    """Declare the momentum of a recursive estimate, where 0 is a plain recursion."""
    return hyper(0.1, help="weight of the new gradient: 1 forgets the old, 0 only recurs", at_least=0, at_most=1)


@dataclass(frozen=True)
class MBStorm(Algorithm[Storm, Nothing]):
    """Minibatch STORM: K minibatches per client go into one gradient estimate (a baseline of Patel et al. 2022).

    Use it where drift is the problem and communication is not: no client takes local steps, so none drifts.

        local direction  u_i = mean_k [∇F(x^r; ξ_k) - (1-β) ∇F(x^{r-1}; ξ_k)]
        server           v_r = mean_i u_i + (1-β) v_{r-1}
                         x^{r+1} = x^r - γ v_r
        start            v_0 is the mean of B minibatch gradients at x^0 on every client

    >>> import kedge
    >>> model, federation = kedge.build_model("mlp", (64,), 10), kedge.load_federation("digits", clients=10)
    >>> result = kedge.simulate(model, federation, kedge.MBStorm(eta=0.1, opening_batches=8), rounds=2, cohort=5)
    >>> list(result.server)
    ['x', 'x_prev', 'v']
    """

    beta: float = hyper_storm_beta()
    gamma: float | None = hyper_gamma()
    opening_batches: int = hyper_opening(at_least=1)

    def init_server(self, x: Vector) -> Storm:
        return Storm(x, x_prev=x, v=0 * x)

    def opening(self) -> tuple[Exchange[Storm, Nothing, Model, MeanDirection], ...]:
        return (MeanGradient("v", self.opening_batches, then=self.step),)

    def exchanges(self, round: int, seed: int) -> tuple[Exchange[Storm, Nothing, TwoModels, MeanDirection], ...]:
        # The opening gave v_0 and took the step of round 0.
        return (Estimate(self.beta, then=self.step),) if round else ()

    def step(self, server: Storm, heard: Heard) -> Storm:
        """x^{r+1} = x^r - gamma v_r."""
        x = server.x - server_rate(self.gamma, self.eta, heard) * server.v
        return Storm(x, x_prev=server.x, v=server.v)


@dataclass(frozen=True)
class CELSGD(Algorithm[Storm, Nothing]):
    """CE-LSGD: the estimate of MB-STORM, then K SARAH steps on one client of the cohort (Patel et al. 2022).

    Use it where the clients' Hessians are similar: one client's steps then serve all.

        local direction  u_0 = v_r, then u_k = u_{k-1} + ∇F(w_k; ξ_k) - ∇F(w_{k-1}; ξ_k),
                         with w_{k+1} = w_k - η u_k from w_0 = x^r
        server           v_r = mean_i mean_k [∇F(x^r; ξ_k) - (1-β) ∇F(x^{r-1}; ξ_k)] + (1-β) v_{r-1},
                         then x^{r+1} = w_K from one client
        start            v_0 is the mean of B minibatch gradients at x^0 on every client

    >>> import kedge
    >>> model, federation = kedge.build_model("mlp", (64,), 10), kedge.load_federation("digits", clients=10)
    >>> result = kedge.simulate(model, federation, kedge.CELSGD(eta=0.05, opening_batches=8), rounds=2, cohort=5)
    >>> list(result.server)
    ['x', 'x_prev', 'v']
    """

    beta: float = hyper_storm_beta()
    opening_batches: int = hyper_opening(at_least=1)
    output: str = hyper("one", help="who runs the local steps", choices=("one", "average"))

    def init_server(self, x: Vector) -> Storm:
        return Storm(x, x_prev=x, v=0 * x)

    def opening(self) -> tuple[Exchange[Storm, Nothing, Model, MeanDirection], ...]:
        return (MeanGradient("v", self.opening_batches),)

    def exchanges(self, round: int, seed: int) -> tuple[Exchange[Storm, Nothing, Any, Any], ...]:
        local = RecursiveSteps("first" if self.output == "one" else "sampled")
        return (Estimate(self.beta), local) if round else (local,)


@dataclass(frozen=True)
class BVRLSGD(Algorithm[Storm, Nothing]):
    """BVR-L-SGD: CE-LSGD in stages that each begin with a large batch, and β = 0 (Murata and Suzuki 2021).

    Use it where all clients take part and an occasional large batch is cheap.

        local direction  u_0 = v_r, then u_k = u_{k-1} + ∇F(w_k; ξ_k) - ∇F(w_{k-1}; ξ_k),
                         with w_{k+1} = w_k - η u_k from w_0 = x^r
        server           v_r = v_{r-1} + mean_i mean_k [∇F(x^r; ξ_k) - ∇F(x^{r-1}; ξ_k)],
                         but when a stage begins the mean of B minibatch gradients at x^r on every client,
                         then x^{r+1} = w_K from one client

    >>> import kedge
    >>> model, federation = kedge.build_model("mlp", (64,), 10), kedge.load_federation("digits", clients=10)
    >>> result = kedge.simulate(model, federation, kedge.BVRLSGD(eta=0.05, stage_rounds=10), rounds=2, cohort=None)
    >>> list(result.server)
    ['x', 'x_prev', 'v']
    """

    full_participation = True

    stage_rounds: int = hyper(20, help="rounds per stage; each stage starts from a new large batch", at_least=1)
    opening_batches: int = hyper(16, help="minibatches per client in the large batch", at_least=1)

    def init_server(self, x: Vector) -> Storm:
        return Storm(x, x_prev=x, v=0 * x)

    def opening(self) -> tuple[Exchange[Storm, Nothing, Model, MeanDirection], ...]:
        return (MeanGradient("v", self.opening_batches),)

    def exchanges(self, round: int, seed: int) -> tuple[Exchange[Storm, Nothing, Any, Any], ...]:
        local = RecursiveSteps("first")
        if round == 0:
            return (local,)
        begins = round % self.stage_rounds == 0
        return (MeanGradient("v", self.opening_batches) if begins else Estimate(beta=0), local)


@dataclass(frozen=True)
class Estimate(Exchange[Storm, Nothing, TwoModels, MeanDirection]):
    """v_r = mean_i u_i + (1-β) v_{r-1}: the K minibatches of a round, each at x^r and at x^{r-1}."""

    beta: float
    then: Callable[[Storm, Heard], Storm] = stay

    def effort(self, base: Effort) -> Effort:
        return Effort(steps=1, minibatches=base.steps)

    def broadcast(self, server: Storm) -> TwoModels:
        return TwoModels(server.x, server.x_prev)

    def direction(self, down: TwoModels, client: Nothing) -> Direction:
        return GRAD - (1 - self.beta) * grad_at(down.x_prev)

    def reply(self, down: TwoModels, client: Nothing, local: Local) -> tuple[MeanDirection, Nothing]:
        return MeanDirection(local.mean_direction), client

    def fold(self, server: Storm, up: MeanDirection, heard: Heard) -> Storm:
        return self.then(server._replace(v=up.direction + (1 - self.beta) * server.v), heard)


@dataclass(frozen=True)
class RecursiveSteps(Exchange[Storm, Nothing, ModelAndGradient, Displacement]):
    """SARAH from (x^r, v_r): u_0 = v_r, u_k = u_{k-1} + ∇F(w_k; ξ_k) - ∇F(w_{k-1}; ξ_k), w_{k+1} = w_k - eta u_k."""

    cohort: Cohort

    def broadcast(self, server: Storm) -> ModelAndGradient:
        return ModelAndGradient(server.x, server.v)

    def direction(self, down: ModelAndGradient, client: Nothing) -> Direction:
        return last_direction(first=down.v) + GRAD - LAST_GRAD

    def reply(self, down: ModelAndGradient, client: Nothing, local: Local) -> tuple[Displacement, Nothing]:
        return Displacement(local.displacement), client

    def fold(self, server: Storm, up: Displacement, heard: Heard) -> Storm:
        return Storm(x=server.x - up.displacement, x_prev=server.x, v=server.v)
