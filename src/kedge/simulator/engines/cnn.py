"""The convolutional engine: stacks of convolutions, pooling and linear layers, forward and backward written out.

The kernels are those that autograd would call; the engine saves everything else that autograd does. Channels are padded
with zeros to numbers for which the kernels are fast. Dropout has its own random streams, so clients can run at the same
time; dropout on images is left to autograd, because the order of its numbers depends on how torch lays out an image.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from kedge.client import FlatModule, Loss
from kedge.problem import Federation
from kedge.round import Done, Work
from kedge.simulator.engines.base import Engine, Setup
from kedge.simulator.engines.layers import ACTIVATIONS, fits, known_loss, unwrapped

aten: Any = torch.ops.aten

WIDE, MISSING = 8, 3
"""Channels are padded to a multiple of the first if at most the second are missing: the kernels for 8 channels are
faster than those for 6, but those for 24 are not faster than those for 20."""


class Stage(Protocol):
    """A layer: `forward` keeps what `backward` needs."""

    def forward(self, h: Tensor, source: torch.Generator | None) -> Tensor:
        """Return the output; ``source`` is for random numbers."""
        ...

    def backward(self, delta: Tensor, further: bool) -> tuple[Tensor, list[Tensor]]:
        """Return δ before the layer, if it must go ``further``, and the gradients with respect to its parameters."""
        ...


class _Convolution:
    """A convolution; ``inputs`` and ``outputs`` beyond the module's own are zero."""

    def __init__(self, module: nn.Conv2d, inputs: int, outputs: int) -> None:
        self._module = module
        self._geometry = (module.stride, module.padding, module.dilation, False, (0, 0), module.groups)
        wide = module.weight.new_zeros(outputs, inputs, *module.kernel_size)
        self._weight = wide.to(memory_format=torch.channels_last)
        self._bias = None if module.bias is None else module.bias.new_zeros(outputs)
        self._own = (slice(module.weight.shape[0]), slice(module.weight.shape[1]))

    def forward(self, h: Tensor, source: torch.Generator | None) -> Tensor:
        self._h = h
        self._weight[self._own].copy_(self._module.weight)
        bias = self._module.bias
        if self._bias is not None and bias is not None:
            self._bias[self._own[0]].copy_(bias)
        output: Tensor = aten.convolution(h, self._weight, self._bias, *self._geometry)
        return output

    def backward(self, delta: Tensor, further: bool) -> tuple[Tensor, list[Tensor]]:
        wanted = (further, True, False)
        before, weight, _ = aten.convolution_backward(delta, self._h, self._weight, None, *self._geometry, wanted)
        parts = [weight[self._own]]
        if self._bias is not None:
            parts.append(delta.sum((0, 2, 3))[self._own[0]])
        return before, parts


class _Affine:
    def __init__(self, module: nn.Linear) -> None:
        self._module = module

    def forward(self, h: Tensor, source: torch.Generator | None) -> Tensor:
        self._h = h
        return nn.functional.linear(h, self._module.weight, self._module.bias)

    def backward(self, delta: Tensor, further: bool) -> tuple[Tensor, list[Tensor]]:
        parts = [delta.t() @ self._h]
        if self._module.bias is not None:
            parts.append(delta.sum(0))
        return delta @ self._module.weight if further else delta, parts


class _MaxPool:
    def __init__(self, module: nn.MaxPool2d) -> None:
        self._geometry = (module.kernel_size, module.stride, module.padding, module.dilation, module.ceil_mode)

    def forward(self, h: Tensor, source: torch.Generator | None) -> Tensor:
        self._h = h
        output: Tensor
        output, self._where = aten.max_pool2d_with_indices(h, *self._geometry)
        return output

    def backward(self, delta: Tensor, further: bool) -> tuple[Tensor, list[Tensor]]:
        return aten.max_pool2d_with_indices_backward(delta, self._h, *self._geometry, self._where), []


class _Activated:
    def __init__(self, module: nn.Module) -> None:
        self._activation = ACTIVATIONS[type(module)]

    def forward(self, h: Tensor, source: torch.Generator | None) -> Tensor:
        self._output = self._activation.forward(h)
        return self._output

    def backward(self, delta: Tensor, further: bool) -> tuple[Tensor, list[Tensor]]:
        return self._activation.backward(delta, self._output), []


class _Flattened:
    """Images as rows, of their first ``channels``."""

    def __init__(self, channels: int) -> None:
        self._own = (slice(None), slice(channels))

    def forward(self, h: Tensor, source: torch.Generator | None) -> Tensor:
        self._h = h
        return h[self._own].flatten(1)

    def backward(self, delta: Tensor, further: bool) -> tuple[Tensor, list[Tensor]]:
        before = torch.zeros_like(self._h)
        before[self._own] = delta.view_as(before[self._own])
        return before, []


class _Dropped:
    def __init__(self, module: nn.Dropout) -> None:
        self._kept = 1 - module.p

    def forward(self, h: Tensor, source: torch.Generator | None) -> Tensor:
        self._mask = torch.empty_like(h).bernoulli_(self._kept, generator=source).div_(self._kept)
        return h * self._mask

    def backward(self, delta: Tensor, further: bool) -> tuple[Tensor, list[Tensor]]:
        return delta * self._mask, []


_OVERWRITABLE = (_Convolution, _Affine, _MaxPool)
"""Layers that do not need their own output, so an activation may be computed in place."""


def stages(model: nn.Module, loss: Loss, federation: Federation) -> list[Stage] | None:
    """Return the layers of a model that this engine can run, written out, or None."""
    modules = unwrapped(model)
    if not modules or not fits(modules[-1], loss, federation.labels) or federation.features.ndim != 4:
        return None
    cpu = federation.features.device.type == "cpu"
    fill = cpu and all(module.groups == 1 for module in modules if isinstance(module, nn.Conv2d))
    channels = wide = federation.features.shape[1]
    images = True
    found: list[Stage] = []
    for module in modules:
        last = found[-1] if found else None
        if type(module) is nn.Conv2d and images and _pads_with_zeros(module):
            before, channels = wide // module.groups, module.out_channels
            wide = channels + (-channels % WIDE if fill and -channels % WIDE <= MISSING else 0)
            found.append(_Convolution(module, before, wide))
        elif type(module) is nn.MaxPool2d and images and not module.return_indices:
            found.append(_MaxPool(module))
        elif type(module) is nn.Flatten and images and (module.start_dim, module.end_dim) == (1, -1):
            found.append(_Flattened(channels))
            images = False
        elif type(module) is nn.Linear and not images:
            found.append(_Affine(module))
        elif type(module) is nn.Dropout and not module.p:
            continue
        elif type(module) is nn.Dropout and not images and module.p < 1:
            found.append(_Dropped(module))
        elif type(module) in ACTIVATIONS and isinstance(last, _OVERWRITABLE):
            found.append(_Activated(module))
        else:
            return None
    return found


def _pads_with_zeros(module: nn.Conv2d) -> bool:
    return module.padding_mode == "zeros" and not isinstance(module.padding, str)


class WrittenOut:
    """Takes the gradients of a stack of layers without autograd."""

    def __init__(self, layers: list[Stage], classes: int, loss: Loss, like: Tensor) -> None:
        self._stages = layers
        known = known_loss(loss)
        assert known is not None, "stages() has checked the loss"
        self._known = known
        self._first = next(i for i, stage in enumerate(self._stages) if isinstance(stage, _Convolution | _Affine))
        self._one_hot = torch.eye(classes, dtype=like.dtype, device=like.device)
        self._last = (self._one_hot, self._one_hot)

    def __call__(self, features: Tensor, labels: Tensor, seed: int | None) -> Sequence[Tensor]:
        """Return the gradients at the currently bound parameters."""
        source = None if seed is None else torch.Generator(features.device).manual_seed(seed)
        h = features
        for stage in self._stages:
            h = stage.forward(h, source)
        target = labels if labels.is_floating_point() else self._one_hot.index_select(0, labels)
        self._last = h, target
        delta = self._known.delta(h, target, torch.empty_like(h)).mul_(self._known.factor(*h.shape))
        parts: list[Tensor] = []
        for number in reversed(range(self._first, len(self._stages))):
            delta, own = self._stages[number].backward(delta, number > self._first)
            parts = own + parts
        return parts

    def loss(self) -> Tensor:
        """Return the loss of the last call."""
        return self._known.value(*self._last).mean()


class CNNEngine:
    """Runs stacks of convolutions, pooling and linear layers without autograd."""

    name = "fused-cnn"

    def __init__(self, setup: Setup) -> None:
        flat = FlatModule(setup.model, setup.device)
        layers = stages(flat.module, setup.loss, setup.federation)
        assert layers is not None, "builder() has asked"
        gradients = WrittenOut(layers, flat.parameters[-1].shape[0], setup.loss, setup.federation.features)
        self._steps = setup.steps(flat, gradients)

    def group(self, batch_size: int | None) -> int:
        """Return how many clients a group may have."""
        return 1

    def run(self, work: Work) -> Done:
        """Run a client's local steps."""
        return self._steps.run(work)


def builder(setup: Setup) -> Callable[[], Engine] | None:
    """Return a builder of engines, or None if this kind cannot run the model."""
    if stages(setup.model, setup.loss, setup.federation) is None:
        return None
    return partial(CNNEngine, setup)
