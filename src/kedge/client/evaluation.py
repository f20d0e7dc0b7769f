"""Loss, accuracy and a user's own metrics of a model on some samples."""

import copy
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kedge.checks import is_higher_better
from kedge.client.outputs import count_ignored, right
from kedge.client.steps import Loss
from kedge.client.trial import fitting, is_cross_entropy
from kedge.errors import UsageError, shown
from kedge.samples import Input, called, mapped, scores

CHUNK = 2048

Metric = Callable[[Any, Tensor], Any]
"""metric(outputs, targets) over the whole evaluation set returns a number. An object with reset, update and compute,
such as those of torchmetrics, is fed chunk by chunk instead."""

RESERVED = ("loss",)
"""Names that no metric can have: a loss that is not finite ends the run."""


def check_metrics(metrics: Mapping[str, Metric] | None) -> dict[str, Metric]:
    """Return the metrics by name, or say in one sentence why they are none."""
    if metrics is None:
        return {}
    if callable(metrics) and hasattr(metrics, "items"):  # a MetricCollection of torchmetrics
        metrics = dict(metrics.items())
    if not isinstance(metrics, Mapping):
        raise UsageError(f"metrics is {shown(metrics)}, but must be a dict of names and functions")
    for name, metric in metrics.items():
        if not isinstance(name, str) or not name.isidentifier() or name in RESERVED:
            raise UsageError(f"a metric is called {shown(name)}, but its name must be a word other than loss")
        if isinstance(metric, type) or not callable(metric):
            raise UsageError(f"the metric {name} is {shown(metric)}, but must be a function of outputs and targets")
    return dict(metrics)


def evaluate(
    module: nn.Module, loss: Loss, features: Input, labels: Tensor, metrics: Mapping[str, Metric] | None = None
) -> dict[str, float]:
    """Return the mean loss, for integer labels and scores of classes the accuracy, and the metrics.

    Labels that are ignored count in neither.
    """
    module.eval()
    total, weights, hits, counted = 0.0, 0.0, 0, 0
    own = [_Measured(name, metric) for name, metric in (metrics or {}).items()]
    with torch.inference_mode():
        for start in range(0, len(labels), CHUNK):
            x, y = _part(features, start), labels[start : start + CHUNK]
            output = called(module, x)
            ignored = count_ignored(y)
            weight = len(y) * (1 - ignored / y.numel()) if ignored else len(y)
            fitted = fitting(loss, output, [y]) if is_cross_entropy(loss) else loss
            total += float(fitted(output, y)) * weight if weight else 0.0
            weights += weight
            scored = right(output, y)
            if scored is not None:
                hits, counted = hits + scored[0], counted + scored[1]
            for one in own:
                one.add(scores(output), y)
        found = {"loss": total / max(weights, 1)}
        if counted:
            found["accuracy"] = hits / counted
        return found | {one.name: one.value() for one in own}


def _part(features: Input, start: int) -> Input:
    return mapped(lambda leaf: leaf[start : start + CHUNK], features)


class _Measured:
    """One metric during an evaluation."""

    def __init__(self, name: str, metric: Any) -> None:
        self.name, self._metric = name, metric
        self._keeps = all(callable(getattr(metric, part, None)) for part in ("reset", "update", "compute"))
        self._outputs: list[Tensor] = []
        self._targets: list[Tensor] = []
        if self._keeps:
            self._metric = copy.deepcopy(metric)  # the user's own keeps what it has seen
            self._metric.reset()

    def add(self, outputs: Any, targets: Tensor) -> None:
        """Take the outputs of some samples."""
        if self._keeps:
            self._tried(self._metric.update, outputs, targets)
            return
        if not isinstance(outputs, Tensor):
            raise UsageError(f"the metric {self.name} needs one tensor, but the output is a {type(outputs).__name__}")
        self._outputs.append(outputs)
        self._targets.append(targets)

    def value(self) -> float:
        """Return the metric of all that was added."""
        if self._keeps:
            value = self._tried(self._metric.compute)
        else:
            value = self._tried(self._metric, torch.cat(self._outputs), torch.cat(self._targets))
        count = value.numel() if isinstance(value, Tensor) else getattr(value, "size", None)
        if count == 1:
            value = value.item()
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            said = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else shown(value)
            raise UsageError(f"the metric {self.name} returned {said}, but it must be one number")
        return float(value)

    def _tried(self, function: Callable[..., Any], *arguments: Tensor) -> Any:
        try:
            return function(*arguments)
        except Exception as error:
            shapes = " and ".join(str(tuple(each.shape)) for each in arguments if isinstance(each, Tensor))
            place = f" on outputs and targets of shapes {shapes}" if shapes else ""
            raise UsageError(f"the metric {self.name} fails{place}: {type(error).__name__}: {error}") from error


def summarised(rows: Sequence[Mapping[str, float]], kind: str) -> dict[str, float]:
    """Return mean and worst tenth of every column; of a loss or an error, the largest are the worst."""
    found = {}
    for name in rows[0]:
        values = np.sort([row[name] for row in rows])
        if not is_higher_better(name):
            values = values[::-1]
        found[f"{kind}_{name}"] = float(values.mean())
        found[f"{kind}_{name}_worst_decile"] = float(values[: max(1, len(values) // 10)].mean())
    return found
