"""Engines: ways to run the local steps of a client, chosen by the structure of the model, never by the algorithm."""

import torch
from torch import nn

from kedge.errors import UsageError, unknown
from kedge.problem import Federation
from kedge.simulator.engines.base import Done, Engine, Job, Loss
from kedge.simulator.engines.cnn import CNNEngine, stages
from kedge.simulator.engines.layers import plan
from kedge.simulator.engines.mlp import MLPEngine
from kedge.simulator.engines.module import FlatModule, ModuleEngine, try_model

__all__ = ["ENGINES", "Done", "Engine", "FlatModule", "Job", "Loss", "make_engines", "try_model"]

ENGINES = ("auto", ModuleEngine.name, MLPEngine.name, CNNEngine.name)
_RUNS = {
    MLPEngine.name: "stacks of Linear, ReLU, Tanh, Sigmoid and Dropout",
    CNNEngine.name: "stacks of Conv2d, MaxPool2d, Flatten, Linear, ReLU, Tanh, Sigmoid and Dropout",
}


def make_engines(
    name: str,
    count: int,
    model: nn.Module,
    federation: Federation,
    loss: Loss,
    weight_decay: float,
    device: torch.device,
) -> list[Engine]:
    """Return ``count`` engines of the kind ``name``; "auto" takes the fastest that can run the model."""
    if name not in ENGINES:
        raise unknown("engine", name, ENGINES)
    if name in ("auto", MLPEngine.name):
        layers = plan(model, loss, federation.labels)
        if layers is not None:
            return [MLPEngine(layers, federation, loss, weight_decay) for _ in range(count)]
    if name in ("auto", CNNEngine.name) and stages(model, loss, federation) is not None:
        return [CNNEngine(model, federation, loss, weight_decay, device) for _ in range(count)]
    if name in _RUNS:
        raise UsageError(f"engine is {name}, but it runs only {_RUNS[name]}, with cross-entropy or a squared error")
    return [ModuleEngine(model, federation, loss, weight_decay, device) for _ in range(count)]
