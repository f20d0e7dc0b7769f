"""Which models the fused engines can run: their layers, activations and losses, in the form the engines need."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from kedge.client import Loss, frozen
from kedge.client.trial import is_cross_entropy, is_plain

aten: Any = torch.ops.aten


@dataclass(frozen=True)
class Activation:
    """An activation in place, and its backward from the output."""

    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Tensor]  # (δ after, output) -> δ before, in place


def _relu_backward(delta: Tensor, output: Tensor) -> Tensor:
    result: Tensor = aten.threshold_backward.grad_input(delta, output, 0, grad_input=delta)
    return result


def _tanh_backward(delta: Tensor, output: Tensor) -> Tensor:
    result: Tensor = aten.tanh_backward.grad_input(delta, output, grad_input=delta)
    return result


def _sigmoid_backward(delta: Tensor, output: Tensor) -> Tensor:
    result: Tensor = aten.sigmoid_backward.grad_input(delta, output, grad_input=delta)
    return result


ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.ReLU: Activation(torch.relu_, _relu_backward),
    nn.Tanh: Activation(torch.tanh_, _tanh_backward),
    nn.Sigmoid: Activation(torch.sigmoid_, _sigmoid_backward),
}


@dataclass(frozen=True)
class Layer:
    """A linear layer and what follows it."""

    inputs: int
    outputs: int
    bias: bool
    activation: Activation | None = None
    dropout: float = 0.0


def plan(model: nn.Module, loss: Loss, labels: Tensor) -> list[Layer] | None:
    """Return the layers of a stack of linear ones, or None if the model is something else."""
    modules = unwrapped(model)
    while modules and type(modules[0]) is nn.Flatten and modules[0].start_dim == 1:
        modules.pop(0)
    layers: list[Layer] = []
    for module in modules:
        last = layers[-1] if layers else None
        if type(module) is nn.Linear:
            layers.append(Layer(module.in_features, module.out_features, module.bias is not None))
        elif type(module) in ACTIVATIONS and last and last.activation is None and not last.dropout:
            layers[-1] = dataclasses.replace(last, activation=ACTIVATIONS[type(module)])
        elif type(module) is nn.Dropout and last and not last.dropout and module.p < 1:
            layers[-1] = dataclasses.replace(last, dropout=module.p)
        else:
            return None
    return layers if modules and fits(modules[-1], loss, labels) else None


def unwrapped(model: nn.Module) -> list[nn.Module]:
    """Return the modules that a plain sequence runs one after another, or none of them.

    Plain means no hooks, buffers or frozen parts, and every parameter trained, used once, and in the order of the
    layers, weights before biases.
    """
    modules = _flattened(model)
    owned = [p for module in modules for name in ("weight", "bias") if (p := getattr(module, name, None)) is not None]
    trained = [p for p in model.parameters() if p.requires_grad]
    complete = len(owned) == len(trained) and all(p is q for p, q in zip(owned, trained, strict=True))
    special = any(True for _ in model.buffers()) or any(_is_watched(module) for module in model.modules())
    return modules if complete and not special and not frozen(model) else []


def _is_watched(module: nn.Module) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks) or "forward" in vars(module)


def _flattened(module: nn.Module) -> list[nn.Module]:
    if type(module) is nn.Sequential:
        return [inner for child in module for inner in _flattened(child)]
    return [] if type(module) is nn.Identity else [module]


def fits(last: nn.Module, loss: Loss, labels: Tensor) -> bool:
    """Whether the gradient of the loss with respect to the output of ``last`` is known.

    It is for a plain linear output, with class labels or with targets of the output's own shape (torch would
    broadcast others).
    """
    if type(last) is not nn.Linear or known_loss(loss) is None:
        return False
    if is_cross_entropy(loss):
        return labels.ndim == 1 and not labels.is_floating_point()
    return labels.is_floating_point() and labels.shape[1:] == (last.out_features,)


@dataclass(frozen=True)
class KnownLoss:
    """A loss whose gradient with respect to the output is factor x delta; the factor depends only on the shape."""

    delta: Callable[[Tensor, Tensor, Tensor], Tensor]  # (output, target, where to write)
    factor: Callable[[int, int], float]  # (samples, outputs)
    value: Callable[[Tensor, Tensor], Tensor]  # (output, target): the loss of each sample


def _cross_entropies(output: Tensor, target: Tensor) -> Tensor:
    # With the classes first: torch is ten times as fast there as with a few classes last. Its last few columns would be
    # computed by other code than the rest, and which clients those are depends on the groups: they are filled up.
    columns = output.reshape(-1, output.shape[-1]).T
    logs = torch.log_softmax(torch.nn.functional.pad(columns, (0, -columns.shape[1] % 64)), 0)[:, : columns.shape[1]]
    return (logs * target.reshape(-1, output.shape[-1]).T).sum(0).neg_().view(output.shape[:-1])


CROSS_ENTROPY = KnownLoss(
    lambda output, target, out: torch.softmax(output, -1, out=out).sub_(target),
    lambda samples, _: 1 / samples,
    _cross_entropies,
)
SQUARED_ERROR = KnownLoss(
    lambda output, target, out: torch.sub(output, target, out=out),
    lambda samples, outputs: 2 / (samples * outputs),
    lambda output, target: (output - target).square().mean(-1),
)


def known_loss(loss: Loss) -> KnownLoss | None:
    """Return what is known about the gradient of ``loss``."""
    if is_cross_entropy(loss):
        return CROSS_ENTROPY
    return SQUARED_ERROR if loss is mse_loss or is_plain(loss, nn.MSELoss) else None
