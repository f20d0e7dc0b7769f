"""Conducting an experiment: interrupted, gone on with, in one process or several."""

import csv

import pytest

from kedge.reproduce.conduct import UnfinishedError, conduct
from kedge.reproduce.experiment import load
from kedge.reproduce.plan import Plan


def conducted(out, processes: int, ends: int | None = None):
    """Conduct a small experiment, stopping when ``ends`` runs have ended; return its results, file by file."""
    ended = 0

    def watch(event) -> None:
        nonlocal ended
        ended += event.outcome is not None and not event.found

    folder = out / "mlp-partial" / "smoke"
    plan = Plan(load("mlp-partial"), "smoke")
    conduct(plan, out, processes, lambda title, jobs: watch, lambda: ended == ends, "command")
    return {path.relative_to(folder): path.read_bytes() for path in folder.glob("*.*") if path.suffix != ".pdf"}


def test_interrupted_or_in_several_processes_it_is_the_same_to_the_bit(tmp_path):
    whole = conducted(tmp_path / "whole", 1)
    assert {"summary.csv", "curves.csv", "grid.csv", "verdict.md", "figure.png"} <= {str(path) for path in whole}
    for ends in (1, 3, 4):  # in the grid, then in the runs of the seeds
        with pytest.raises(UnfinishedError):
            conducted(tmp_path / "pieces", 1, ends)
        assert not (tmp_path / "pieces" / "mlp-partial" / "smoke" / "verdict.md").exists()
    assert conducted(tmp_path / "pieces", 1) == whole
    assert conducted(tmp_path / "several", 2) == whole


def test_a_refined_grid_has_more_rates_and_chooses_from_all(tmp_path):
    experiment = load("mlp-partial")
    smoke = experiment.scales["smoke"]
    tuning = smoke.tuning.model_copy(update={"refine": True})
    scales = {"smoke": smoke.model_copy(update={"tuning": tuning})}
    plan = Plan(experiment.model_copy(update={"scales": scales}), "smoke")
    conduct(plan, tmp_path, 1, lambda title, jobs: lambda event: None, lambda: False, "command")
    folder = tmp_path / "mlp-partial" / "smoke"
    with (folder / "grid.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["line"] == "scaffold"]
    assert len(rows) == len(smoke.eta) + 2
    best = max(rows, key=lambda row: (float(row["accuracy"]), -float(row["loss"])))
    assert f"| scaffold | {best['eta']} |" in (folder / "verdict.md").read_text(encoding="utf-8")
