"""What a model's scores say: the cross-entropy and the accuracy, of sequences and with ignored labels too.

Scores are (samples, classes), or (samples, tokens, classes) with labels (samples, tokens), as language models give, or
(samples, classes, ...) with labels (samples, ...), as torch has them for images. The label -100 is ignored.
"""

from typing import Any

from torch import Tensor
from torch.nn.functional import cross_entropy

from kedge.samples import IGNORED, scores


def classes_last(output: Tensor, labels: Tensor) -> bool:
    """Whether the last dimension of the scores is that of the classes."""
    return output.ndim == labels.ndim + 1 and output.shape[:-1] == labels.shape


def general_cross_entropy(output: Any, labels: Tensor) -> Tensor:
    """Return the mean over all labels that are not ignored; 0 if all of them are."""
    found = scores(output)
    if labels.ndim > 1 and classes_last(found, labels):
        found, labels = found.flatten(0, -2), labels.flatten()
    return cross_entropy(found, labels, reduction="sum", ignore_index=IGNORED) / (labels != IGNORED).sum().clamp(min=1)


def right(output: Any, labels: Tensor) -> tuple[int, int] | None:
    """Return how many labels the scores get right, and of how many; None if these are not scores of classes."""
    found = scores(output)
    if not isinstance(found, Tensor) or labels.is_floating_point() or found.ndim != labels.ndim + 1 or found.ndim < 2:
        return None
    last = classes_last(found, labels)
    if not last and found.shape[:1] + found.shape[2:] != labels.shape:
        return None
    hits = found.argmax(dim=-1 if last else 1) == labels
    ignored = count_ignored(labels)
    return int(hits.sum()), labels.numel() - ignored


def count_ignored(labels: Tensor) -> int:
    """Return how many labels are ignored."""
    return 0 if labels.is_floating_point() else int((labels == IGNORED).sum())
