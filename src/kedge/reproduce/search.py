"""How every line of an experiment searches its grid: by the one rule of `kedge.runs.search`.

A line with fewer hyper-parameters looks more closely, because all lines spend the same budget. The search also records
what one more halving would have chosen; that is not used, but shows how much depends on the grid.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kedge.reproduce.plan import FIRST_TUNING_SEED, SEARCHED, Case, Grids, Hyper, Plan, name_of
from kedge.reproduce.results import LAST
from kedge.runs import search as grids
from kedge.runs.config import Config
from kedge.runs.grid import Point
from kedge.runs.reader import StoredRun
from kedge.runs.search import Rule, Searched, Standing

Batch = Callable[[str, dict[str, Config]], dict[str, StoredRun]]
"""Runs jobs under a title."""


@dataclass(frozen=True)
class Search:
    """What every line tried, and how that ended."""

    plan: Plan
    found: Mapping[Case, Searched]

    @property
    def grids(self) -> Grids:
        """The points that were tried."""
        return {case: [Hyper(**point) for point in own.grid] for case, own in self.found.items()}

    def chosen(self) -> dict[Case, Hyper]:
        """Return the point of every case."""
        return {
            case: self.choice(case) if case.protocol in SEARCHED else self.plan.common(case)
            for case in self.plan.cases()
        }

    def choice(self, case: Case) -> Hyper:
        """Return the best point of a line, its second-best, or the best of the finer grid."""
        found = self.found[self.plan.searched(case)].ranked(finer=case.protocol == "finer")
        best, *others = (Hyper(**standing.point) for standing in found)
        return second(best, others) if case.protocol == "second" else best


def second(best: Hyper, others: list[Hyper]) -> Hyper:
    """Return the first of the others that is no neighbour of the best point, or else the first."""
    return next((point for point in others if not point.near(best)), others[0] if others else best)


def search(plan: Plan, batch: Batch) -> Search:
    """Search the grids of all lines, in waves of runs."""
    tuning = plan.size.tuning
    metric, most = f"test_{plan.experiment.tuned.judge}", plan.experiment.tuned.largest_beta
    largest = {} if most is None else {"beta": most}
    rule = Rule(metric, LAST, tuning.extend, tuning.budget, "finer" in plan.protocols, largest)

    def play(title: str, wave: Mapping[Case, list[Point]]) -> dict[Case, list[Standing]]:
        points = {case: [Hyper(**point) for point in grid] for case, grid in wave.items()}
        runs = batch(title, plan.tuning_jobs(points))
        return {case: [_standing(plan, case, hyper, runs) for hyper in grid] for case, grid in points.items()}

    starts = {case: [hyper._asdict() for hyper in grid] for case, grid in plan.grids().items()}
    return Search(plan, grids.search(starts, rule, play))


def _standing(plan: Plan, case: Case, hyper: Hyper, runs: Mapping[str, StoredRun]) -> Standing:
    seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + plan.size.tuning.seeds)
    own = {seed: runs[name_of("grid", case, hyper, seed)] for seed in seeds}
    return Standing(str(hyper), hyper._asdict(), len(seeds), runs=own)


def beyond(best: Hyper, grid: list[Hyper]) -> list[Hyper]:
    """Return the best point moved past every edge of the grid on which it lies."""
    return [Hyper(**point) for point in grids.beyond(best._asdict(), [hyper._asdict() for hyper in grid])]


def between(best: Hyper, grid: list[Hyper]) -> list[Hyper]:
    """Return the best point moved halfway to its neighbours."""
    return [Hyper(**point) for point in grids.between(best._asdict(), [hyper._asdict() for hyper in grid])]
