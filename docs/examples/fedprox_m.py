"""FedAvg-M whose local steps are also held near the server's model."""

from dataclasses import dataclass
from typing import NamedTuple

from kedge import DISPLACEMENT, GRAD, SingleExchange, Vector, hyper


class Server(NamedTuple):
    x: Vector
    g: Vector


class Up(NamedTuple):
    direction: Vector


@dataclass(frozen=True)
class FedProxM(SingleExchange):
    beta: float = hyper(0.2, help="momentum", above=0, at_most=1)
    mu: float = hyper(0.1, help="strength of the pull", at_least=0)

    def init_server(self, x): return Server(x, g=0 * x)
    def broadcast(self, server): return server
    def direction(self, down, client): return self.beta * GRAD + (1 - self.beta) * down.g + self.mu * DISPLACEMENT
    def reply(self, down, client, local): return Up(local.mean_direction), client
    def fold(self, server, up, heard):
        return Server(x=server.x - self.eta * heard.local_steps * up.direction, g=up.direction)
