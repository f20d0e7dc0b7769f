"""`kedge sweep`: one configuration at many points, several runs at once."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from kedge.checks import whole
from kedge.cli import consent, options
from kedge.cli.console import errors, output
from kedge.cli.run import RUNS
from kedge.cli.signals import StoppedError, stopping
from kedge.cli.sweep_view import View, best_line, final_table, write_tables
from kedge.errors import UsageError
from kedge.files import claimed, make_new_directory
from kedge.runs.directory import check_place
from kedge.runs.grid import Axis, Choices, parse_grid, short_keys, short_label
from kedge.runs.sweep import FILE, METRICS, Plan, Sweep, absolute, absolute_axes, joined, read_plan

DEFAULT_TRIALS = 50


def sweep(
    config: Path | None,
    settings_: list[str] | None,
    out: Path | None,
    resume: Path | None,
    jobs: int | None,
    options_: Mapping[str, Any],
    *,
    trust: bool,
) -> None:
    """Try the points of a grid."""
    left_out = ("config", "set_", "out", "resume", "jobs", "trust")
    given = {name: value for name, value in options_.items() if name not in left_out and value is not None}
    also = given | {name: value for name, value in options_.items() if name in left_out[:3] and value is not None}
    if resume is not None and also:
        raise UsageError(f"--resume goes on with a sweep as it is, but {min(also).rstrip('_')} is given too")
    asked = None if resume is not None else _asked(config, settings_, given, trust=trust)
    if jobs is not None:
        whole("jobs", jobs, 1)
    path = resume or out or make_new_directory(RUNS, "sweep")
    check_place(path)
    if resume is not None:
        read_plan(path)  # before a lock would make a directory

    with claimed(path, new=resume is None and out is None):
        plan = _joined(path, asked, trust=trust)
        _play(plan, path, jobs)


def _asked(config: Path | None, set_: list[str] | None, given: Mapping[str, Any], *, trust: bool) -> Plan:
    """Return the sweep that the command line describes; what it names may run."""
    grid, seeds, metric, halving = (given.get(name) for name in ("grid", "seeds", "metric", "halving"))
    axes = absolute_axes(parse_grid(grid or []))
    for name, key in options.KEYS.items():
        if name in given and key in axes:
            raise UsageError(f"{key} is given twice: --grid tries its values, and --{name.replace('_', '-')} sets it")
    named = [options.configuration(None, set_, given).get("algorithm", {}).get("name"), *_names(axes)]
    base = absolute(consent.settle(options.configuration(config, set_, given), config, named=named, trust=trust))
    tried = _trials(given.get("search"), given.get("trials"))
    return Plan(base, axes, 3 if seeds is None else seeds, metric or "test_accuracy", halving, tried)


def _joined(path: Path, asked: Plan | None, *, trust: bool) -> Plan:
    """Return the sweep to run: as asked, with what the directory already has; its code needs consent."""
    if not os.path.lexists(path / FILE):
        if asked is None:
            return read_plan(path)
        if any(path.iterdir()):
            raise UsageError(f"out is {path}, but that directory is not empty; nothing was overwritten")
        return asked
    there = read_plan(path)
    plan = there if asked is None else joined(there, asked)
    method = plan.base.get("algorithm", {})
    consent.allow([], [method.get("name"), *_names(plan.axes)], path / FILE, trust=trust)
    return plan


def _names(axes: Mapping[str, Axis]) -> list[Any]:
    axis = axes.get("algorithm.name")
    return list(axis.values) if isinstance(axis, Choices) else []


def _trials(search: str | None, trials: int | None) -> int | None:
    if search not in (None, "grid", "optuna"):
        raise UsageError(f"search is {search!r}, but must be grid or optuna")
    if search != "optuna" and trials is not None:
        raise UsageError("trials is given, but only --search optuna has trials")
    return (DEFAULT_TRIALS if trials is None else trials) if search == "optuna" else None


def _play(plan: Plan, path: Path, jobs: int | None) -> None:
    with stopping() as stop:
        going = Sweep(plan, path, jobs, stop=stop)
        with View(going):
            complete = going.run()
    if any(standing.outcomes for standing in going.standings.values()):
        _report(going)
    failures = {f"{standing.name}-seed{seed}": outcome.error for standing in going.standings.values()
                for seed, outcome in standing.outcomes.items() if outcome.error is not None}  # fmt: skip
    for name, error in failures.items():
        errors.print(f"kedge: {name} failed: {error}", markup=False, highlight=False, soft_wrap=True)
    if not complete and stop.signal is not None:
        raise StoppedError(f"stopped; `kedge sweep --resume {path}` goes on", stop.signal)
    if failures:
        raise typer.Exit(1)


def _report(going: Sweep) -> None:
    from kedge.report.heatmap import Cell, draw_sweep  # matplotlib takes its time to load

    plan, path = going.plan, going.path
    files = write_tables(going)
    shorts = short_keys(list(plan.axes))
    cells = [
        Cell(
            {shorts[key]: _shown(value) for key, value in standing.point.items()},
            standing.mean(plan.metric), standing.spread(plan.metric), _note(standing.state, standing.rounds),
        )
        for standing in going.standings.values() if standing.outcomes
    ]  # fmt: skip
    metric = "test accuracy in %" if plan.metric == "test_accuracy" else "test loss"
    title = metric if plan.seeds == 1 else f"{metric}: mean ± standard deviation of {plan.seeds} seeds"
    drawn = draw_sweep(cells, path / "heatmap", plan.metric, METRICS[plan.metric], title)
    output.print(final_table(going))
    output.print(best_line(going), highlight=False, soft_wrap=True)
    names = ", ".join([*(file.name for file in drawn), *files, "runs/"])
    output.print(f"Written to {path}: {names}", highlight=False, soft_wrap=True)


def _shown(value: Any) -> Any:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else short_label(value)


def _note(state: str, rounds: int) -> str:
    return {"finished": "", "stopped": f"round {rounds}"}.get(state, state)
