"""Loss and accuracy of a model on the clients' own data."""

import numpy as np
from torch import nn

from kedge.client import Loss, evaluate
from kedge.problem import Federation


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
