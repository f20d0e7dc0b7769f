"""The rule by which every line searches its grid, whatever the experiment and the algorithm.

A line starts from the coarse grid of the experiment. Where its best point lies on an edge, in eta, beta or the step,
the grid grows past that edge. Where it lies inside, the points halfway, in ratio, to its neighbours are tried, until
the line has spent its budget: a line with fewer hyper-parameters looks more closely. The search also records what one
more halving would have chosen; that is not used, but shows how much depends on the grid.
"""

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kedge.reproduce import results
from kedge.reproduce.plan import FIRST_TUNING_SEED, SEARCHED, Case, Grids, Hyper, Plan, name_of
from kedge.runs.batch import Outcome
from kedge.runs.config import Config

Batch = Callable[[str, dict[str, Config]], dict[str, Outcome]]
"""Runs jobs under a title."""

LARGEST = {"beta": 1.0}
"""Where an axis has a natural end."""


@dataclass(frozen=True)
class Search:
    """The points that were tried, those of one more halving, and how all of them ended."""

    plan: Plan
    grids: Grids
    finer: Grids
    outcomes: Mapping[str, Outcome]

    def chosen(self) -> dict[Case, Hyper]:
        """Return the point of every case."""
        return {
            case: self.choice(case) if case.protocol in SEARCHED else self.plan.common(case)
            for case in self.plan.cases()
        }

    def choice(self, case: Case) -> Hyper:
        """Return the best point of a line, its second-best, or the best of the finer grid."""
        own = self.plan.searched(case)
        tried = self.grids[own] + (self.finer.get(own, []) if case.protocol == "finer" else [])
        return ranked(self.plan, own, tried, self.outcomes)[1 if case.protocol == "second" and len(tried) > 1 else 0]

    def ends(self, case: Case, hyper: Hyper) -> list[tuple[int, float, float]]:
        """Return seed, held-out accuracy and held-out loss of every run of a point."""
        return [(seed, *_end(outcome)) for seed, outcome in _runs(self.plan, case, hyper, self.outcomes).items()]


def search(plan: Plan, batch: Batch) -> Search:
    """Search the grids of all lines, in waves of runs."""
    tuning = plan.size.tuning
    grids = {case: list(grid) for case, grid in plan.grids().items()}
    outcomes = batch("grid", plan.tuning_jobs(grids))
    extended = dict.fromkeys(grids, 0)
    while True:
        wave: dict[Case, list[Hyper]] = {}
        for case, grid in grids.items():
            best = ranked(plan, case, grid, outcomes)[0]
            further = beyond(best, grid) if extended[case] < tuning.extend else []
            extended[case] += bool(further)
            wave[case] = further or (between(best, grid) if len(grid) < tuning.budget else [])
        if not any(wave.values()):
            break
        outcomes |= batch("further grid", plan.tuning_jobs(wave))
        grids = {case: grid + wave[case] for case, grid in grids.items()}
    finer: dict[Case, list[Hyper]] = {}
    if "finer" in plan.protocols:
        finer = {case: between(ranked(plan, case, grid, outcomes)[0], grid) for case, grid in grids.items()}
        outcomes |= batch("finer grid", plan.tuning_jobs(finer))
    return Search(plan, grids, finer, outcomes)


def beyond(best: Hyper, grid: list[Hyper]) -> list[Hyper]:
    """Return the best point moved past every edge on which it lies, by the ratio of the last two values there."""
    found = []
    for axis in _axes(grid):
        values = _values(best, grid, axis)
        here = getattr(best, axis)
        if here == values[0]:
            found.append(_moved(best, axis, values[0] ** 2 / values[1]))
        elif here == values[-1] and here < LARGEST.get(axis, math.inf):
            found.append(_moved(best, axis, values[-1] ** 2 / values[-2]))
    return [point for point in found if point not in grid]


def between(best: Hyper, grid: list[Hyper]) -> list[Hyper]:
    """Return the best point moved halfway, in ratio, to its neighbours along every axis."""
    found = []
    for axis in _axes(grid):
        values = _values(best, grid, axis)
        place = values.index(getattr(best, axis))
        neighbours = [values[other] for other in (place - 1, place + 1) if 0 <= other < len(values)]
        found += [_moved(best, axis, math.sqrt(getattr(best, axis) * value)) for value in neighbours]
    return [point for point in found if point not in grid]


def ranked(plan: Plan, case: Case, grid: list[Hyper], outcomes: Mapping[str, Outcome]) -> list[Hyper]:
    """Return the points of a grid, the best first."""
    return sorted(grid, key=lambda hyper: score(plan, case, hyper, outcomes), reverse=True)


def score(plan: Plan, case: Case, hyper: Hyper, outcomes: Mapping[str, Outcome]) -> tuple[float, float]:
    """Return the mean held-out accuracy over the tuning seeds, to four digits, and for ties the mean loss.

    If the loss is judged, it is the other way round.
    """
    ends = [_end(outcome) for outcome in _runs(plan, case, hyper, outcomes).values()]
    accuracy, loss = round(statistics.fmean(end[0] for end in ends), 4), -statistics.fmean(end[1] for end in ends)
    return (accuracy, loss) if plan.experiment.tuned.judge == "accuracy" else (loss, accuracy)


def _axes(grid: list[Hyper]) -> list[str]:
    """Return the hyper-parameters that are searched."""
    return [axis for axis in Hyper._fields if len({getattr(point, axis) for point in grid}) > 1]


def _values(best: Hyper, grid: list[Hyper], axis: str) -> list[float]:
    """Return what was tried along an axis through the best point or, if that is all, everything tried on the axis."""
    through = {getattr(point, axis) for point in grid if point == _moved(best, axis, getattr(point, axis))}
    return sorted(through if len(through) > 1 else {getattr(point, axis) for point in grid})


def _moved(point: Hyper, axis: str, value: float) -> Hyper:
    return point._replace(**{axis: min(float(f"{value:.2g}"), LARGEST.get(axis, math.inf))})


def _runs(plan: Plan, case: Case, hyper: Hyper, outcomes: Mapping[str, Outcome]) -> dict[int, Outcome]:
    seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + plan.size.tuning.seeds)
    return {seed: outcomes[name_of("grid", case, hyper, seed)] for seed in seeds}


def _end(outcome: Outcome) -> tuple[float, float]:
    if outcome.diverged is not None:
        return 0.0, math.inf
    return results.final(outcome.history, "test_accuracy"), results.final(outcome.history, "test_loss")
