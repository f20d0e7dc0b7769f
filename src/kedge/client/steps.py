"""The local steps of one client on its own samples, with gradients from autograd or from elsewhere."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from kedge.client.flat import FlatModule
from kedge.direction import Vector
from kedge.local_steps import local_steps
from kedge.round import Done, Work
from kedge.samples import Input, Samples, called

Loss = Callable[[Any, Tensor], Tensor]
"""loss(output, y): a mean over the samples."""


class Gradients(Protocol):
    """Takes the gradients of a module's loss with respect to all its trained parameters."""

    def __call__(self, features: Input, labels: Tensor, seed: int | None) -> Sequence[Tensor]:
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
        samples: Samples,
        own: Callable[[int], Tensor],
    ) -> None:
        self._flat = flat
        self._gradients = gradients
        self._samples = samples
        self._own = own

    def run(self, work: Work) -> Done:
        """Run a client's local steps."""
        flat, calls = self._flat, 0
        flat.enter(work.buffers)
        (client,) = work.clients
        own = self._own(client)
        rows = None if work.batches is None else own[torch.from_numpy(work.batches[0]).to(own.device)]
        features = labels = own
        loaded = -1
        grad = torch.empty_like(work.start)
        losses: list[Tensor] = []

        def gradient(point: Vector, k: int, second: bool) -> Vector:
            nonlocal calls, features, labels, loaded
            calls += 1
            wanted = 0 if rows is None and not self._samples.lazy else k
            seed = None if work.seeds is None else int(work.seeds[0, k])
            if wanted != loaded:
                chosen = own if rows is None else rows[k]
                features, labels = self._samples.take(chosen, seed)
                loaded = wanted
            flat.bind(point)
            kept = flat.buffers.clone() if second and flat.buffers.numel() else None
            parts = self._gradients(features, labels, seed)
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

    def __call__(self, features: Input, labels: Tensor, seed: int | None) -> Sequence[Tensor]:
        """Return the gradients at the currently bound parameters."""
        if seed is not None:
            torch.manual_seed(seed)
        with torch.enable_grad():
            loss = self._loss(called(self._flat.module, features), labels)
            self._last = loss.detach()
            parts = torch.autograd.grad(loss, self._flat.parameters, allow_unused=True, materialize_grads=True)
        return [part if part.layout == torch.strided else part.to_dense() for part in parts]

    def loss(self) -> Tensor:
        """Return the loss of the last call."""
        return self._last.reshape(())
