"""Engines: ways to run the local steps of a client, chosen by the structure of the model, never by the algorithm."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kedge.client import Loss
from kedge.errors import UsageError, unknown
from kedge.problem import Federation
from kedge.simulator.engines import cnn, mlp, module
from kedge.simulator.engines.base import Engine, Setup

__all__ = ["ENGINES", "TABLE", "Engine", "make_engines"]


@dataclass(frozen=True)
class Kind:
    """A kind of engine: what it runs, in words, and a function that returns a builder for it or None."""

    name: str
    runs: str
    builder: Callable[[Setup], Callable[[], Engine] | None]


_LOSSES = "with cross-entropy or a squared error"
TABLE = (
    Kind(
        mlp.MLPEngine.name,
        f"stacks of Linear, ReLU, Tanh, Sigmoid and Dropout, {_LOSSES}",
        mlp.builder,
    ),
    Kind(
        cnn.CNNEngine.name,
        f"stacks of Conv2d, MaxPool2d, Flatten, Linear, ReLU, Tanh, Sigmoid and Dropout, {_LOSSES}",
        cnn.builder,
    ),
    Kind(module.ModuleEngine.name, "any module", module.builder),
)
"""The kinds of engines, fastest first."""

ENGINES = ("auto", *(kind.name for kind in TABLE))


def make_engines(
    name: str,
    count: int,
    model: nn.Module,
    federation: Federation,
    loss: Loss,
    device: torch.device,
) -> list[Engine]:
    """Return ``count`` engines of the kind ``name``; "auto" picks the fastest that can run the model."""
    if name not in ENGINES:
        raise unknown("engine", name, ENGINES)
    setup = Setup(model, federation, loss, device)
    asked = [kind for kind in TABLE if name in ("auto", kind.name)]
    if not isinstance(federation.features, Tensor):  # the others read one tensor
        asked = [kind for kind in asked if kind is TABLE[-1]] or asked
    for kind in asked:
        build = kind.builder(setup)
        if build is not None:
            return [build() for _ in range(count)]
    raise UsageError(f"engine is {name}, but it runs only {asked[0].runs}")
