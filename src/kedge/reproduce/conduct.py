"""Conduct an experiment: search the grid, run the seeds, and write down what came of it.

All runs are directories of one batch, so the same call goes on with whatever an earlier one left.
"""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kedge.errors import UsageError
from kedge.files import claimed, make_directory, write_atomically, write_csv
from kedge.problem import load_dataset
from kedge.reproduce import claims, results, verdict
from kedge.reproduce.plan import FIRST_TUNING_SEED, Case, Grids, Hyper, Plan, between, beyond, name_of, slug
from kedge.reproduce.results import Curve, Measure
from kedge.runs.batch import Event, Outcome, run_batch
from kedge.runs.config import Config, resolved
from kedge.runs.directory import to_toml

Stage = Callable[[str, Mapping[str, Config]], Callable[[Event], None]]
"""Called before a batch with what it is and its runs; returns what is told how they go."""


class UnfinishedError(Exception):
    """The experiment was stopped; the same call goes on with it."""


@dataclass(frozen=True)
class Report:
    """What an experiment came to."""

    folder: Path
    verdict: str


def conduct(
    plan: Plan, out: Path, processes: int | None, stage: Stage, stop: Callable[[], bool], command: str
) -> Report:
    """Run an experiment and write its results to ``out / figure / scale``."""
    folder = out / plan.experiment.name / plan.scale
    _check_data(plan)
    with claimed(folder):
        return _conduct(plan, folder, out, processes, stage, stop, command)


def _conduct(
    plan: Plan,
    folder: Path,
    out: Path,
    processes: int | None,
    stage: Stage,
    stop: Callable[[], bool],
    command: str,
) -> Report:
    def batch(title: str, jobs: dict[str, Config]) -> dict[str, Outcome]:
        outcomes = run_batch(jobs, folder / "runs", processes, stage(title, jobs), stop)
        for name, outcome in outcomes.items():
            if outcome.error is not None:
                raise UsageError(f"{name} of {plan.experiment.name} failed: {outcome.error}")
        if len(outcomes) < len(jobs):
            raise UnfinishedError
        return outcomes

    grids = plan.grids()
    searched = batch("grid", plan.tuning_jobs(grids))
    for _ in range(plan.size.tuning.extend):
        further = {case: beyond(best(plan, case, grid, searched), grid) for case, grid in grids.items()}
        searched |= batch("wider grid", plan.tuning_jobs(further))
        grids = {case: grid + further[case] for case, grid in grids.items()}
    if plan.size.tuning.refine:
        finer = {case: between(best(plan, case, grid, searched), grid) for case, grid in grids.items()}
        searched |= batch("finer grid", plan.tuning_jobs(finer))
        grids = {case: grid + finer[case] for case, grid in grids.items()}
    chosen = choose(plan, grids, searched)
    finished = batch("runs", plan.final_jobs(chosen))
    curves = [
        Curve(case, hyper, seed, outcome.history, outcome.diverged)
        for case, hyper in chosen.items()
        for seed in plan.seeds
        for outcome in [finished[name_of("run", case, hyper, seed)]]
    ]
    _write_grid(folder / "grid.csv", plan, grids, searched)
    return write_report(plan, grids, chosen, curves, folder, out, command)


def write_report(
    plan: Plan, grids: Grids, chosen: dict[Case, Hyper], curves: list[Curve], folder: Path, out: Path, command: str
) -> Report:
    """Write tables, figures, configurations and the verdict."""
    from kedge.reproduce.drawing import draw  # matplotlib takes its time to load

    summary = folder / "summary.csv"
    results.write_measures(summary, results.measures(curves))
    measured = results.read_measures(summary)  # to its digits, so that whoever reads it later finds the same
    results.write_curves(folder / "curves.csv", curves)
    draw(plan, curves, measured, folder)
    make_directory(folder / "configs")
    for name, text in configurations(plan, chosen).items():
        write_atomically(folder / "configs" / name, text.encode())
    found = claims.findings(plan.experiment.claims, measured, lambda figure: measures_of(out, figure, plan.scale))
    text = verdict.write(plan, grids, chosen, measured, found, command)
    write_atomically(folder / "verdict.md", text.encode())
    return Report(folder, text)


def configurations(plan: Plan, chosen: Mapping[Case, Hyper]) -> dict[str, str]:
    """Return a file for every line, with the configuration of its first seed, wherever its data are."""
    files = {}
    for case, hyper in chosen.items():
        sections = resolved(plan.final(case, hyper, plan.seeds[0]))
        sections["data"].pop("data_dir", None)
        name = "--".join(slug(part) for part in (case.protocol, case.panel, case.line))
        files[f"{name}.toml"] = to_toml(sections)
    return files


def measures_of(out: Path, figure: str, scale: str) -> list[Measure] | None:
    """Return what a figure came to at a scale, if it was run."""
    path = out / figure / scale / "summary.csv"
    return results.read_measures(path) if path.is_file() else None


def choose(plan: Plan, grids: Grids, searched: Mapping[str, Outcome]) -> dict[Case, Hyper]:
    """Return the pair of every case: the best of its grid on held-out samples, or that of the common rate."""
    return {
        case: best(plan, own, grids[own], searched) if case.protocol == "tuned" else plan.equal(case)
        for case in plan.cases()
        for own in [plan.searched(case)]
    }


def best(plan: Plan, case: Case, grid: list[Hyper], searched: Mapping[str, Outcome]) -> Hyper:
    """Return the pair of a grid with the best runs."""
    return max(grid, key=lambda hyper: _score(plan, case, hyper, searched))


def _score(plan: Plan, case: Case, hyper: Hyper, searched: Mapping[str, Outcome]) -> tuple[float, float]:
    """Return held-out accuracy to four digits and, for ties, less of the loss."""
    accuracy, loss = zip(*(_end(outcome) for outcome in _outcomes(plan, case, hyper, searched)), strict=True)
    return round(statistics.fmean(accuracy), 4), -statistics.fmean(loss)


def _outcomes(plan: Plan, case: Case, hyper: Hyper, searched: Mapping[str, Outcome]) -> list[Outcome]:
    return [
        searched[name_of("grid", case, hyper, FIRST_TUNING_SEED + number)] for number in range(plan.size.tuning.seeds)
    ]


def _end(outcome: Outcome) -> tuple[float, float]:
    if outcome.diverged is not None:
        return 0.0, float("inf")
    return results.final(outcome.history, "test_accuracy"), results.final(outcome.history, "test_loss")


def _write_grid(path: Path, plan: Plan, grids: Grids, searched: Mapping[str, Outcome]) -> None:
    rows: list[dict[str, Any]] = []
    for case, grid in grids.items():
        for hyper in sorted(grid, key=lambda hyper: (hyper.beta or 0, hyper.eta)):
            for number, outcome in enumerate(_outcomes(plan, case, hyper, searched)):
                accuracy, loss = _end(outcome)
                place = {"panel": case.panel, "line": case.line, **hyper._asdict()}
                rows.append(place | {"seed": FIRST_TUNING_SEED + number, "accuracy": accuracy, "loss": loss})
    write_csv(path, rows, digits=results.DIGITS)


def _check_data(plan: Plan) -> None:
    """Look for the data before anything is run, so that their absence is one sentence."""
    case = next(plan.cases())
    data = plan.final(case, plan.grid(case)[0], 0).data
    load_dataset(data.dataset, data.data_dir)
