"""Checks of arguments that several modules share. Importing them does not load torch."""

import functools
import inspect
import math
import numbers
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kedge.errors import UsageError, shown

if TYPE_CHECKING:
    from torch import Tensor

MOST = 2**53
"""The largest count: a float still tells it from its neighbours."""

LARGEST = 1e30
"""The largest hyper-parameter: float32 still holds it."""


LOWER = frozenset({"loss", "error", "mse", "rmse", "mae", "perplexity"})
"""A metric with one of these words in its name is better if it is lower; any other one if it is higher."""


def is_higher_better(metric: str) -> bool:
    """Whether a higher value of a metric is better, by its name."""
    return not LOWER & set(metric.lower().split("_"))


def affordable(what: str, size: int) -> None:
    """Refuse ``what`` if it needs more bytes than this machine has memory."""
    if size > memory():
        raise UsageError(f"{what} needs {_bytes(size)} of memory, but this machine has {_bytes(memory())}")


@functools.cache
def memory() -> int:
    """Return how many bytes of memory this machine or container has."""
    try:
        has = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # this system cannot tell
        has = 1 << 40
    with suppress(OSError, ValueError):  # "max" is not a number
        has = min(has, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return has


def _bytes(size: int) -> str:
    if size >= 10**18:
        return "over 1000 PB"
    power = (len(str(size)) - 1) // 3
    return f"{size / 1000**power:.4g} {('bytes', 'kB', 'MB', 'GB', 'TB', 'PB')[power]}"


def whole(name: str, value: Any, least: int, most: int = MOST) -> int:
    """Return ``value`` as an int, or refuse it unless it is a whole number from ``least`` to ``most``."""
    good = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not good or not least <= value <= most:
        open_ended = most == MOST and not (good and value > most)
        bounds = f"of at least {least}" if open_ended else f"from {least} to {most}"
        raise UsageError(f"{name} is {shown(value)}, but must be a whole number {bounds}")
    return int(value)


def whole_seed(value: Any) -> int:
    """Return ``value`` if both numpy and torch accept it as a seed."""
    return whole("seed", value, 0, 2**63 - 1)


def real(name: str, value: Any, *, positive: bool) -> float:
    """Return ``value`` as a float, or refuse it unless it is finite and positive (or non-negative)."""
    if not is_finite(value) or value < 0 or (positive and value == 0):
        raise UsageError(f"{name} is {shown(value)}, but must be finite and {'above' if positive else 'at least'} 0")
    return float(value)


def is_finite(value: Any) -> bool:
    """Whether a value is a number, and finite."""
    try:
        return isinstance(value, numbers.Real) and math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


def limits(rule: Mapping[str, Any]) -> list[str]:
    """Return a range in words: above 0, at most 1."""
    return [
        f"{name.replace('_', ' ')} {rule[name] if isinstance(rule[name], int) else format(rule[name], 'g')}"
        for name in ("above", "at_least", "at_most", "below")
        if math.isfinite(rule.get(name, math.inf))
    ]


def byte_size(name: str, value: Any) -> int:
    """Return a number of bytes: ``value`` is that number, or text such as "500MB", "1.5 GB" or "2GiB"."""
    text = value if isinstance(value, str) else shown(value)
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?) ?(?:([kmgt]?)(i?)b)?", text.strip(), re.IGNORECASE | re.ASCII)
    if isinstance(value, bool | float) or match is None or (match[3] and not match[2]):
        raise UsageError(f"{name} is {shown(value)}, but must be a size such as 500MB or 2GB")
    number, unit, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** ("kmgt".index(unit.lower()) + 1 if unit else 0))


def tensor(value: Any, what: str) -> "Tensor":
    """Return ``value`` as a tensor, without a copy if torch can share it, or refuse what is not an array of numbers."""
    import numpy as np
    import torch
    from torch import Tensor

    if isinstance(value, Tensor):
        return value.detach()
    try:
        if isinstance(value, list | tuple) and value and all(isinstance(row, Tensor) for row in value):
            return torch.stack([row.detach() for row in value])
        array = np.asarray(value)
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        # torch can share neither read-only memory nor negative strides.
        return torch.from_numpy(np.require(array, requirements=["C", "W"]))
    except (TypeError, ValueError, RuntimeError):
        raise UsageError(f"{what} are not an array of numbers with rows of one shape") from None


def expanded(path: str | Path) -> Path:
    """Return a path in which ~ is the home directory, if there is one."""
    with suppress(RuntimeError):
        return Path(path).expanduser()
    return Path(path)


def check_options(owner: str, function: Callable[..., Any], given: Iterable[str]) -> None:
    """Refuse an option that is not a keyword-only parameter of ``function``."""
    parameters = inspect.signature(function).parameters.values()
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    for name in given:
        if name not in known:
            raise UsageError(f"{owner} has no option {name!r}; its options are: {', '.join(known) or 'none'}")
