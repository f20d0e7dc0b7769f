"""Conducting an experiment: interrupted, gone on with, in one process or several."""

import csv
import hashlib

import pytest

from kedge.reproduce.conduct import UnfinishedError, conduct
from kedge.reproduce.experiment import load
from kedge.reproduce.plan import Plan


def conducted(out, processes: int, ends: int | None = None):
    """Conduct a small experiment, stopping when ``ends`` runs have ended; return its results, file by file.

    The page is left out: it says how many seconds a run took and where it is.
    """
    ended = 0

    def watch(event) -> None:
        nonlocal ended
        ended += event.ended is not None and not event.found

    folder = out / "mlp-partial" / "smoke"
    plan = Plan(load("mlp-partial"), "smoke")
    conduct(plan, out, processes, lambda title, jobs: watch, lambda: ended == ends, "command")
    files = [path for path in folder.glob("*.*") if path.suffix not in (".svg", ".html")]
    return {path.relative_to(folder): path.read_bytes() for path in files}


def test_interrupted_or_in_several_processes_it_is_the_same_to_the_bit(tmp_path):
    whole = conducted(tmp_path / "whole", 1)
    assert {"summary.csv", "curves.csv", "grid.csv", "verdict.md", "figure.png"} <= {str(path) for path in whole}
    for ends in (1, 3, 4):  # in the grid, then in the runs of the seeds
        with pytest.raises(UnfinishedError):
            conducted(tmp_path / "pieces", 1, ends)
        assert not (tmp_path / "pieces" / "mlp-partial" / "smoke" / "verdict.md").exists()
    assert conducted(tmp_path / "pieces", 1) == whole
    assert conducted(tmp_path / "several", 2) == whole


def test_the_grid_is_written_with_every_point_and_the_model_with_its_hash(tmp_path):
    conducted(tmp_path, 1)
    folder = tmp_path / "mlp-partial" / "smoke"
    with (folder / "grid.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["line"] == "scaffold"]
    assert len(rows) >= 3
    best = max((row for row in rows if row["finer"] == "0"), key=lambda row: -float(row["loss"]))
    assert f"| scaffold | {best['eta']} |" in (folder / "verdict.md").read_text(encoding="utf-8")
    with (folder / "summary.csv").open() as file:
        runs = [row for row in csv.DictReader(file) if not row["diverged"]]
    for row in runs:
        hyper = "-".join(f"{key}-{row[key]}" for key in ("eta", "beta", "step") if row[key])
        model = folder / "runs" / f"run--1-of-10-clients--{row['line']}--{hyper}--seed-{row['seed']}"
        digest = hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()
        assert digest.startswith(row["model"])
        assert len(row["model"]) == 16
