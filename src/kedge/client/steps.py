"""The local steps of one client on its own samples, with gradients from autograd or from elsewhere."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from kedge.client.flat import FlatModule
from kedge.direction import Vector
from kedge.local_steps import local_steps
from kedge.round import Done, Work

Loss = Callable[[Any, Tensor], Tensor]
"""loss(output, y): a mean over the samples."""


class Samples:
    """Samples as rows, whatever their memory layout: a minibatch is one copy."""

    def __init__(self, features: Tensor) -> None:
        self._last = features.ndim == 4 and features.is_contiguous(memory_format=torch.channels_last)
        ordered = features.permute(0, 2, 3, 1) if self._last else features
        self._shape = ordered.shape[1:]
        self._rows = ordered.reshape(len(features), -1)

    def __getitem__(self, chosen: Tensor) -> Tensor:
        batch = self._rows.index_select(0, chosen).view(len(chosen), *self._shape)
        return batch.permute(0, 3, 1, 2) if self._last else batch


class Gradients(Protocol):
    """Takes the gradients of a module's loss with respect to all its trained parameters."""

    def __call__(self, features: Tensor, labels: Tensor, seed: int | None) -> Sequence[Tensor]:
        """Return the gradients at the current parameters; ``seed`` is for the module's random numbers."""
        ...

    def loss(self) -> Tensor:
        """Return the loss of which the last gradients were taken, one number."""
        ...


class ClientSteps:
    """Runs the local steps of clients one after another on a flat module, with the given ``gradients``.

    ``own(client)`` returns which samples belong to the client.
    """

    def __init__(
        self,
        flat: FlatModule,
        gradients: Gradients,
        features: Tensor,
        labels: Tensor,
        own: Callable[[int], Tensor],
    ) -> None:
        self._flat = flat
        self._gradients = gradients
        self._samples = Samples(features)
        self._labels = labels
        self._own = own

    def run(self, work: Work) -> Done:
        """Run a client's local steps."""
        flat, calls = self._flat, 0
        flat.enter(work.buffers)
        (client,) = work.clients
        own = self._own(client)
        rows = None if work.batches is None else own[torch.from_numpy(work.batches[0]).to(own.device)]
        features = labels = self._labels
        loaded = -1
        grad = torch.empty_like(work.start)
        losses: list[Tensor] = []

        def gradient(point: Vector, k: int, second: bool) -> Vector:
            nonlocal calls, features, labels, loaded
            calls += 1
            wanted = 0 if rows is None else k
            if wanted != loaded:
                chosen = own if rows is None else rows[k]
                features = self._samples[chosen]
                labels, loaded = self._labels.index_select(0, chosen), wanted
            flat.bind(point)
            kept = flat.buffers.clone() if second and flat.buffers.numel() else None
            parts = self._gradients(features, labels, None if work.seeds is None else int(work.seeds[0, k]))
            torch.cat([part.reshape(-1) for part in parts], out=grad[0])
            if work.measured and not second:
                losses.append(self._gradients.loss())
            if work.weight_decay:
                grad.add_(point, alpha=work.weight_decay)
            if kept is not None:
                flat.buffers.copy_(kept)
            return grad

        local = local_steps(
            work.rule, work.start, work.eta, work.steps, gradient, work.needs, work.update, work.clients
        )
        return Done(local, flat.buffers.clone(), calls, [torch.stack(losses).tolist()] if losses else ())


class Autograd:
    """Takes the gradients of any module."""

    def __init__(self, flat: FlatModule, loss: Loss) -> None:
        self._flat = flat
        self._loss = loss
        self._last = flat.initial.new_zeros(())

    def __call__(self, features: Tensor, labels: Tensor, seed: int | None) -> Sequence[Tensor]:
        """Return the gradients at the currently bound parameters."""
        if seed is not None:
            torch.manual_seed(seed)
        with torch.enable_grad():
            loss = self._loss(self._flat.module(features), labels)
            self._last = loss.detach()
            parts = torch.autograd.grad(loss, self._flat.parameters, allow_unused=True, materialize_grads=True)
        return [part if part.layout == torch.strided else part.to_dense() for part in parts]

    def loss(self) -> Tensor:
        """Return the loss of the last call."""
        return self._last.reshape(())
