"""FedAvg's clients with a different server: SlowMo, Wang et al. 2020; server momentum, Hsu et al. 2019; the adaptive
servers of Reddi et al. 2021, without bias correction.

D is the mean over the cohort of x_i^{r,K} - x^r.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

from kedge.algorithm import Algorithm, hyper
from kedge.algorithms.exchanges import LocalTraining
from kedge.direction import Vector
from kedge.exchange import Heard, Nothing, ServerT


def hyper_server_lr(default: float) -> Any:
    """Declare the rate of a server optimiser."""
    return hyper(default, help="rate of the server's optimiser", above=0)


def hyper_beta1() -> Any:
    """Declare the decay of a server's momentum."""
    return hyper(0.9, help="decay of the server's momentum; 0 is no momentum", at_least=0, at_most=1)


def hyper_beta2() -> Any:
    """Declare the decay of a server's second moment."""
    return hyper(0.99, help="decay of the server's second moment", at_least=0, at_most=1)


def hyper_tau() -> Any:
    """Declare the adaptivity of a server."""
    return hyper(1e-3, help="adaptivity: larger is less adaptive; the second moment starts at its square", above=0)


class ServerOptimizer(Algorithm[ServerT, Nothing]):
    """FedAvg's clients, and a server step."""

    any_solver = True

    def exchanges(self, round: int, seed: int) -> tuple[LocalTraining]:
        return (LocalTraining(self.step),)

    @abstractmethod
    def step(self, server: ServerT, displacement: Vector, heard: Heard) -> ServerT:
        """Return the server's new state, given -D."""


class Slow(NamedTuple):
    """The server of SlowMo: u in units of K gradients."""

    x: Vector
    u: Vector


@dataclass(frozen=True)
class SlowMo(ServerOptimizer[Slow]):
    """SlowMo: slow momentum on the server, in units of a gradient (Wang et al. 2020).

    Use it where progress is slow and smooth; the limit is FedAvg's.

        local direction  g_i^{r,k} = ∇F(x_i^{r,k}; ξ)
        server           u^{r+1} = β u^r + mean_i (x^r - x_i^{r,K}) / η
                         x^{r+1} = x^r - α η u^{r+1}
        start            u^0 = 0

    >>> import kedge
    >>> model, federation = kedge.build_model("mlp", (64,), 10), kedge.load_federation("digits", clients=10)
    >>> result = kedge.simulate(model, federation, kedge.SlowMo(eta=0.1, beta=0.5), rounds=2, cohort=5)
    >>> list(result.server)
    ['x', 'u']
    """

    alpha: float = hyper(1.0, help="slow learning rate", above=0)
    beta: float = hyper(0.5, help="slow momentum; 0 is no momentum", at_least=0, at_most=1)

    def init_server(self, x: Vector) -> Slow:
        return Slow(x, u=0 * x)

    def step(self, server: Slow, displacement: Vector, heard: Heard) -> Slow:
        """u <- β u + (x^r - mean x_i^{r,K}) / eta, x <- x - alpha eta u."""
        u = self.beta * server.u + displacement / self.eta
        return Slow(x=server.x - self.alpha * self.eta * u, u=u)


class Heavy(NamedTuple):
    """The server of server momentum: m in units of the model."""

    x: Vector
    m: Vector


@dataclass(frozen=True)
class ServerMomentum(ServerOptimizer[Heavy]):
    """Momentum only on the server, elsewhere called FedAvgM (Hsu et al. 2019).

    Use it where progress is slow and smooth; the limit is FedAvg's.

        local direction  g_i^{r,k} = ∇F(x_i^{r,k}; ξ)
        server           D = mean_i (x_i^{r,K} - x^r)
                         m^{r+1} = β₁ m^r + D
                         x^{r+1} = x^r + η_s m^{r+1}
        start            m^0 = 0

    >>> import kedge
    >>> model, federation = kedge.build_model("mlp", (64,), 10), kedge.load_federation("digits", clients=10)
    >>> result = kedge.simulate(model, federation, kedge.ServerMomentum(eta=0.1, server_lr=0.3), rounds=2, cohort=5)
    >>> list(result.server)
    ['x', 'm']
    """

    server_lr: float = hyper_server_lr(1.0)
    beta1: float = hyper_beta1()

    def init_server(self, x: Vector) -> Heavy:
        return Heavy(x, m=0 * x)

    def step(self, server: Heavy, displacement: Vector, heard: Heard) -> Heavy:
        """m <- β1 m + D, x <- x + server_lr m."""
        m = self.beta1 * server.m - displacement
        return Heavy(x=server.x + self.server_lr * m, m=m)


class Variance(NamedTuple):
    """The server of FedAdagrad."""

    x: Vector
    v: Vector


@dataclass(frozen=True)
class FedAdagrad(ServerOptimizer[Variance]):
    """FedAdagrad: Adagrad on the server (Reddi et al. 2021).

    Use it where coordinates have very different scales, as with sparse features; the limit is FedAvg's.

        local direction  g_i^{r,k} = ∇F(x_i^{r,k}; ξ)
        server           D = mean_i (x_i^{r,K} - x^r)
                         v^{r+1} = v^r + D²
                         x^{r+1} = x^r + η_s D / (√v^{r+1} + τ)
        start            v^0 = τ²

    >>> import kedge
    >>> model, federation = kedge.build_model("mlp", (64,), 10), kedge.load_federation("digits", clients=10)
    >>> result = kedge.simulate(model, federation, kedge.FedAdagrad(eta=0.1, server_lr=0.1), rounds=2, cohort=5)
    >>> list(result.server)
    ['x', 'v']
    """

    server_lr: float = hyper_server_lr(0.1)
    tau: float = hyper_tau()

    def init_server(self, x: Vector) -> Variance:
        return Variance(x, v=0 * x + self.tau**2)

    def step(self, server: Variance, displacement: Vector, heard: Heard) -> Variance:
        """v <- v + D², x <- x + server_lr D / (√v + tau)."""
        D = -displacement
        v = server.v + D**2
        return Variance(x=server.x + self.server_lr * D / (v.sqrt() + self.tau), v=v)


class Moments(NamedTuple):
    """The server of FedAdam and FedYogi."""

    x: Vector
    m: Vector
    v: Vector


@dataclass(frozen=True)
class FedAdam(ServerOptimizer[Moments]):
    """FedAdam: Adam on the server, without bias correction (Reddi et al. 2021).

    Use it where coordinates have very different scales; the limit is FedAvg's.

        local direction  g_i^{r,k} = ∇F(x_i^{r,k}; ξ)
        server           D = mean_i (x_i^{r,K} - x^r)
                         m^{r+1} = β₁ m^r + (1-β₁) D
                         v^{r+1} = β₂ v^r + (1-β₂) D²
                         x^{r+1} = x^r + η_s m^{r+1} / (√v^{r+1} + τ)
        start            m^0 = 0, v^0 = τ²

    >>> import kedge
    >>> model, federation = kedge.build_model("mlp", (64,), 10), kedge.load_federation("digits", clients=10)
    >>> result = kedge.simulate(model, federation, kedge.FedAdam(eta=0.1, server_lr=0.01), rounds=2, cohort=5)
    >>> list(result.server)
    ['x', 'm', 'v']
    """

    server_lr: float = hyper_server_lr(0.01)
    beta1: float = hyper_beta1()
    beta2: float = hyper_beta2()
    tau: float = hyper_tau()

    def init_server(self, x: Vector) -> Moments:
        return Moments(x, m=0 * x, v=0 * x + self.tau**2)

    def step(self, server: Moments, displacement: Vector, heard: Heard) -> Moments:
        """m <- β1 m + (1-β1) D, v <- β2 v + (1-β2) D², x <- x + server_lr m / (√v + tau)."""
        D = -displacement
        m = self.beta1 * server.m + (1 - self.beta1) * D
        v = self.beta2 * server.v + (1 - self.beta2) * D**2
        return Moments(x=server.x + self.server_lr * m / (v.sqrt() + self.tau), m=m, v=v)


@dataclass(frozen=True)
class FedYogi(ServerOptimizer[Moments]):
    """FedYogi: Yogi on the server, without bias correction (Reddi et al. 2021).

    Use it where the size of the updates varies a lot between rounds, so that Adam forgets large ones too fast.

        local direction  g_i^{r,k} = ∇F(x_i^{r,k}; ξ)
        server           D = mean_i (x_i^{r,K} - x^r)
                         m^{r+1} = β₁ m^r + (1-β₁) D
                         v^{r+1} = v^r - (1-β₂) D² sign(v^r - D²)
                         x^{r+1} = x^r + η_s m^{r+1} / (√v^{r+1} + τ)
        start            m^0 = 0, v^0 = τ²

    >>> import kedge
    >>> model, federation = kedge.build_model("mlp", (64,), 10), kedge.load_federation("digits", clients=10)
    >>> result = kedge.simulate(model, federation, kedge.FedYogi(eta=0.1, server_lr=0.01), rounds=2, cohort=5)
    >>> list(result.server)
    ['x', 'm', 'v']
    """

    server_lr: float = hyper_server_lr(0.01)
    beta1: float = hyper_beta1()
    beta2: float = hyper_beta2()
    tau: float = hyper_tau()

    def init_server(self, x: Vector) -> Moments:
        return Moments(x, m=0 * x, v=0 * x + self.tau**2)

    def step(self, server: Moments, displacement: Vector, heard: Heard) -> Moments:
        """m <- β1 m + (1-β1) D, v <- v - (1-β2) D² sign(v - D²), x <- x + server_lr m / (√v + tau)."""
        D = -displacement
        m = self.beta1 * server.m + (1 - self.beta1) * D
        v = server.v - (1 - self.beta2) * D**2 * (server.v - D**2).sign()
        return Moments(x=server.x + self.server_lr * m / (v.sqrt() + self.tau), m=m, v=v)
