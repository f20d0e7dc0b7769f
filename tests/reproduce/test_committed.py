"""The results in the repository are those of the experiments in the repository."""

import csv
from collections import defaultdict
from pathlib import Path

import pytest

from kedge.reproduce.claims import findings
from kedge.reproduce.conduct import configurations, measures_of
from kedge.reproduce.experiment import load
from kedge.reproduce.plan import Case, Hyper, Plan

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


def searched(folder):
    """Return the pairs that were searched, by panel and line, each with its accuracy and loss."""
    found = defaultdict(dict)
    with (folder / "grid.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            pair = Hyper(float(row["eta"]), float(row["beta"]) if row["beta"] else None)
            score = (float(row["accuracy"]), -float(row["loss"]))
            found[row["panel"], row["line"]].setdefault(pair, []).append(score)
    return found


def test_every_line_was_run_with_every_seed(plan, measured):
    assert {(row.case, row.seed) for row in measured} == {(case, seed) for case in plan.cases() for seed in plan.seeds}


def test_the_configurations_are_those_of_the_experiment(folder, plan, measured):
    chosen = {row.case: Hyper(row.eta, row.beta) for row in measured}
    written = {file.name: file.read_text(encoding="utf-8") for file in (folder / "configs").iterdir()}
    assert written == configurations(plan, {case: chosen[case] for case in plan.cases()})


def test_the_rates_are_the_best_of_the_grid_or_the_common_one(folder, plan, measured):
    grids = searched(folder)
    for row in measured:
        pair, case = Hyper(row.eta, row.beta), Case(row.panel, row.protocol, row.line)
        if row.protocol != "tuned":
            assert pair == plan.equal(case)
            continue
        tried = grids[row.panel, row.line]
        assert set(plan.grid(case)) <= set(tried)
        best = max(sum(accuracy for accuracy, _ in scores) / len(scores) for scores in tried.values())
        assert sum(accuracy for accuracy, _ in tried[pair]) / len(tried[pair]) == pytest.approx(best, abs=1e-4)


def test_the_verdict_says_what_the_numbers_say(folder, plan, measured):
    text = (folder / "verdict.md").read_text(encoding="utf-8")
    assert f"Reduced: {plan.size.reduced}." in text
    for finding in findings(plan.experiment.claims, measured, lambda name: measures_of(RESULTS, name, plan.scale)):
        assert finding.claim.text in text
        assert all(f"- {difference}: {difference.word}" in text for difference in finding.differences)
