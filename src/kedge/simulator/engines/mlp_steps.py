"""What one call of `fused-mlp` works with: the samples of all steps, the gradients at fixed points, the losses."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from kedge.simulator.engines.layers import KnownLoss


class Losses(NamedTuple):
    """The outputs of a group's local steps, kept to compute all losses at once: a call costs more than its numbers."""

    loss: KnownLoss
    steps: list[tuple[Tensor, Tensor]]

    def add(self, output: Tensor, target: Tensor) -> None:
        """Keep a step's output."""
        self.steps.append((output, target))

    def of_clients(self) -> list[list[float]]:
        """Return the loss of every client and step."""
        if not self.steps:
            return []
        outputs, targets = (torch.stack(parts, 1) for parts in zip(*self.steps, strict=True))
        values = self.loss.value(outputs, targets)
        found: list[list[float]] = values.double().cpu().numpy().mean(-1).tolist()
        return found


@dataclass(frozen=True)
class StepSamples:
    """The samples of all steps of a group of clients."""

    features: Tensor
    target: Tensor
    size: int  # samples of a step
    repeated: bool  # whether every step uses all of them
    masks: list[list[Tensor | None]]

    def cut(self, tensor: Tensor) -> Sequence[Tensor]:
        """Return the part of each step."""
        return [tensor] * len(self.masks) if self.repeated else torch.split(tensor, self.size, 1)

    @functools.cached_property
    def _steps(self) -> list[tuple[Tensor, Tensor, list[Tensor | None]]]:
        return list(zip(self.cut(self.features), self.cut(self.target), self.masks, strict=True))

    def step(self, k: int) -> tuple[Tensor, Tensor, Sequence[Tensor | None]]:
        """Return features, target and dropout masks of step k."""
        return self._steps[k]

    def everything(self) -> tuple[Tensor, Tensor, Sequence[Tensor | None]]:
        """Return the same of all steps at once."""
        layers = zip(*self.masks, strict=True)
        masks = [None if layer[0] is None else torch.cat(layer, 1) for layer in layers]
        return self.features, self.target, masks


@dataclass(frozen=True)
class Anchored:
    """The gradients at a fixed point of all steps, as what they are products of."""

    deltas: list[Tensor]
    inputs: list[Tensor]

    def step(self, k: int, number: int, data: StepSamples) -> tuple[Tensor, Tensor]:
        """Return δ and h of a layer in step k."""
        part = slice(0, data.size) if data.repeated else slice(k * data.size, (k + 1) * data.size)
        return self.deltas[number][:, part], self.inputs[number][:, part]
