"""Messages and states that several algorithms share."""

from typing import NamedTuple

from kedge.direction import Vector


class Model(NamedTuple):
    """The server's model and nothing else."""

    x: Vector


class TwoModels(NamedTuple):
    """x^r and x^{r-1}."""

    x: Vector
    x_prev: Vector


class Momentum(NamedTuple):
    """The server's model and its direction g, in units of a gradient."""

    x: Vector
    g: Vector


class Displacement(NamedTuple):
    """x^r - x_i^{r,K}."""

    displacement: Vector


class MeanDirection(NamedTuple):
    """(x^r - x_i^{r,K}) / (eta K_i), or the gradient that an exchange asked for."""

    direction: Vector
