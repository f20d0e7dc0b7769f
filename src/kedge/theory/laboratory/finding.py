"""What an experiment found: an assertion, sentences, and what to draw."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class Budget:
    """How much to compute."""

    replicas: int
    length: float
    """Multiplies the rounds."""
    dense: bool
    """Whether grids are fine."""

    def rounds(self, count: int) -> int:
        """Return a number of rounds, scaled."""
        return max(20, round(count * self.length))


QUICK, FULL = Budget(2, 0.35, dense=False), Budget(8, 1.0, dense=True)


class PlottedLine(NamedTuple):
    """A line."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    dashed: bool = False  # predicted, not measured


@dataclass(frozen=True)
class Panel:
    """One pair of axes: lines, or a map of numbers."""

    title: str
    x: str
    y: str
    series: tuple[PlottedLine, ...] = ()
    map: tuple[tuple[float, ...], ...] = ()
    columns: tuple[float, ...] = ()
    rows: tuple[float, ...] = ()


@dataclass(frozen=True)
class Finding:
    """The result of an experiment."""

    name: str
    claim: str
    """What the paper says, or what follows from it."""
    holds: bool
    """Whether the assertion holds: what this page says is what was found now."""
    as_stated: bool
    """Whether it came out as the paper says."""
    sentences: tuple[str, ...]
    panels: tuple[Panel, ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)


Experiment = Callable[[Budget], Finding]


class Fit(NamedTuple):
    """The slope of a line through logarithms, and half of its 95 % interval."""

    slope: float
    error: float

    def __str__(self) -> str:
        return f"{self.slope:.2f} ± {self.error:.2f}"


def fitted(x: Sequence[float], y: Sequence[float]) -> Fit:
    """Fit log y against log x."""
    across, up = np.log(np.asarray(x, float)), np.log(np.asarray(y, float))
    centered = across - across.mean()
    slope = float(centered @ up / (centered @ centered))
    rest = up - up.mean() - slope * centered
    free = max(len(x) - 2, 1)
    error = math.sqrt(float(rest @ rest) / free / float(centered @ centered))
    return Fit(slope, float(stats.t.ppf(0.975, free)) * error)
