"""`kedge sweep`: one configuration at many points, several runs at once."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import typer

from kedge.checks import is_higher_better, whole
from kedge.cli import consent, options
from kedge.cli.console import errors, output
from kedge.cli.run import RUNS
from kedge.cli.signals import StoppedError, stopping
from kedge.cli.sweep_view import best_line, final_table, sweep_display, tested_line, write_tables
from kedge.errors import UsageError
from kedge.files import claimed, make_new_directory
from kedge.own_code import PLACES
from kedge.runs.directory import check_place
from kedge.runs.grid import Axis, Choices, parse_grid, short_keys, short_label
from kedge.runs.sweep import FILE, Sweep, SweepPlan, absolute, absolute_axes, joined, read_plan, with_holdout

DEFAULT_TRIALS = 50


class SweepOptions(NamedTuple):
    """What a command line asks for in addition to a configuration."""

    grid: list[str]
    seeds: int
    metric: str
    halving: int | None
    search: str
    trials: int | None


def sweep(
    config: Path | None,
    settings_: list[str] | None,
    out: Path | None,
    jobs: int | None,
    given: options.Given,
    asked: SweepOptions,
    *,
    trust: bool,
) -> None:
    """Try the points of a grid."""
    if jobs is not None:
        whole("jobs", jobs, 1)
    plan = _plan(config, settings_, given, asked, trust=trust)
    path = out or make_new_directory(RUNS, "sweep")
    check_place(path)
    with claimed(path, new=out is None):
        _play(_joined(path, plan, trust=trust), path, jobs)


def _plan(
    config: Path | None, set_: list[str] | None, given: options.Given, asked: SweepOptions, *, trust: bool
) -> SweepPlan:
    """Return the sweep that the command line describes; what it names may run."""
    axes = absolute_axes(parse_grid(asked.grid))
    for key in given:
        if key in axes:
            option = options.option_name(key).replace("_", "-")
            raise UsageError(f"{key} is given twice: --grid tries its values, and --{option} sets it")
    base = absolute(consent.configuration(config, set_, given, trust=trust, more=_names(axes)))
    return SweepPlan(base, axes, asked.seeds, asked.metric, asked.halving, _trials(asked.search, asked.trials))


def _joined(path: Path, plan: SweepPlan, *, trust: bool) -> SweepPlan:
    """Return the sweep to run: as asked, plus what the directory already has; its code needs consent."""
    if not os.path.lexists(path / FILE):
        if any(path.iterdir()):
            raise UsageError(f"out is {path}, but that directory is not empty; nothing was overwritten")
        return with_holdout(plan)
    there = read_plan(path)
    before = there.base.get("data")
    if isinstance(before, dict) and "holdout" in before:
        plan = with_holdout(plan)
    plan = joined(there, plan)
    consent.allow([], [*consent.named_in(plan.base), *_names(plan.axes)], path / FILE, trust=trust)
    return plan


def _names(axes: Mapping[str, Axis]) -> list[Any]:
    found = (axes.get(key) for key in PLACES)
    return [value for axis in found if isinstance(axis, Choices) for value in axis.values]


def _trials(search: str, trials: int | None) -> int | None:
    if search not in ("grid", "optuna"):
        raise UsageError(f"search is {search!r}, but must be grid or optuna")
    if search != "optuna" and trials is not None:
        raise UsageError("trials is given, but only --search optuna has trials")
    return (DEFAULT_TRIALS if trials is None else trials) if search == "optuna" else None


def _play(plan: SweepPlan, path: Path, jobs: int | None) -> None:
    with stopping() as stop:
        going = Sweep(plan, path, jobs, stop=stop)
        with sweep_display(going):
            complete = going.run()
        tested = going.evaluate() if complete else None
    if any(standing.runs for standing in going.standings.values()):
        _report(going)
        if tested is not None and tested.runs:
            output.print(tested_line(plan, tested), highlight=False, soft_wrap=True)
    failures = {f"{standing.name}-seed{seed}": run.error for standing in going.standings.values()
                for seed, run in standing.runs.items() if run.error is not None}  # fmt: skip
    for name, error in failures.items():
        errors.print(f"kedge: {name} failed: {error}", markup=False, highlight=False, soft_wrap=True)
    if not complete and stop.signal is not None:
        raise StoppedError(f"stopped; the same command with --out {path} resumes it", stop.signal)
    if failures:
        raise typer.Exit(1)


def _report(going: Sweep) -> None:
    from kedge.report.heatmap import Cell, draw_sweep  # matplotlib is slow to load
    from kedge.report.lines import lines_of
    from kedge.report.page import REPORT, write_report

    plan, path = going.plan, going.path
    files = write_tables(going)
    shorts = short_keys(list(plan.axes))
    cells = [
        Cell(
            {shorts[key]: _shown(value) for key, value in standing.point.items()},
            standing.mean(plan.metric), standing.spread(plan.metric), _note(standing.state, standing.rounds),
        )
        for standing in going.standings.values() if standing.runs
    ]  # fmt: skip
    metric = f"{plan.criterion} in %" if plan.metric == "test_accuracy" else plan.criterion
    title = metric if plan.seeds == 1 else f"{metric}: mean ± standard deviation of {plan.seeds} seeds"
    drawn = draw_sweep(cells, path / "heatmap", plan.metric, is_higher_better(plan.metric), title)
    lines = lines_of([run for standing in going.standings.values() for run in standing.runs.values()])
    write_report(lines, path / REPORT, f"Sweep of {', '.join(plan.axes)}", f"kedge report {shlex.quote(str(path))}")
    output.print(final_table(going))
    output.print(best_line(going), highlight=False, soft_wrap=True)
    names = ", ".join([*(file.name for file in drawn), REPORT, *files, "runs/"])
    output.print(f"Written to {path}: {names}", highlight=False, soft_wrap=True)


def _shown(value: Any) -> Any:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else short_label(value)


def _note(state: str, rounds: int) -> str:
    return {"finished": "", "stopped": f"round {rounds}"}.get(state, state)
