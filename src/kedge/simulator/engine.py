"""Local steps of any PyTorch module: the general engine.

The module's parameters are views of one flat vector, so a step is a few vector operations however many parameters
there are. Buffers (BatchNorm's statistics) are not part of the algorithms' vectors: they start from the server's at
every client, follow the gradients at the local model, and are averaged apart.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from kedge.direction import Direction, Vector
from kedge.errors import UsageError
from kedge.exchange import Local
from kedge.local_steps import local_steps
from kedge.problem import Federation

Loss = Callable[[Any, Tensor], Tensor]


def _views(flat: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    parts = torch.split(flat, [shape.numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _flat(tensors: Sequence[Tensor], like: Tensor) -> Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors]) if tensors else like.new_zeros(0)


class FlatModule:
    """A copy of a module whose trainable parameters and floating buffers are views of two flat vectors."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.module = copy.deepcopy(model).to(device)
        self.parameters = [p for p in self.module.parameters() if p.requires_grad]
        if not self.parameters:
            raise UsageError("the model has no parameter to train")
        self._shapes = [p.shape for p in self.parameters]
        self._bound = _flat(self.parameters, self.parameters[0])
        self.initial = self._bound.clone()
        floating = [b for b in self.module.buffers() if b.is_floating_point()]
        self.buffers = _flat(floating, self._bound)
        for buffer, view in zip(floating, _views(self.buffers, [b.shape for b in floating]), strict=True):
            buffer.data = view
        self._counters = [(b, b.clone()) for b in self.module.buffers() if not b.is_floating_point()]
        self.bind(self._bound)

    def enter(self, buffers: Tensor) -> None:
        """Start a client's training from the server's buffers; counters start anew at every client."""
        self.module.train()
        self.buffers.copy_(buffers)
        for counter, initial in self._counters:
            counter.copy_(initial)

    def bind(self, point: Vector) -> None:
        """Let the parameters be views of ``point``."""
        if point.data_ptr() == self._bound.data_ptr():
            return
        self._bound = point
        for parameter, view in zip(self.parameters, _views(point, self._shapes), strict=True):
            parameter.data = view

    def exported(self, x: Vector, buffers: Tensor) -> nn.Module:
        """Return an independent module with these parameters and buffers."""
        self.bind(x)
        self.buffers.copy_(buffers)
        result = copy.deepcopy(self.module)
        for buffer in result.buffers():
            buffer.data = buffer.data.clone()  # a deep copy leaves them views of one storage
        return result


class ModuleEngine:
    """Runs one client at a time with autograd."""

    name = "module"

    def __init__(
        self, model: nn.Module, federation: Federation, loss: Loss, weight_decay: float, device: torch.device
    ) -> None:
        self.flat = FlatModule(model, device)
        self.federation = federation
        self.loss = loss
        self.weight_decay = weight_decay
        output, self.random = self._tried()
        if loss is cross_entropy:
            self._check_labels(output)

    def _tried(self) -> tuple[Any, bool]:
        """Run the model on two samples; return its output and whether it drew random numbers (dropout)."""
        features, labels = self.federation.features[:2], self.federation.labels[:2]
        before, buffers = torch.get_rng_state(), self.flat.buffers.clone()
        try:
            output = self.flat.module.train()(features)
            if self.loss is not cross_entropy:
                self.loss(output, labels)
        except Exception as error:
            shape = tuple(features.shape[1:])
            raise UsageError(f"the model or the loss fails on two samples of shape {shape}: {error}") from error
        after = torch.get_rng_state()
        torch.set_rng_state(before)
        self.flat.buffers.copy_(buffers)
        return output, not torch.equal(before, after)

    def _check_labels(self, output: Any) -> None:
        """Cross-entropy reads labels as classes; say so before an index error deep inside does."""
        if output.ndim != 2:
            raise UsageError(
                f"the model's output for two samples has the shape {tuple(output.shape)}, not (2, classes)"
            )
        tests = [] if self.federation.test is None else [self.federation.test[1]]
        for labels in [self.federation.labels, *tests]:
            if labels.is_floating_point():
                raise UsageError("the labels are not integers, as cross-entropy needs; pass another loss")
            if labels.numel() and int(labels.max()) >= output.shape[1]:
                raise UsageError(f"label {int(labels.max())} is out of range: the model has {output.shape[1]} outputs")

    def run(
        self,
        rule: Direction,
        start: Vector,
        buffers: Tensor,
        eta: float,
        client: int,
        batches: NDArray[np.int64] | None,
        seeds: NDArray[np.int64],
        mean_grad: bool,
    ) -> tuple[Local, Tensor, int]:
        """Run a client's local steps; return what they leave, its buffers and the number of gradients taken.

        Step k uses the samples ``batches[k]`` of the client, or with None its whole data, and the dropout masks of
        ``seeds[k]``.
        """
        flat, calls = self.flat, 0
        flat.enter(buffers)
        own = self.federation.indices[client]
        rows = None if batches is None else own[torch.from_numpy(batches).to(own.device)]
        features, labels, loaded = self.federation.features, self.federation.labels, -1
        grad = torch.empty_like(start)

        def gradient(point: Vector, k: int, second: bool) -> Vector:
            nonlocal calls, features, labels, loaded
            calls += 1
            wanted = 0 if rows is None else k
            if wanted != loaded:
                chosen = own if rows is None else rows[k]
                features, labels = self.federation.features[chosen], self.federation.labels[chosen]
                loaded = wanted
            flat.bind(point)
            kept = flat.buffers.clone() if second and flat.buffers.numel() else None
            if self.random:
                torch.manual_seed(int(seeds[k]))
            loss = self.loss(flat.module(features), labels)
            parts = torch.autograd.grad(loss, flat.parameters, allow_unused=True, materialize_grads=True)
            torch.cat([part.reshape(-1) for part in parts], out=grad)
            if self.weight_decay:
                grad.add_(point, alpha=self.weight_decay)
            if kept is not None:
                flat.buffers.copy_(kept)
            return grad

        local = local_steps(rule, start, eta, len(seeds), gradient, mean_grad)
        return local, flat.buffers.clone(), calls
