"""Exact losses, gradients and Hessian-vector products of the clients of a federation, and power iteration.

A Hessian-vector product is a derivative of the gradient by autograd (Pearlmutter 1994): about two gradients.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase

from kedge.client import FlatModule, Loss, views
from kedge.problem import Federation
from kedge.samples import called, scores

CHUNK, SMALL_CHUNK, LARGE = 8192, 64, 1_000_000
"""Samples that are evaluated at once: of a model with fewer parameters than LARGE, and of others."""

Operator = Callable[[Tensor], Tensor]
"""v -> Av, A symmetric."""


class Part(NamedTuple):
    """Some samples of one client, and the client's weight in the objective: the weights sum to 1."""

    rows: Tensor
    weight: float


class Oracle:
    """Evaluates losses on parts of a federation, and counts how many samples it has taken gradients of."""

    def __init__(
        self, model: nn.Module, federation: Federation, loss: Loss, weight_decay: float = 0.0, seed: int = 0
    ) -> None:
        flat = FlatModule(model, torch.device("cpu"))
        flat.enter(flat.buffers.clone())
        self.initial = flat.initial
        self.federation = federation.to(flat.initial.dtype)
        self._data = self.federation.samples
        self.samples = 0.0
        """Sample gradients so far; a Hessian-vector product counts as two."""
        self._module, self._loss, self._decay, self._seed = flat.module, loss, weight_decay, seed
        self._names = [name for name, value in flat.module.named_parameters() if value.requires_grad]
        self._shapes = [value.shape for value in flat.parameters]
        self._frozen = {name: value for name, value in flat.module.named_parameters() if not value.requires_grad}
        self._is_small = flat.initial.numel() < LARGE
        # BatchNorm sees a whole batch: clients may not share one.
        self._is_joint = not any(isinstance(module, _NormBase) for module in flat.module.modules())

    def loss(self, x: Tensor, parts: Sequence[Part]) -> float:
        """Return Σ_i p_i f_i(x)."""
        with torch.no_grad(), self._repeatable():
            total = sum(float(self._value(x, some)) for some in self._chunks(parts))
        return total + self._decay / 2 * float(x @ x)

    def gradient(self, x: Tensor, parts: Sequence[Part]) -> Tensor:
        """Return Σ_i p_i ∇f_i(x)."""
        x = x.detach().requires_grad_()
        total = self._decay * x.detach()
        with torch.enable_grad(), self._repeatable():
            for some in self._chunks(parts):
                total += torch.autograd.grad(self._value(x, some), x)[0]
        self.samples += sum(len(part.rows) for part in parts)
        return total

    def each(self, x: Tensor, parts: Sequence[Part]) -> Tensor:
        """Return the gradient of every part alone: (parts, d)."""
        return torch.stack([self.gradient(x, [part._replace(weight=1.0)]) for part in parts])

    def hessian(self, x: Tensor, parts: Sequence[Part]) -> Operator:
        """Return the Hessian of Σ_i p_i f_i at x. The graphs of a small model's gradients are kept for all products."""
        x = x.detach().requires_grad_()
        groups = list(self._chunks(parts))
        kept = [self._graph(x, some) for some in groups] if self._is_small else None
        count = sum(len(part.rows) for part in parts)

        def product(vector: Tensor) -> Tensor:
            self.samples += 2 * count
            total = self._decay * vector
            for gradient in kept or (self._graph(x, some) for some in groups):
                if gradient.requires_grad:  # a linear loss has no curvature
                    total = (
                        total
                        + torch.autograd.grad(
                            gradient, x, vector, retain_graph=kept is not None, materialize_grads=True
                        )[0]
                    )
            return total

        return product

    def _graph(self, x: Tensor, parts: Sequence[Part]) -> Tensor:
        with torch.enable_grad(), self._repeatable():
            return torch.autograd.grad(self._value(x, parts), x, create_graph=True)[0]

    def _value(self, x: Tensor, parts: Sequence[Part]) -> Tensor:
        given = dict(zip(self._names, views(x, self._shapes), strict=True)) | self._frozen
        buffers = {name: buffer.clone() for name, buffer in self._module.named_buffers()}
        rows = torch.cat([part.rows for part in parts])
        data, labels = self._data.take(rows)

        def module(*arguments: Any, **named: Any) -> Any:
            return functional_call(self._module, (given, buffers), arguments, named)

        output = scores(called(module, data))
        if len(parts) == 1:
            return parts[0].weight * self._loss(output, labels)
        sizes = [len(part.rows) for part in parts]
        pieces = zip(torch.split(output, sizes), torch.split(labels, sizes), parts, strict=True)
        return torch.stack([part.weight * self._loss(out, y) for out, y, part in pieces]).sum()

    def _chunks(self, parts: Sequence[Part]) -> Iterator[list[Part]]:
        """Group parts into chunks, and cut parts that are larger than one."""
        most = CHUNK if self._is_small else SMALL_CHUNK
        group: list[Part] = []
        for part in parts:
            for rows in torch.split(part.rows, most):
                if group and (not self._is_joint or sum(len(other.rows) for other in group) + len(rows) > most):
                    yield group
                    group = []
                group.append(Part(rows, part.weight * len(rows) / len(part.rows)))
        yield group

    @contextmanager
    def on_one_thread(self) -> Iterator[None]:
        """Compute with one thread, if the model is small: many small products are slower with several."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1 if self._is_small else threads)
        try:
            yield
        finally:
            torch.set_num_threads(threads)

    @contextmanager
    def _repeatable(self) -> Iterator[None]:
        """Let a model that draws random numbers draw the same ones every time."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            yield


class Eigenvalue(NamedTuple):
    """The size of the largest eigenvalue, an estimate from below, and how far it may be from an eigenvalue."""

    value: float
    residual: float
    vector: Tensor


def power_iteration(
    product: Operator, start: Tensor, steps: int = 30, tolerance: float = 0.01, floor: float = 0.0
) -> Eigenvalue:
    """Find the eigenvalue of largest size of a symmetric matrix.

    Stop when the residual |Av - λv| is below ``tolerance`` times |λ|, or when ``floor`` is out of reach.
    """
    vector = start / start.norm()
    found = Eigenvalue(0.0, 0.0, vector)
    for step in range(steps):
        image = product(vector)
        value = float(vector @ image)
        size = float(image.norm())
        # λ_max is at least |Av|, and the residual of the Rayleigh quotient is orthogonal to v.
        residual = math.sqrt(max(size**2 - value**2, 0.0))
        found = Eigenvalue(max(abs(value), found.value), residual, vector)
        if size == 0 or residual <= tolerance * abs(value) or (step >= 3 and abs(value) + residual < floor):
            break
        vector = image / size
    return found
