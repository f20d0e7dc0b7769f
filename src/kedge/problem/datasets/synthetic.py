"""Synthetic(alpha, beta) of Li et al., "Federated Optimization in Heterogeneous Networks" (MLSys 2020).

User k has its own softmax model, W_k ~ N(u_k, 1) and b_k ~ N(u_k, 1) with u_k ~ N(0, alpha), and its own inputs,
x ~ N(v_k, diag(j^-1.2)) with v_k ~ N(B_k, 1) and B_k ~ N(0, beta). As in the authors' program alpha and beta
are standard deviations, a label is the largest of the softmax, and a user has 50 + LogNormal(4, 2) samples;
here at most 1000.
"""

import numpy as np
import torch

from kedge.checks import affordable, real, whole
from kedge.errors import shown
from kedge.problem.datasets.base import DataSet, Source

_FEATURES, _CLASSES = 60, 10


def load(source: Source, *, users: int = 30, synthetic_alpha: float = 1.0, synthetic_beta: float = 1.0) -> DataSet:
    """Draw the data of ``users`` users; the last fifth of each one's samples is held out as test data."""
    users = whole("users", users, 1)
    alpha = real("synthetic_alpha", synthetic_alpha, positive=False)
    beta = real("synthetic_beta", synthetic_beta, positive=False)
    # A user has 238 samples on average; they are copied once.
    affordable(f"synthetic of {shown(users)} users", users * 238 * 2 * 4 * _FEATURES)
    rng = np.random.Generator(np.random.Philox(source.seed))
    sizes = np.minimum(50 + rng.lognormal(4, 2, users), 1000).astype(np.int64)
    deviation = np.arange(1, _FEATURES + 1) ** -0.6
    features, labels = [], []
    for size in sizes:
        u, B = rng.normal(0, alpha), rng.normal(0, beta)
        W, b = rng.normal(u, 1, (_FEATURES, _CLASSES)), rng.normal(u, 1, _CLASSES)
        x = rng.normal(rng.normal(B, 1, _FEATURES), deviation, (size, _FEATURES))
        features.append(x.astype(np.float32))
        labels.append((x @ W + b).argmax(axis=1))
    kept = np.concatenate([np.arange(size) < size - size // 5 for size in sizes])
    X, y = torch.from_numpy(np.concatenate(features)), torch.from_numpy(np.concatenate(labels))
    train = torch.from_numpy(kept)
    owner = np.repeat(np.arange(users), sizes)
    return DataSet("synthetic", (X[train], y[train]), (X[~train], y[~train]), _CLASSES, owner[kept])
