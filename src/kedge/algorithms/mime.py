"""MIME: Karimireddy et al. 2020, "Mime: Mimicking Centralized Stochastic Algorithms in Federated Learning".

The server keeps a momentum m of full-batch gradients at its own models, and the clients do not change it during their
local steps. The first exchange of a round asks for the full-batch gradients, the second trains; the server's rate
is gamma = eta K. Mime, unlike MimeLite, replaces ∇F(y; ξ) by ∇F(y; ξ) - ∇F(x^r; ξ) + mean_i ∇f_i(x^r).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from kedge.algorithm import Algorithm, hyper, hyper_beta
from kedge.algorithms.exchanges import MeanGradient
from kedge.algorithms.messages import Displacement, TwoModels
from kedge.direction import GRAD, Direction, Vector, grad_at
from kedge.exchange import Effort, Exchange, Heard, Local, Nothing


class Statistic(NamedTuple):
    """The server of MimeLite and Mime."""

    x: Vector
    m: Vector
    grad: Vector  # the mean over the cohort of ∇f_i(x^r), once the round has asked for it


class ModelAndMomentum(NamedTuple):
    """x^r and m^r."""

    x: Vector
    m: Vector


@dataclass(frozen=True)
class MimeLite(Algorithm[Statistic, Nothing], Exchange[Statistic, Nothing, ModelAndMomentum, Displacement]):
    """MimeLite: a momentum of full-batch gradients in the local steps (Karimireddy et al. 2020).

    Use it where clients differ, keep no state, and can afford a full pass over their data in every round.

        local direction  g_i^{r,k} = β ∇F(x_i^{r,k}; ξ) + (1-β) m^r
        server           m^{r+1} = β mean_i ∇f_i(x^r) + (1-β) m^r
                         x^{r+1} = mean_i x_i^{r,K}
        start            m^0 = 0

    >>> import kedge
    >>> model, federation = kedge.build_model("mlp", (64,), 10), kedge.load_federation("digits", clients=10)
    >>> result = kedge.simulate(model, federation, kedge.MimeLite(eta=0.5, beta=0.2), rounds=2, cohort=5)
    >>> list(result.server)
    ['x', 'm', 'grad']
    """

    beta: float = hyper_beta()

    def init_server(self, x: Vector) -> Statistic:
        return Statistic(x, m=0 * x, grad=0 * x)

    def exchanges(self, round: int, seed: int) -> tuple[Exchange[Statistic, Nothing, Any, Any], ...]:
        return (MeanGradient("grad", None, "sampled"), self)

    def broadcast(self, server: Statistic) -> ModelAndMomentum:
        return ModelAndMomentum(server.x, server.m)

    def direction(self, down: ModelAndMomentum, client: Nothing) -> Direction:
        return self.beta * GRAD + (1 - self.beta) * down.m

    def reply(self, down: ModelAndMomentum, client: Nothing, local: Local) -> tuple[Displacement, Nothing]:
        return Displacement(local.displacement), client

    def fold(self, server: Statistic, up: Displacement, heard: Heard) -> Statistic:
        m = self.beta * server.grad + (1 - self.beta) * server.m
        return server._replace(x=server.x - up.displacement, m=m)


@dataclass(frozen=True)
class Mime(Algorithm[Statistic, Nothing], Exchange[Statistic, Nothing, Statistic, Displacement]):
    """Mime: MimeLite with gradients corrected as in SVRG (Karimireddy et al. 2020).

    Use it where drift must vanish and all clients take part but keep no state; it takes two gradients per minibatch.

        local direction  g_i^{r,k} = β (∇F(x_i^{r,k}; ξ) - ∇F(x^r; ξ) + mean_i ∇f_i(x^r)) + (1-β) m^r
        server           m^{r+1} = β mean_i ∇f_i(x^r) + (1-β) m^r
                         x^{r+1} = mean_i x_i^{r,K}
        start            m^0 = 0

    >>> import kedge
    >>> model, federation = kedge.build_model("mlp", (64,), 10), kedge.load_federation("digits", clients=10)
    >>> result = kedge.simulate(model, federation, kedge.Mime(eta=0.5, beta=0.2), rounds=2)
    >>> list(result.server)
    ['x', 'm', 'grad']
    """

    beta: float = hyper_beta()

    def init_server(self, x: Vector) -> Statistic:
        return Statistic(x, m=0 * x, grad=0 * x)

    def exchanges(self, round: int, seed: int) -> tuple[Exchange[Statistic, Nothing, Any, Any], ...]:
        return (MeanGradient("grad", None, "sampled"), self)

    def broadcast(self, server: Statistic) -> Statistic:
        return server

    def direction(self, down: Statistic, client: Nothing) -> Direction:
        return self.beta * (GRAD - grad_at(down.x) + down.grad) + (1 - self.beta) * down.m

    def reply(self, down: Statistic, client: Nothing, local: Local) -> tuple[Displacement, Nothing]:
        return Displacement(local.displacement), client

    def fold(self, server: Statistic, up: Displacement, heard: Heard) -> Statistic:
        m = self.beta * server.grad + (1 - self.beta) * server.m
        return server._replace(x=server.x - up.displacement, m=m)


class LiteRecursion(NamedTuple):
    """The server of MimeLiteMVR."""

    x: Vector
    x_prev: Vector
    m: Vector
    change: Vector  # the mean over the cohort of ∇f_i(x^r) - (1-β) ∇f_i(x^{r-1}), once the round has asked for it


class Recursion(NamedTuple):
    """The server of MimeMVR."""

    x: Vector
    x_prev: Vector
    m: Vector
    change: Vector
    grad: Vector


class LiteTerms(NamedTuple):
    """What a local step of MimeLiteMVR needs."""

    x: Vector
    x_prev: Vector
    m: Vector


class Terms(NamedTuple):
    """What a local step of MimeMVR needs."""

    x: Vector
    x_prev: Vector
    m: Vector
    grad: Vector


def hyper_reference() -> Any:
    """Declare (m, ref) of the local steps; m estimates the gradient at ref."""
    text = "the momentum of the local steps and its point: m^r and x^{r-1}, or m^{r+1} and x^r"
    return hyper("prev", help=text, choices=("prev", "current"))


@dataclass(frozen=True)
class MimeLiteMVR(Algorithm[LiteRecursion, Nothing], Exchange[LiteRecursion, Nothing, LiteTerms, Displacement]):
    """MimeLiteMVR: MimeLite with a recursive momentum (Karimireddy et al. 2020).

    Use it where sampling and local noise both matter and two full passes per round are affordable.
    With ``reference="current"`` the local steps take m^{r+1} and x^r instead of m^r and x^{r-1}.

        local direction  g_i^{r,k} = β ∇F(x_i^{r,k}; ξ) + (1-β) (m^r + ∇F(x_i^{r,k}; ξ) - ∇F(x^{r-1}; ξ))
        server           m^{r+1} = mean_i [∇f_i(x^r) - (1-β) ∇f_i(x^{r-1})] + (1-β) m^r
                         x^{r+1} = mean_i x_i^{r,K}
        start            x^{-1} = x^0; m^0 is the full gradient at x^0

    >>> import kedge
    >>> model, federation = kedge.build_model("mlp", (64,), 10), kedge.load_federation("digits", clients=10)
    >>> result = kedge.simulate(model, federation, kedge.MimeLiteMVR(eta=0.1, beta=0.2), rounds=2, cohort=5)
    >>> list(result.server)
    ['x', 'x_prev', 'm', 'change']
    """

    beta: float = hyper_beta()
    reference: str = hyper_reference()

    def init_server(self, x: Vector) -> LiteRecursion:
        return LiteRecursion(x, x_prev=x, m=0 * x, change=0 * x)

    def opening(self) -> tuple[Exchange[LiteRecursion, Nothing, Any, Any], ...]:
        return (MeanGradient("m", None),)

    def exchanges(self, round: int, seed: int) -> tuple[Exchange[LiteRecursion, Nothing, Any, Any], ...]:
        return (Change(self.beta, with_grad=False), self)

    def broadcast(self, server: LiteRecursion) -> LiteTerms:
        m = server.m if self.reference == "prev" else next_m(server, self.beta)
        return LiteTerms(server.x, server.x_prev, m)

    def direction(self, down: LiteTerms, client: Nothing) -> Direction:
        ref = down.x_prev if self.reference == "prev" else down.x
        return self.beta * GRAD + (1 - self.beta) * (down.m + GRAD - grad_at(ref))

    def reply(self, down: LiteTerms, client: Nothing, local: Local) -> tuple[Displacement, Nothing]:
        return Displacement(local.displacement), client

    def fold(self, server: LiteRecursion, up: Displacement, heard: Heard) -> LiteRecursion:
        return server._replace(x=server.x - up.displacement, x_prev=server.x, m=next_m(server, self.beta))


@dataclass(frozen=True)
class MimeMVR(Algorithm[Recursion, Nothing], Exchange[Recursion, Nothing, Terms, Displacement]):
    """MimeMVR: MimeLiteMVR with gradients corrected as in SVRG (Karimireddy et al. 2020).

    Use it where all clients take part and gradients are cheap compared with rounds: three of every minibatch.
    With ``reference="current"`` the local steps take m^{r+1} and x^r instead of m^r and x^{r-1},
    which saves one of the three gradients.

        local direction  g_i^{r,k} = β (∇F(x_i^{r,k}; ξ) - ∇F(x^r; ξ) + mean_i ∇f_i(x^r))
                                     + (1-β) (m^r + ∇F(x_i^{r,k}; ξ) - ∇F(x^{r-1}; ξ))
        server           m^{r+1} = mean_i [∇f_i(x^r) - (1-β) ∇f_i(x^{r-1})] + (1-β) m^r
                         x^{r+1} = mean_i x_i^{r,K}
        start            x^{-1} = x^0; m^0 is the full gradient at x^0

    >>> import kedge
    >>> model, federation = kedge.build_model("mlp", (64,), 10), kedge.load_federation("digits", clients=10)
    >>> result = kedge.simulate(model, federation, kedge.MimeMVR(eta=0.1, beta=0.2), rounds=2)
    >>> list(result.server)
    ['x', 'x_prev', 'm', 'change', 'grad']
    """

    beta: float = hyper_beta()
    reference: str = hyper_reference()

    def init_server(self, x: Vector) -> Recursion:
        # A copy: in all later rounds x_prev is a different vector from x, and costs another gradient.
        return Recursion(x, x_prev=x.clone(), m=0 * x, change=0 * x, grad=0 * x)

    def opening(self) -> tuple[Exchange[Recursion, Nothing, Any, Any], ...]:
        return (MeanGradient("m", None),)

    def exchanges(self, round: int, seed: int) -> tuple[Exchange[Recursion, Nothing, Any, Any], ...]:
        return (Change(self.beta, with_grad=True), self)

    def broadcast(self, server: Recursion) -> Terms:
        m = server.m if self.reference == "prev" else next_m(server, self.beta)
        return Terms(server.x, server.x_prev, m, server.grad)

    def direction(self, down: Terms, client: Nothing) -> Direction:
        ref = down.x_prev if self.reference == "prev" else down.x
        corrected = GRAD - grad_at(down.x) + down.grad
        return self.beta * corrected + (1 - self.beta) * (down.m + GRAD - grad_at(ref))

    def reply(self, down: Terms, client: Nothing, local: Local) -> tuple[Displacement, Nothing]:
        return Displacement(local.displacement), client

    def fold(self, server: Recursion, up: Displacement, heard: Heard) -> Recursion:
        return server._replace(x=server.x - up.displacement, x_prev=server.x, m=next_m(server, self.beta))


def next_m(server: LiteRecursion | Recursion, beta: float) -> Vector:
    """m^{r+1}."""
    return server.change + (1 - beta) * server.m


class ChangeOnly(NamedTuple):
    """∇f_i(x^r) - (1-β) ∇f_i(x^{r-1})."""

    change: Vector


class ChangeAndGrad(NamedTuple):
    """The same, and ∇f_i(x^r)."""

    change: Vector
    grad: Vector


@dataclass(frozen=True)
class Change(Exchange[Any, Nothing, TwoModels, Any]):
    """Ask the cohort for the change of its full-batch gradients, and for the gradients too if wanted."""

    beta: float
    with_grad: bool

    def effort(self, base: Effort) -> Effort:
        return Effort(steps=1, minibatches=None)

    def broadcast(self, server: Any) -> TwoModels:
        return TwoModels(server.x, server.x_prev)

    def direction(self, down: TwoModels, client: Nothing) -> Direction:
        return GRAD - (1 - self.beta) * grad_at(down.x_prev)

    def reply(self, down: TwoModels, client: Nothing, local: Local) -> tuple[ChangeOnly | ChangeAndGrad, Nothing]:
        change = local.mean_direction
        return ChangeAndGrad(change, local.mean_grad) if self.with_grad else ChangeOnly(change), client

    def fold(self, server: Any, up: ChangeOnly | ChangeAndGrad, heard: Heard) -> Any:
        return server._replace(**up._asdict())
