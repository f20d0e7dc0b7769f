"""FedAvg and its momentum: McMahan et al. 2017; Cheng, Huang, Wu and Yuan, ICLR 2024, Algorithms 1 and 3.

Server step of all three: x^{r+1} = x^r - gamma g^{r+1}, with g^{r+1} the mean over the cohort of
(x^r - x_i^{r,K}) / (eta K).
"""

from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from kedge.algorithm import (
    SingleExchange,
    hyper_beta,
    hyper_gamma,
    hyper_opening,
    server_rate,
)
from kedge.algorithms.exchanges import MeanGradient
from kedge.algorithms.messages import Displacement, MeanDirection, Model, Momentum
from kedge.direction import GRAD, Direction, Vector, grad_at
from kedge.exchange import Exchange, Heard, Local, Nothing


@dataclass(frozen=True)
class FedAvg(SingleExchange[Model, Nothing, Model, Displacement]):
    """Local SGD, then the mean of the local models (McMahan et al. 2017).

    The baseline: it sends and keeps the least, and its limit is biased if clients differ.

        local direction  g_i^{r,k} = ∇F(x_i^{r,k}; ξ)
        server           g^{r+1} = mean_i (x^r - x_i^{r,K}) / (ηK)
                         x^{r+1} = x^r - γ g^{r+1}

    >>> import kedge
    >>> model, federation = kedge.build_model("mlp", (64,), 10), kedge.load_federation("digits", clients=10)
    >>> result = kedge.simulate(model, federation, kedge.FedAvg(eta=0.1), rounds=2, cohort=5)
    >>> list(result.server)
    ['x']
    """

    any_solver = True

    gamma: float | None = hyper_gamma()

    def init_server(self, x: Vector) -> Model:
        return Model(x)

    def broadcast(self, server: Model) -> Model:
        return server

    def direction(self, down: Model, client: Nothing) -> Direction:
        return GRAD

    def reply(self, down: Model, client: Nothing, local: Local) -> tuple[Displacement, Nothing]:
        return Displacement(local.displacement), client

    def fold(self, server: Model, up: Displacement, heard: Heard) -> Model:
        g = up.displacement / (self.eta * heard.local_steps)
        return Model(x=server.x - server_rate(self.gamma, self.eta, heard) * g)


@dataclass(frozen=True)
class FedAvgM(SingleExchange[Momentum, Nothing, Momentum, MeanDirection]):
    """FedAvg with momentum in the local steps, also known as FedCM (Cheng et al. 2024, Algorithm 1).

    Use it where clients differ and many take part: drift shrinks by the factor β, at the cost of one more vector down.
    Not the *FedAvgM* of Hsu et al. 2019, Reddi et al. 2021 and Flower, whose momentum acts only on the server:
    that one is `ServerMomentum`.

        local direction  g_i^{r,k} = β ∇F(x_i^{r,k}; ξ) + (1-β) g^r
        server           g^{r+1} = mean_i (x^r - x_i^{r,K}) / (ηK)
                         x^{r+1} = x^r - γ g^{r+1}
        start            g^0 = 0

    >>> import kedge
    >>> model, federation = kedge.build_model("mlp", (64,), 10), kedge.load_federation("digits", clients=10)
    >>> result = kedge.simulate(model, federation, kedge.FedAvgM(eta=0.5, beta=0.2), rounds=2)
    >>> list(result.server)
    ['x', 'g']
    """

    beta: float = hyper_beta()
    gamma: float | None = hyper_gamma()

    @classmethod
    def from_hat(cls, *, eta_hat: float, beta: float, gamma_hat: float | None = None) -> Self:
        """Take the rates of the reparametrised form, ĝ = ∇F + (1-β) ĝ^r, like PyTorch's momentum."""
        hat = cls(eta=eta_hat, beta=beta, gamma=gamma_hat)
        return replace(hat, eta=eta_hat / beta, gamma=None if gamma_hat is None else gamma_hat / beta)

    def init_server(self, x: Vector) -> Momentum:
        return Momentum(x, g=0 * x)

    def broadcast(self, server: Momentum) -> Momentum:
        return server

    def direction(self, down: Momentum, client: Nothing) -> Direction:
        return self.beta * GRAD + (1 - self.beta) * down.g

    def reply(self, down: Momentum, client: Nothing, local: Local) -> tuple[MeanDirection, Nothing]:
        return MeanDirection(local.mean_direction), client

    def fold(self, server: Momentum, up: MeanDirection, heard: Heard) -> Momentum:
        return Momentum(x=server.x - server_rate(self.gamma, self.eta, heard) * up.direction, g=up.direction)


class Recursive(NamedTuple):
    """The server of a recursive estimate; two vectors, because x^{r-1} = x^r + lag g^r."""

    x: Vector
    g: Vector
    lag: Vector  # one number: gamma, but 0 in the first round, where x^{-1} = x^0


@dataclass(frozen=True)
class FedAvgMVR(SingleExchange[Recursive, Nothing, Recursive, MeanDirection]):
    """FedAvg with momentum and variance reduction (Cheng et al. 2024, Algorithm 3).

    Use it where minibatch noise dominates and clients are not too different; it takes two gradients of every minibatch.

        local direction  g_i^{r,k} = ∇F(x_i^{r,k}; ξ) + (1-β) (g^r - ∇F(x^{r-1}; ξ))
        server           g^{r+1} = mean_i (x^r - x_i^{r,K}) / (ηK)
                         x^{r+1} = x^r - γ g^{r+1}
        start            x^{-1} = x^0; g^0 is the mean of B minibatch gradients at x^0 on every client

    >>> import kedge
    >>> model, federation = kedge.build_model("mlp", (64,), 10), kedge.load_federation("digits", clients=10)
    >>> result = kedge.simulate(model, federation, kedge.FedAvgMVR(eta=0.1, beta=0.2), rounds=2)
    >>> list(result.server)
    ['x', 'g', 'lag']
    """

    beta: float = hyper_beta()
    gamma: float | None = hyper_gamma()
    opening_batches: int = hyper_opening()

    def init_server(self, x: Vector) -> Recursive:
        return Recursive(x, g=0 * x, lag=0 * x[:1])

    def opening(self) -> tuple[Exchange[Recursive, Nothing, Model, MeanDirection], ...]:
        return (MeanGradient("g", self.opening_batches),) if self.opening_batches else ()

    def broadcast(self, server: Recursive) -> Recursive:
        return server

    def direction(self, down: Recursive, client: Nothing) -> Direction:
        x_prev = down.x + down.lag * down.g
        return GRAD + (1 - self.beta) * (down.g - grad_at(x_prev))

    def reply(self, down: Recursive, client: Nothing, local: Local) -> tuple[MeanDirection, Nothing]:
        return MeanDirection(local.mean_direction), client

    def fold(self, server: Recursive, up: MeanDirection, heard: Heard) -> Recursive:
        gamma = server_rate(self.gamma, self.eta, heard)
        return Recursive(x=server.x - gamma * up.direction, g=up.direction, lag=0 * server.lag + gamma)
