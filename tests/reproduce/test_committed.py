"""The results in the repository are those of the experiments in the repository."""

import csv
import re
import statistics
import tomllib
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path

import pytest

from docs.tables.committed import rewritten
from kedge.reproduce.claims import findings
from kedge.reproduce.conduct import configurations, measures_of, others_at
from kedge.reproduce.experiment import load
from kedge.reproduce.plan import FIRST_TUNING_SEED, SEARCHED, Hyper, Plan
from kedge.reproduce.results import measures, read_curves
from kedge.reproduce.search import between, beyond, second
from kedge.reproduce.verdict import unchecked
from kedge.runs.config import check

RESULTS = Path(__file__).parents[2] / "experiments" / "results"
FOLDERS = sorted(path.parent for path in RESULTS.glob("*/*/summary.csv"))


@pytest.fixture(params=FOLDERS, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def folder(request):
    return request.param


@pytest.fixture
def plan(folder):
    return Plan(load(folder.parent.name), folder.name)


@pytest.fixture
def measured(folder):
    return measures_of(RESULTS, folder.parent.name, folder.name)


@pytest.fixture
def searched(folder):
    """Return what was tried, by panel and line: the point and whether by the finer grid, with its runs."""
    found = defaultdict(dict)
    with (folder / "grid.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            point = Hyper(float(row["eta"]), *(float(row[key]) if row[key] else None for key in ("beta", "step")))
            tries = found[row["panel"], row["line"]].setdefault((point, row["finer"] == "1"), [])
            tries.append((int(row["seed"]), float(row["accuracy"]), float(row["loss"])))
    return found


def ranked(plan, tried, finer):
    """Return the points that were tried, the best first, with their scores."""

    def score(tries):
        accuracy, loss = (statistics.fmean(each[place] for each in tries) for place in (1, 2))
        return (round(accuracy, 4), -loss) if plan.experiment.tuned.judge == "accuracy" else (-loss, accuracy)

    scores = {point: score(tries) for (point, later), tries in tried.items() if finer or not later}
    return sorted(scores.items(), key=lambda item: item[1], reverse=True)


def test_every_line_was_run_with_every_seed(plan, measured):
    assert {(row.case, row.seed) for row in measured} == {(case, seed) for case in plan.cases() for seed in plan.seeds}


def test_the_configurations_are_those_of_the_experiment(folder, plan, measured):
    chosen = {row.case: Hyper(row.eta, row.beta, row.step) for row in measured}
    wanted = configurations(plan, {case: chosen[case] for case in plan.cases()})
    written = {file.name: file.read_text(encoding="utf-8") for file in (folder / "configs").iterdir()}
    assert written.keys() == wanted.keys()
    for name, text in written.items():  # a setting that is newer than the file has its default in both
        assert check(tomllib.loads(text)) == check(tomllib.loads(wanted[name]))


def test_the_measures_are_those_of_the_curves(folder, plan, measured):
    runs = read_curves(folder / "curves.csv", measured)
    chances = dict.fromkeys(plan.experiment.panels, 0.1)
    for row, again in zip(measured, measures(runs, chances), strict=True):
        assert (again.case, again.seed) == (row.case, row.seed)
        numbers, wanted = (_numbers(each) for each in (again, row))
        assert numbers == pytest.approx(wanted, rel=1e-4), (row.case, row.seed)


def _numbers(measure):
    return {key: value for key, value in asdict(measure).items() if isinstance(value, int | float)}


def test_every_final_model_has_a_hash(measured):
    assert all(re.fullmatch("[0-9a-f]{16}", row.model) for row in measured if row.diverged is None)
    runs = defaultdict(set)  # protocols that choose the same point share their runs
    for row in measured:
        runs[row.panel, row.line, row.eta, row.beta, row.step, row.seed].add(row.model)
    assert all(len(models) == 1 for models in runs.values())


def test_every_point_is_the_one_that_its_protocol_chooses(plan, measured, searched):
    for row in measured:
        point = Hyper(row.eta, row.beta, row.step)
        if row.protocol not in SEARCHED:
            assert point == plan.common(row.case)
            continue
        order = ranked(plan, searched[plan.searched(row.case).panel, row.line], finer=row.protocol == "finer")
        [best, _], *others = order
        [wanted] = [own for own in measured if own.case == row.case._replace(protocol="tuned") and own.seed == row.seed]
        if row.protocol == "second":
            best = second(Hyper(wanted.eta, wanted.beta, wanted.step), [other for other, _ in others])
            assert not point.near(Hyper(wanted.eta, wanted.beta, wanted.step))
        assert dict(order)[point][0] == pytest.approx(dict(order)[best][0], abs=1e-4)


def test_every_line_has_spent_the_same_budget_on_every_tuning_seed(plan, searched):
    tuning = plan.size.tuning
    seeds = set(range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + tuning.seeds))
    grids = plan.grids()
    assert {(case.panel, case.line) for case in grids} == set(searched)
    for case, coarse in grids.items():
        tried = searched[case.panel, case.line]
        assert all({seed for seed, *_ in tries} == seeds for tries in tried.values())
        points = [point for point, later in tried if not later]
        best = ranked(plan, tried, finer=False)[0][0]
        assert set(coarse) <= set(points)
        exhausted = len(points) >= tuning.budget or not between(best, points)
        assert exhausted, f"{case} has {len(points)} points"
        most = max(len(coarse), tuning.budget) + 2 * tuning.extend + 5
        assert len(points) <= most


def test_the_best_point_lies_inside_its_grid_or_the_verdict_says_that_it_does_not(folder, plan, searched):
    text = (folder / "verdict.md").read_text(encoding="utf-8")
    for (panel, line), tried in searched.items():
        points = [point for point, later in tried if not later]
        best = ranked(plan, tried, finer=False)[0][0]
        for point in beyond(best, points):
            [axis] = [axis for axis in Hyper._fields if getattr(point, axis) != getattr(best, axis)]
            assert f"{line} ({axis} {getattr(best, axis):g})" in text, (panel, line)


def test_the_verdict_says_what_the_numbers_say(folder, plan, measured):
    text = (folder / "verdict.md").read_text(encoding="utf-8")
    assert f"Reduced: {plan.size.reduced}." in text
    found = findings(plan.experiment, plan.scale, measured, others_at(RESULTS, plan.scale))
    for finding in found:
        assert finding.claim.text in text
        assert all(f"- {difference}" in text for difference in finding.differences)


def test_the_verdict_is_what_the_tables_give(folder):
    assert rewritten(folder) == (folder / "verdict.md").read_text(encoding="utf-8"), "run `make docs`"


def test_a_verdict_on_tuned_lines_was_checked_at_other_points_of_the_grid_or_says_that_it_was_not(
    folder, plan, measured
):
    second, finer = ("second" in plan.protocols, "finer" in plan.protocols)
    said = (folder / "verdict.md").read_text(encoding="utf-8")
    assert len(unchecked(plan)) == 2 - second - finer
    assert all(text in said for text in unchecked(plan))
    for finding in findings(plan.experiment, plan.scale, measured, others_at(RESULTS, plan.scale)):
        tuned = [each for each in finding.differences if not each.name.endswith(")")]
        assert all(len(difference.checks) == 2 * second + finer for difference in tuned)
