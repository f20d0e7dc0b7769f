"""Try a model on a minibatch before doing anything else with it, and report any problem in one sentence."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from kedge.client.flat import FlatModule
from kedge.client.steps import Loss
from kedge.errors import UsageError


def try_model(
    flat: FlatModule, features: Tensor, labels: Tensor, loss: Loss, all_labels: Iterable[Tensor], who: str
) -> bool:
    """Run the model on a minibatch and check all labels; return whether it draws random numbers (dropout).

    ``who`` explains why the minibatch is so small.
    """
    buffers, before = flat.buffers.clone(), _random_state(features.device)
    flat.enter(buffers)
    try:
        output = flat.module(features)
        flat.check_tables()
        if is_cross_entropy(loss):
            check_labels(output, all_labels)
        value = loss(output, labels)
    except UsageError:
        raise
    except Exception as error:
        if "more than 1 value per channel" in str(error):
            raise UsageError(f"{who}, but BatchNorm needs more than one value per channel to train") from error
        shape = tuple(features.shape)
        raise UsageError(f"the model or the loss fails on a minibatch of shape {shape}: {error}") from error
    finally:
        drew = any(not torch.equal(a, b) for a, b in zip(before, _random_state(features.device), strict=True))
        _set_random_state(before, features.device)
        flat.enter(buffers)
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise UsageError("the loss of a minibatch is not a scalar tensor, but must be one number")
    drops = any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 for m in flat.module.modules())
    return drew or drops


def _random_state(device: torch.device) -> list[Tensor]:
    return [torch.get_rng_state()] + ([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])


def _set_random_state(state: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[1], device)


def is_cross_entropy(loss: Any) -> bool:
    """Whether ``loss`` is plain mean cross-entropy."""
    return loss is cross_entropy or is_plain(loss, nn.CrossEntropyLoss)


def is_plain(loss: Any, kind: type[nn.Module]) -> bool:
    """Whether ``loss`` is a module of this kind with default options."""
    options = ("reduction", "label_smoothing", "ignore_index", "weight")
    return type(loss) is kind and all(getattr(loss, name, None) == getattr(kind(), name, None) for name in options)


def check_labels(output: Any, labels: Iterable[Tensor]) -> None:
    """Check that cross-entropy can read the labels as classes, before it fails deep inside with an index error."""
    if not isinstance(output, Tensor) or output.ndim != 2:
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise UsageError(f"the model's output is {shape}, but cross-entropy needs (samples, classes)")
    for some in labels:
        if some.is_floating_point():
            raise UsageError("the labels are not integers, but cross-entropy needs integers; pass a different loss")
        if some.ndim != 1:
            raise UsageError(f"the labels have the shape {tuple(some.shape)}, but cross-entropy needs (samples,)")
        if some.numel() and int(some.max()) >= output.shape[1]:
            raise UsageError(f"label {int(some.max())} is out of range: the model has {output.shape[1]} outputs")
