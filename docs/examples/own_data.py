"""Your own data, model and metric, for the command line."""

import numpy as np
from torch import nn

import kedge


def load(clients=20, seed=0):
    rng = np.random.default_rng(seed)
    parts = [(rng.normal(size=(50, 8)).astype("float32"), rng.integers(0, 3, 50)) for _ in range(clients)]
    return kedge.Federation(parts, test=parts[0])


def make_model(input_shape, classes, hidden=16):
    return nn.Sequential(nn.Linear(*input_shape, hidden), nn.Tanh(), nn.Linear(hidden, classes))


def top2(outputs, targets):
    return (outputs.topk(2).indices == targets[:, None]).any(1).float().mean()
