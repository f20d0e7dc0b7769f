"""SCAFFOLD and its momentum: Karimireddy et al. 2020; Cheng, Huang, Wu and Yuan, ICLR 2024, Algorithms 2 and 4.

The control variable of a client is the mean of its minibatch gradients, c_i^{r+1} = 1/K sum_k ∇F(x_i^{r,k}; ξ);
the server keeps c^r, their mean over all N clients.

What is sent is the lean form. SCAFFOLD and SCAFFOLD-M send one vector up, Δ_i = c_i^{r+1} - c_i^r, because it
holds the displacement: averaging the local direction over k and over the cohort gives

    g^{r+1} = β (mean Δ_i + c^r) + (1-β) g^r.

On the way down, c^r and g^r travel as their sum p^r = β c^r + (1-β) g^r, which is all that a client needs.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from kedge.algorithm import SingleExchange, hyper_beta, hyper_gamma, hyper_opening, server_rate
from kedge.algorithms.messages import Model
from kedge.direction import GRAD, Direction, Vector, grad_at
from kedge.exchange import Effort, Exchange, Heard, Local


class Control(NamedTuple):
    """A client's control variable."""

    c_i: Vector


class Controlled(NamedTuple):
    """The server's model and the mean of all control variables."""

    x: Vector
    c: Vector


class ControlledMomentum(NamedTuple):
    """The server of SCAFFOLD-M."""

    x: Vector
    c: Vector
    g: Vector


class ControlledRecursive(NamedTuple):
    """The server of SCAFFOLD-M-VR."""

    x: Vector
    x_prev: Vector
    c: Vector
    g: Vector


class Pull(NamedTuple):
    """The model and β c^r + (1-β) g^r."""

    x: Vector
    pull: Vector


class RecursivePull(NamedTuple):
    """`Pull`, and the point of the second gradient."""

    x: Vector
    x_prev: Vector
    pull: Vector


class DeltaControl(NamedTuple):
    """c_i^{r+1} - c_i^r."""

    delta_c: Vector


class MoveAndControl(NamedTuple):
    """The mean direction and c_i^{r+1} - c_i^r."""

    direction: Vector
    delta_c: Vector


@dataclass(frozen=True)
class Scaffold(SingleExchange[Controlled, Control, Controlled, DeltaControl]):
    """SCAFFOLD: control variables cancel the drift between clients (Karimireddy et al. 2020).

    Use it where clients differ and few take part, but come back often: the limit is exact.

        local direction  g_i^{r,k} = ∇F(x_i^{r,k}; ξ) - c_i^r + c^r
        client           c_i^{r+1} = mean_k ∇F(x_i^{r,k}; ξ)
        server           g^{r+1} = c^r + mean_i (c_i^{r+1} - c_i^r)
                         x^{r+1} = x^r - γ g^{r+1}
                         c^{r+1} = c^r + (S/N) mean_i (c_i^{r+1} - c_i^r)
        start            c_i^0 is the mean of B minibatch gradients at x^0, c^0 = mean_i c_i^0 over all clients

    This g^{r+1} is mean_i (x^r - x_i^{r,K}) / (ηK).

    >>> import kedge
    >>> model, federation = kedge.build_model("mlp", (64,), 10), kedge.load_federation("digits", clients=10)
    >>> result = kedge.simulate(model, federation, kedge.Scaffold(eta=0.1), rounds=2, cohort=5)
    >>> list(result.server)
    ['x', 'c']
    """

    gamma: float | None = hyper_gamma()
    opening_batches: int = hyper_opening()

    def init_server(self, x: Vector) -> Controlled:
        return Controlled(x, c=0 * x)

    def init_client(self, x: Vector) -> Control:
        return Control(c_i=0 * x)

    def opening(self) -> tuple[Exchange[Controlled, Control, Model, DeltaControl], ...]:
        return (InitialControl(self.opening_batches, ("c",)),) if self.opening_batches else ()

    def broadcast(self, server: Controlled) -> Controlled:
        return server

    def direction(self, down: Controlled, client: Control) -> Direction:
        return GRAD - client.c_i + down.c

    def reply(self, down: Controlled, client: Control, local: Local) -> tuple[DeltaControl, Control]:
        new = Control(c_i=local.mean_grad)
        return DeltaControl(new.c_i - client.c_i), new

    def fold(self, server: Controlled, up: DeltaControl, heard: Heard) -> Controlled:
        g = up.delta_c + server.c
        return Controlled(
            x=server.x - server_rate(self.gamma, self.eta, heard) * g,
            c=server.c + heard.share * up.delta_c,
        )


@dataclass(frozen=True)
class ScaffoldM(SingleExchange[ControlledMomentum, Control, Pull, DeltaControl]):
    """SCAFFOLD with momentum in the local steps (Cheng et al. 2024, Algorithm 2).

    Use it where clients differ and few take part: it has SCAFFOLD's exact limit, and is stable at larger γ.

        local direction  g_i^{r,k} = β (∇F(x_i^{r,k}; ξ) - c_i^r + c^r) + (1-β) g^r
        client           c_i^{r+1} = mean_k ∇F(x_i^{r,k}; ξ)
        server           g^{r+1} = β (c^r + mean_i (c_i^{r+1} - c_i^r)) + (1-β) g^r
                         x^{r+1} = x^r - γ g^{r+1}
                         c^{r+1} = c^r + (S/N) mean_i (c_i^{r+1} - c_i^r)
        start            c_i^0 is the mean of B minibatch gradients at x^0, c^0 = mean_i c_i^0 over all clients, g^0 = 0

    This g^{r+1} is mean_i (x^r - x_i^{r,K}) / (ηK).

    >>> import kedge
    >>> model, federation = kedge.build_model("mlp", (64,), 10), kedge.load_federation("digits", clients=10)
    >>> result = kedge.simulate(model, federation, kedge.ScaffoldM(eta=0.5, beta=0.2), rounds=2, cohort=5)
    >>> list(result.server)
    ['x', 'c', 'g']
    """

    beta: float = hyper_beta()
    gamma: float | None = hyper_gamma()
    opening_batches: int = hyper_opening()

    @classmethod
    def from_hat(cls, *, eta_hat: float, beta: float, gamma_hat: float | None = None, opening_batches: int = 1) -> Self:
        """Take the rates of the reparametrised form, ĝ = ∇F - c_i + c + (1-β) ĝ^r."""
        hat = cls(eta=eta_hat, beta=beta, gamma=gamma_hat, opening_batches=opening_batches)
        return replace(hat, eta=eta_hat / beta, gamma=None if gamma_hat is None else gamma_hat / beta)

    def init_server(self, x: Vector) -> ControlledMomentum:
        return ControlledMomentum(x, c=0 * x, g=0 * x)

    def init_client(self, x: Vector) -> Control:
        return Control(c_i=0 * x)

    def opening(self) -> tuple[Exchange[ControlledMomentum, Control, Model, DeltaControl], ...]:
        return (InitialControl(self.opening_batches, ("c",)),) if self.opening_batches else ()

    def broadcast(self, server: ControlledMomentum) -> Pull:
        return Pull(server.x, pull=self.beta * server.c + (1 - self.beta) * server.g)

    def direction(self, down: Pull, client: Control) -> Direction:
        return self.beta * (GRAD - client.c_i) + down.pull

    def reply(self, down: Pull, client: Control, local: Local) -> tuple[DeltaControl, Control]:
        new = Control(c_i=local.mean_grad)
        return DeltaControl(new.c_i - client.c_i), new

    def fold(self, server: ControlledMomentum, up: DeltaControl, heard: Heard) -> ControlledMomentum:
        g = self.beta * (up.delta_c + server.c) + (1 - self.beta) * server.g
        return ControlledMomentum(
            x=server.x - server_rate(self.gamma, self.eta, heard) * g,
            c=server.c + heard.share * up.delta_c,
            g=g,
        )


@dataclass(frozen=True)
class ScaffoldMVR(SingleExchange[ControlledRecursive, Control, RecursivePull, MoveAndControl]):
    """SCAFFOLD with momentum and variance reduction (Cheng et al. 2024, Algorithm 4).

    Use it where clients differ, few take part and minibatch noise remains; it takes two gradients of every minibatch.

        local direction  g_i^{r,k} = ∇F(x_i^{r,k}; ξ) - β (c_i^r - c^r) + (1-β) (g^r - ∇F(x^{r-1}; ξ))
        client           c_i^{r+1} = mean_k ∇F(x_i^{r,k}; ξ)
        server           g^{r+1} = mean_i (x^r - x_i^{r,K}) / (ηK)
                         x^{r+1} = x^r - γ g^{r+1}
                         c^{r+1} = c^r + (S/N) mean_i (c_i^{r+1} - c_i^r)
        start            x^{-1} = x^0, g^0 = c^0;
                         c_i^0 is the mean of B minibatch gradients at x^0, c^0 = mean_i c_i^0 over all clients

    >>> import kedge
    >>> model, federation = kedge.build_model("mlp", (64,), 10), kedge.load_federation("digits", clients=10)
    >>> result = kedge.simulate(model, federation, kedge.ScaffoldMVR(eta=0.1, beta=0.2), rounds=2, cohort=5)
    >>> list(result.server)
    ['x', 'x_prev', 'c', 'g']
    """

    beta: float = hyper_beta()
    gamma: float | None = hyper_gamma()
    opening_batches: int = hyper_opening()

    def init_server(self, x: Vector) -> ControlledRecursive:
        return ControlledRecursive(x, x_prev=x, c=0 * x, g=0 * x)

    def init_client(self, x: Vector) -> Control:
        return Control(c_i=0 * x)

    def opening(self) -> tuple[Exchange[ControlledRecursive, Control, Model, DeltaControl], ...]:
        return (InitialControl(self.opening_batches, ("c", "g")),) if self.opening_batches else ()

    def broadcast(self, server: ControlledRecursive) -> RecursivePull:
        pull = self.beta * server.c + (1 - self.beta) * server.g
        return RecursivePull(server.x, server.x_prev, pull)

    def direction(self, down: RecursivePull, client: Control) -> Direction:
        return GRAD - self.beta * client.c_i + down.pull - (1 - self.beta) * grad_at(down.x_prev)

    def reply(self, down: RecursivePull, client: Control, local: Local) -> tuple[MoveAndControl, Control]:
        new = Control(c_i=local.mean_grad)
        return MoveAndControl(local.mean_direction, delta_c=new.c_i - client.c_i), new

    def fold(self, server: ControlledRecursive, up: MoveAndControl, heard: Heard) -> ControlledRecursive:
        return ControlledRecursive(
            x=server.x - server_rate(self.gamma, self.eta, heard) * up.direction,
            x_prev=server.x,
            c=server.c + heard.share * up.delta_c,
            g=up.direction,
        )


@dataclass(frozen=True)
class InitialControl(Exchange[Any, Control, Model, DeltaControl]):
    """c_i^0: the mean of B minibatch gradients at x^0 on every client; their mean fills ``fields`` of the server."""

    cohort = "everyone"
    batches: int
    fields: tuple[str, ...]

    def effort(self, base: Effort) -> Effort:
        return Effort(steps=1, minibatches=self.batches)

    def broadcast(self, server: Any) -> Model:
        return Model(server.x)

    def direction(self, down: Model, client: Control) -> Direction:
        return GRAD

    def reply(self, down: Model, client: Control, local: Local) -> tuple[DeltaControl, Control]:
        new = Control(c_i=local.mean_direction)
        return DeltaControl(new.c_i - client.c_i), new

    def fold(self, server: Any, up: DeltaControl, heard: Heard) -> Any:
        # Times the share: a client whose first reply was lost keeps c_i = 0, and c stays the mean of all c_i.
        return server._replace(**dict.fromkeys(self.fields, heard.share * up.delta_c))
