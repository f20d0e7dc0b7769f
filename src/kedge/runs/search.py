"""One grid search: points, each scored over its seeds, and a grid that grows past its edges and closes in on its best.

`kedge sweep`, `kedge reproduce` and the rates of `kedge compare` (experiments/digits_grid.py) all rank points by
`ranked`. A search starts from a coarse grid. Where the best point lies on an edge, the grid grows past that edge. Where
it lies inside, the points halfway, in ratio, to its neighbours are tried, until the budget is spent.
"""

import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from kedge.checks import is_higher_better
from kedge.runs.grid import Point
from kedge.runs.reader import Row, StoredRun

DIGITS = 4
"""Accuracies that agree to this many digits are equal, and the loss decides."""

LARGEST = {"beta": 1.0}
"""Where an axis, whatever its section, has a natural end."""

Name = TypeVar("Name", bound=Hashable)


@dataclass
class Standing:
    """A point and how its runs ended."""

    name: str
    point: Point
    seeds: int
    rounds: int = 0
    """How far its runs go, or went before it was stopped."""
    runs: dict[int, StoredRun] = field(default_factory=dict)
    """By seed, those that have ended."""
    stopped: bool = False
    """It was not among the best of its rung."""

    @property
    def diverged(self) -> int:
        """How many of its runs did."""
        return sum(run.diverged is not None for run in self.runs.values())

    @property
    def failed(self) -> int:
        """How many of its runs did."""
        return sum(run.error is not None for run in self.runs.values())

    @property
    def state(self) -> str:
        """In a word."""
        if self.failed:
            return "failed"
        if self.diverged:
            return "diverged"
        if self.stopped:
            return "stopped"
        return "finished" if len(self.runs) == self.seeds else "running" if self.runs else "waiting"

    def values(self, metric: str) -> list[float]:
        """Return the final metric of every finished run."""
        return [run.last[metric] for run in self.runs.values() if run.last is not None and metric in run.last]

    def mean(self, metric: str) -> float | None:
        """Return the mean over the seeds; None if there is none, a run diverged or failed, or a value is not finite."""
        values = self.values(metric)
        sound = not self.diverged and not self.failed and all(map(math.isfinite, values))
        return statistics.fmean(values) if values and sound else None

    def spread(self, metric: str) -> float | None:
        """Return the standard deviation over the seeds."""
        return spread(self.values(metric))


def spread(values: Sequence[float]) -> float | None:
    """Return the standard deviation; None if there are fewer than two values, or if one is not finite."""
    return statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None


def end(rows: Sequence[Row], metric: str, share: float = 0.0) -> float:
    """Return the mean of a metric over this share of the evaluations, the last ones; one at least."""
    return statistics.fmean(row[metric] for row in rows[-max(1, round(share * len(rows))) :])


def ends(run: StoredRun, share: float = 0.0) -> tuple[float, float]:
    """Return the accuracy and the loss at the end of a run; if it has none, the worst there are."""
    accuracy, loss = (
        end(run.rows, metric, share) if run.last is not None and metric in run.last else worst
        for metric, worst in (("test_accuracy", 0.0), ("test_loss", math.inf))
    )
    return accuracy, loss


def merit(metric: str, accuracy: float, loss: float) -> tuple[float, float]:
    """Return what ranks a point, larger if it is better: the metric, then the other one."""
    accuracy = round(accuracy, DIGITS)
    return (accuracy, -loss) if metric == "test_accuracy" else (-loss, accuracy)


def ranked(standings: Iterable[Standing], metric: str, share: float = 0.0) -> list[Standing]:
    """Return the best first: among those that played the most rounds, the best mean of the metric over the seeds.

    A tie is decided by the other metric. Points of which a run diverged or failed, or has a value that is not finite,
    come last.
    """

    def score(standing: Standing) -> tuple[bool, int, float, float]:
        found = [ends(run, share) for run in standing.runs.values()] or [(0.0, math.inf)]
        accuracy, loss = (statistics.fmean(each[place] for each in found) for place in (0, 1))
        first, second = merit(metric, accuracy, loss)
        sound = standing.mean(metric) is not None
        if metric not in ("test_accuracy", "test_loss") and sound:
            value = statistics.fmean(end(run.rows, metric, share) for run in standing.runs.values())
            first, second = value if is_higher_better(metric) else -value, -loss
        sound = sound and math.isfinite(first)
        first, second = (-math.inf if math.isnan(each) else each for each in (first, second))  # NaN has no order
        return sound, standing.rounds if sound else 0, first, second

    return sorted(standings, key=score, reverse=True)


@dataclass(frozen=True)
class Rule:
    """How a grid is searched."""

    metric: str
    share: float = 0.0
    """The share of the evaluations, the last ones, whose mean is the end of a run."""
    extend: int = 0
    """How often a grid may grow past an edge."""
    budget: int = 0
    """How many points a grid may have before it is refined no more."""
    finer: bool = False
    """Whether one more halving is tried, to show how much depends on the grid."""
    largest: Mapping[str, float] = field(default_factory=dict)
    """How far a grid may grow, by axis."""

    def further(self, best: Point, grid: list[Point]) -> list[Point]:
        """Return where a grid grows past the edges on which its best point lies."""
        found = beyond(best, grid)
        return [point for point in found if all(point[axis] <= most for axis, most in self.largest.items())]


@dataclass
class Searched:
    """What a search has tried."""

    rule: Rule
    tried: list[Standing]
    finer: list[Standing] = field(default_factory=list)

    @property
    def grid(self) -> list[Point]:
        """The points, in the order in which they were tried."""
        return [standing.point for standing in self.tried]

    def ranked(self, *, finer: bool = False) -> list[Standing]:
        """Return the best first."""
        return ranked([*self.tried, *(self.finer if finer else [])], self.rule.metric, self.rule.share)


Play = Callable[[str, Mapping[Name, list[Point]]], Mapping[Name, list[Standing]]]
"""Plays the points of several grids under a title."""


def search(grids: Mapping[Name, list[Point]], rule: Rule, play: Play[Name]) -> dict[Name, Searched]:
    """Search several grids, in waves of runs."""
    found = {name: Searched(rule, standings) for name, standings in play("grid", grids).items()}
    extended = dict.fromkeys(grids, 0)
    while True:
        wave: dict[Name, list[Point]] = {}
        for name, own in found.items():
            best = own.ranked()[0].point
            further = rule.further(best, own.grid) if extended[name] < rule.extend else []
            extended[name] += bool(further)
            wave[name] = further or (between(best, own.grid) if len(own.tried) < rule.budget else [])
        if not any(wave.values()):
            break
        for name, standings in play("further grid", wave).items():
            found[name].tried += standings
    if rule.finer:
        halves = {name: between(own.ranked()[0].point, own.grid) for name, own in found.items()}
        for name, standings in play("finer grid", halves).items():
            found[name].finer += standings
    return found


def beyond(best: Point, grid: list[Point]) -> list[Point]:
    """Return the best point moved past every edge on which it lies, by the ratio of the last two values there."""
    found = []
    for axis in _axes(grid):
        values, here = _values(best, grid, axis), best[axis]
        if here == values[0]:
            found.append(_moved(best, axis, values[0] ** 2 / values[1]))
        elif here == values[-1] and here < _largest(axis):
            found.append(_moved(best, axis, values[-1] ** 2 / values[-2]))
    return [point for point in found if point not in grid]


def between(best: Point, grid: list[Point]) -> list[Point]:
    """Return the best point moved halfway, in ratio, to its neighbours along every axis."""
    found = []
    for axis in _axes(grid):
        values = _values(best, grid, axis)
        place = values.index(best[axis])
        neighbours = [values[other] for other in (place - 1, place + 1) if 0 <= other < len(values)]
        found += [_moved(best, axis, math.sqrt(best[axis] * value)) for value in neighbours]
    return [point for point in found if point not in grid]


def _axes(grid: list[Point]) -> list[str]:
    """Return the keys that are searched: those with several values."""
    return [axis for axis in grid[0] if len({point[axis] for point in grid}) > 1]


def _values(best: Point, grid: list[Point], axis: str) -> list[float]:
    """Return what was tried along an axis through the best point or, if that is all, everything tried on the axis."""
    through = {point[axis] for point in grid if point == best | {axis: point[axis]}}
    return sorted(through if len(through) > 1 else {point[axis] for point in grid})


def _moved(point: Point, axis: str, value: float) -> Point:
    return point | {axis: min(float(f"{value:.2g}"), _largest(axis))}


def _largest(axis: str) -> float:
    return LARGEST.get(axis.rpartition(".")[2], math.inf)
