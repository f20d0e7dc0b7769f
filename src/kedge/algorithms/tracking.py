"""Gradient tracking with one vector up: VRL-SGD, Liang et al. 2019; FedGATE, Haddadpour et al. 2021 (without
compression); LED, Alghunaim 2023, on a star network.

A client corrects its gradient by how much its own steps differed from the mean: by D_i, delta_i or y_i, whose sum over
all clients is zero. In VRL-SGD and LED a client hears x^{r+1} in the next round, and updates its correction then.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from kedge.algorithm import Algorithm, SingleExchange, hyper, hyper_gamma, server_rate
from kedge.algorithms.messages import Displacement, MeanDirection, Model, Momentum
from kedge.direction import GRAD, Direction, Vector
from kedge.exchange import Effort, Exchange, Heard, Local, Nothing


class Averaged(NamedTuple):
    """The server of VRL-SGD."""

    x: Vector
    span: Vector  # one number: eta K of the round that made x; any in the first, where x^0 = x_i


class Deviation(NamedTuple):
    """A client of VRL-SGD: D_i^{r-1}, and where its last round ended."""

    D_i: Vector
    x_i: Vector


@dataclass(frozen=True)
class VRLSGD(SingleExchange[Averaged, Deviation, Averaged, Displacement]):
    """VRL-SGD: variance-reduced local SGD (Liang et al. 2019).

    Use it where clients differ and all take part; it sends one vector each way.

        local direction  g_i^{r,k} = ∇F(x_i^{r,k}; ξ) - D_i^r
        client           D_i^{r+1} = D_i^r + (x^{r+1} - x_i^{r,K}) / (ηK)
        server           x^{r+1} = mean_i x_i^{r,K}
        start            D_i^0 = 0

    >>> import kedge
    >>> model, federation = kedge.build_model("mlp", (64,), 10), kedge.load_federation("digits", clients=10)
    >>> result = kedge.simulate(model, federation, kedge.VRLSGD(eta=0.1), rounds=2, cohort=None)
    >>> list(result.server)
    ['x', 'span']
    """

    full_participation = True

    def init_server(self, x: Vector) -> Averaged:
        return Averaged(x, span=0 * x[:1] + 1)

    def init_client(self, x: Vector) -> Deviation:
        return Deviation(D_i=0 * x, x_i=x)

    def broadcast(self, server: Averaged) -> Averaged:
        return server

    def direction(self, down: Averaged, client: Deviation) -> Direction:
        return GRAD - deviation(down, client)

    def reply(self, down: Averaged, client: Deviation, local: Local) -> tuple[Displacement, Deviation]:
        return Displacement(local.displacement), Deviation(deviation(down, client), x_i=local.x)

    def fold(self, server: Averaged, up: Displacement, heard: Heard) -> Averaged:
        return Averaged(x=server.x - up.displacement, span=0 * server.span + self.eta * heard.local_steps)


def deviation(down: Averaged, client: Deviation) -> Vector:
    """D_i^r."""
    return client.D_i + (down.x - client.x_i) / down.span


class Gate(NamedTuple):
    """A client of FedGATE."""

    delta_i: Vector  # within a round, delta_i + u_i


@dataclass(frozen=True)
class FedGATE(Algorithm[Momentum, Gate]):
    """FedGATE: gradient tracking with a server rate (Haddadpour et al. 2021, without compression).

    Use it where clients differ, few or all take part, and you want no opening exchange.

        local direction  g_i^{r,k} = ∇F(x_i^{r,k}; ξ) - δ_i^r
        client           δ_i^{r+1} = δ_i^r + u_i - g^{r+1} with u_i = (x^r - x_i^{r,K}) / (ηK)
        server           g^{r+1} = mean_i u_i
                         x^{r+1} = x^r - γ g^{r+1}
        start            δ_i^0 = 0

    >>> import kedge
    >>> model, federation = kedge.build_model("mlp", (64,), 10), kedge.load_federation("digits", clients=10)
    >>> result = kedge.simulate(model, federation, kedge.FedGATE(eta=0.1), rounds=2, cohort=5)
    >>> list(result.server)
    ['x', 'g']
    """

    gamma: float | None = hyper_gamma()

    def init_server(self, x: Vector) -> Momentum:
        return Momentum(x, g=0 * x)

    def init_client(self, x: Vector) -> Gate:
        return Gate(delta_i=0 * x)

    def exchanges(self, round: int, seed: int) -> tuple[Exchange[Momentum, Gate, Any, Any], ...]:
        return (GateSteps(), GateCorrection(self.step))

    def step(self, server: Momentum, heard: Heard) -> Momentum:
        """x^{r+1} = x^r - gamma g."""
        return server._replace(x=server.x - server_rate(self.gamma, self.eta, heard) * server.g)


@dataclass(frozen=True)
class GateSteps(Exchange[Momentum, Gate, Model, MeanDirection]):
    """u_i = (x^r - x_i^{r,K}) / (eta K), along ∇F - delta_i."""

    def broadcast(self, server: Momentum) -> Model:
        return Model(server.x)

    def direction(self, down: Model, client: Gate) -> Direction:
        return GRAD - client.delta_i

    def reply(self, down: Model, client: Gate, local: Local) -> tuple[MeanDirection, Gate]:
        u_i = local.mean_direction
        return MeanDirection(u_i), Gate(delta_i=client.delta_i + u_i)

    def fold(self, server: Momentum, up: MeanDirection, heard: Heard) -> Momentum:
        return server._replace(g=up.direction)


@dataclass(frozen=True)
class GateCorrection(Exchange[Momentum, Gate, Momentum, Nothing]):
    """The cohort hears g and subtracts it from delta_i; it computes nothing and sends nothing up."""

    then: Callable[[Momentum, Heard], Momentum]

    def effort(self, base: Effort) -> Effort:
        return Effort(steps=0, minibatches=None)

    def broadcast(self, server: Momentum) -> Momentum:
        return server

    def direction(self, down: Momentum, client: Gate) -> Direction:
        return Direction()

    def reply(self, down: Momentum, client: Gate, local: Local) -> tuple[Nothing, Gate]:
        return Nothing(), Gate(delta_i=client.delta_i - down.g)

    def fold(self, server: Momentum, up: Nothing, heard: Heard) -> Momentum:
        return self.then(server, heard)


class Network(NamedTuple):
    """The server of LED."""

    x: Vector
    b: Vector  # one number; any in the first round, where y_i = 0


class Ahead(NamedTuple):
    """A client of LED: z_i = y_i^{r-1} + x_i^{r-1,K}, so that y_i^r = z_i - x^r if eta is the same."""

    z_i: Vector
    eta_i: Vector  # one number: eta of the round that made z_i; any before the first, where y_i = 0


@dataclass(frozen=True)
class LED(SingleExchange[Network, Ahead, Network, Displacement]):
    """LED: local exact diffusion, on a star network (Alghunaim 2023).

    Use it where clients differ and all take part; it sends one vector each way.

        local direction  g_i^{r,k} = ∇F(x_i^{r,k}; ξ) + (b/η) y_i^r
        client           y_i^{r+1} = y_i^r + x_i^{r,K} - x^{r+1}
        server           x^{r+1} = mean_i x_i^{r,K}
        start            y_i^0 = 0

    Where η changes between rounds, y_i^r is multiplied by its new value over the old one.

    >>> import kedge
    >>> model, federation = kedge.build_model("mlp", (64,), 10), kedge.load_federation("digits", clients=10)
    >>> result = kedge.simulate(model, federation, kedge.LED(eta=0.1), rounds=2, cohort=None)
    >>> list(result.server)
    ['x', 'b']
    """

    full_participation = True

    b: float | None = hyper(None, help="weight of the correction; by default 1/K", above=0, at_most=1, fixed=True)

    def init_server(self, x: Vector) -> Network:
        return Network(x, b=0 * x[:1] + 1)

    def init_client(self, x: Vector) -> Ahead:
        return Ahead(z_i=x, eta_i=0 * x[:1] + 1)

    def broadcast(self, server: Network) -> Network:
        return server

    def direction(self, down: Network, client: Ahead) -> Direction:
        return GRAD + down.b / self.eta * self.correction(down, client)

    def reply(self, down: Network, client: Ahead, local: Local) -> tuple[Displacement, Ahead]:
        z_i = self.correction(down, client) + local.x
        return Displacement(local.displacement), Ahead(z_i, eta_i=0 * client.eta_i + self.eta)

    def correction(self, down: Network, client: Ahead) -> Vector:
        """y_i^r: eta times a gradient, so it follows eta from round to round."""
        return (client.z_i - down.x) * (self.eta / client.eta_i)

    def fold(self, server: Network, up: Displacement, heard: Heard) -> Network:
        b = 1 / heard.local_steps if self.b is None else self.b
        return Network(x=server.x - up.displacement, b=0 * server.b + b)
