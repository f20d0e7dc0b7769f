"""Loss and accuracy of a model on some samples."""

import torch
from torch import Tensor, nn

from kedge.client.steps import Loss

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
