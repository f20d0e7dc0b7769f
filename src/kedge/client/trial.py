"""Try a model on a minibatch before doing anything else with it, and report any problem in one sentence."""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from kedge.client.flat import FlatModule
from kedge.client.outputs import classes_last, count_ignored, general_cross_entropy
from kedge.client.steps import Loss
from kedge.errors import UsageError
from kedge.samples import IGNORED, Input, called, scores, shapes


class ModelTraits(NamedTuple):
    """What a minibatch shows of a model."""

    random: bool
    """Whether it draws random numbers (dropout)."""
    loss: Loss
    """The loss; for cross-entropy, the form that fits the model's output and the labels."""


def try_model(
    flat: FlatModule, features: Input, labels: Tensor, loss: Loss, all_labels: Sequence[Tensor], who: str,
    client_tests: Tensor | None = None,
) -> ModelTraits:  # fmt: skip
    """Run the model on a minibatch and check all labels.

    ``who`` explains why the minibatch is so small. The labels of ``client_tests`` do not decide the form of the loss.
    """
    device = labels.device
    buffers, before = flat.buffers.clone(), _random_state(device)
    flat.enter(buffers)
    try:
        output = called(flat.module, features)
        flat.check_tables()
        if is_cross_entropy(loss):
            check_labels(scores(output), labels, [*all_labels, *([] if client_tests is None else [client_tests])])
            loss = fitting(loss, output, all_labels)
        with warnings.catch_warnings():  # torch only warns of what is most likely not meant
            warnings.filterwarnings("error", message="Using a target size")
            value = loss(output, labels)
    except UsageError:
        raise
    except UserWarning as error:
        shape = tuple(getattr(scores(output), "shape", ()))
        raise UsageError(
            f"the model's output is {shape}, but the labels are {tuple(labels.shape)}: the loss would compare every "
            "output with every label; give them the same shape"
        ) from error
    except Exception as error:
        if "more than 1 value per channel" in str(error):
            raise UsageError(f"{who}, but BatchNorm needs more than one value per channel to train") from error
        said = f"the model or the loss fails on a minibatch of shape {shapes(features)}: {error}"
        if not labels.is_floating_point() and "Long" in said and "Float" in said:
            said += "; the labels are whole numbers, so give them as floats if the loss needs real targets"
        raise UsageError(said) from error
    finally:
        drew = any(not torch.equal(a, b) for a, b in zip(before, _random_state(device), strict=True))
        _set_random_state(before, device)
        flat.enter(buffers)
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise UsageError("the loss of a minibatch is not a scalar tensor, but must be one number")
    drops = any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 for m in flat.module.modules())
    return ModelTraits(drew or drops, loss)


def _random_state(device: torch.device) -> list[Tensor]:
    return [torch.get_rng_state()] + ([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])


def _set_random_state(state: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[1], device)


def is_cross_entropy(loss: Any) -> bool:
    """Whether ``loss`` is plain mean cross-entropy."""
    return loss is cross_entropy or is_plain(loss, nn.CrossEntropyLoss)


def fitting(loss: Loss, output: Any, all_labels: Sequence[Tensor]) -> Loss:
    """Return plain mean cross-entropy in the form that fits the model's output and the labels."""
    plain = isinstance(output, Tensor) and output.ndim == 2 and not any(map(count_ignored, all_labels))
    return loss if plain else general_cross_entropy


def is_plain(loss: Any, kind: type[nn.Module]) -> bool:
    """Whether ``loss`` is a module of this kind with default options."""
    options = ("reduction", "label_smoothing", "ignore_index", "weight")
    return type(loss) is kind and all(getattr(loss, name, None) == getattr(kind(), name, None) for name in options)


def check_labels(output: Any, labels: Tensor, all_labels: Sequence[Tensor]) -> None:
    """Check that cross-entropy can read the labels as classes, before it fails deep inside with an index error."""
    form = "(samples, classes), or (samples, tokens, classes) for labels (samples, tokens)"
    if not isinstance(output, Tensor) or output.ndim < 2:
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise UsageError(f"the model's output is {shape}, but cross-entropy needs {form}")
    for some in (labels, *all_labels):
        if some.is_floating_point():
            raise UsageError("the labels are not integers, but cross-entropy needs integers; pass a different loss")
    last = classes_last(output, labels)
    if not last and output.shape[:1] + output.shape[2:] != labels.shape:
        wanted = f"{tuple(output.shape)}, but cross-entropy needs {form}"
        raise UsageError(f"the labels have the shape {tuple(labels.shape)} and the model's output {wanted}")
    classes = output.shape[-1 if last else 1]
    for some in (labels, *all_labels):
        if some.numel() and int(some.max()) >= classes:
            raise UsageError(f"label {int(some.max())} is out of range: the model has {classes} outputs")
        if some.numel() and int(some.min()) < 0 and bool(((some < 0) & (some != IGNORED)).any()):
            worst = int(some[(some < 0) & (some != IGNORED)].min())
            raise UsageError(f"label {worst} is out of range: classes count from 0, and {IGNORED} is ignored")
