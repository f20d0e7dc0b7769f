"""Loss and accuracy of a model: on the test set, and on the clients' own data."""

import numpy as np
import torch
from torch import Tensor, nn

from kedge.client import Loss
from kedge.problem import Federation

CHUNK = 2048


def evaluate(module: nn.Module, loss: Loss, features: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the mean loss and, for integer labels and a row of scores per sample, the accuracy."""
    module.eval()
    total, right, scored = 0.0, 0, False
    with torch.inference_mode():
        for x, y in zip(torch.split(features, CHUNK), torch.split(labels, CHUNK), strict=True):
            output = module(x)
            total += float(loss(output, y)) * len(y)
            scored = isinstance(output, Tensor) and output.ndim == 2 and y.ndim == 1 and not y.is_floating_point()
            if scored:
                right += int((output.argmax(dim=1) == y).sum())
    metrics = {"loss": total / len(labels)}
    return metrics | {"accuracy": right / len(labels)} if scored else metrics


def evaluate_clients(module: nn.Module, loss: Loss, federation: Federation) -> dict[str, float]:
    """Evaluate the model on every client's own data: the mean and the worst tenth of the clients."""
    rows = [evaluate(module, loss, *federation.client(i)) for i in range(len(federation))]
    metrics = {}
    for name in rows[0]:
        values = np.sort([row[name] for row in rows])
        if name == "loss":
            values = values[::-1]
        metrics[f"clients_{name}"] = float(values.mean())
        metrics[f"clients_{name}_worst_decile"] = float(values[: max(1, len(values) // 10)].mean())
    return metrics
