"""`kedge sweep`: one configuration at many points, several runs at once."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

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

SWEEP = "Sweep"
DEFAULT_TRIALS = 50

Grid = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUES",
        help="Values of a key, as in algorithm.eta=0.01,0.1; give it once per key. "
        "With --search optuna also a range, as in algorithm.eta=0.001..1:log.",
        rich_help_panel=SWEEP,
    ),
]
Seeds = Annotated[int | None, typer.Option(help="Seeds per point, from --seed on. Default: 3.", rich_help_panel=SWEEP)]
Metric = Annotated[
    str | None,
    typer.Option(
        help="What decides, at the end of the runs: test_accuracy (more is better) or test_loss (less is better). "
        "Default: test_accuracy.",
        rich_help_panel=SWEEP,
    ),
]
Halving = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Successive halving: all points begin with few rounds; after each rung the best 1/N go on with N times "
        "the rounds, up to --rounds, and the others stop.",
        rich_help_panel=SWEEP,
    ),
]
Search = Annotated[
    str | None,
    typer.Option(
        help="grid: every combination. optuna: what it proposes, after pip install 'kedge\\[optuna]'. Default: grid.",
        rich_help_panel=SWEEP,
    ),
]
Trials = Annotated[int | None, typer.Option(help="Points that optuna tries. Default: 50.", rich_help_panel=SWEEP)]
Resume = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Go on with the sweep in this directory.", rich_help_panel=SWEEP)
]


def sweep(
    config: options.ConfigFile = None,
    grid: Grid = None,
    seeds: Seeds = None,
    metric: Metric = None,
    halving: Halving = None,
    search: Search = None,
    trials: Trials = None,
    resume: Resume = None,
    algorithm: options.Algorithm = None,
    eta: options.Eta = None,
    beta: options.Beta = None,
    gamma: options.Gamma = None,
    dataset: options.Dataset = None,
    data_dir: options.DataDir = None,
    model: options.Model = None,
    clients: options.Clients = None,
    partition: options.Partition = None,
    alpha: options.Alpha = None,
    rounds: options.Rounds = None,
    cohort: options.Cohort = None,
    local_steps: options.LocalSteps = None,
    batch_size: options.BatchSize = None,
    weight_decay: options.WeightDecay = None,
    seed: options.Seed = None,
    eval_every: options.EvalEvery = None,
    device: options.Device = None,
    engine: options.Engine = None,
    state_memory: options.StateMemory = None,
    checkpoint_every: options.CheckpointEvery = None,
    jobs: options.Jobs = None,
    set_: options.Set = None,
    out: Annotated[
        Path | None, typer.Option(help="The directory: a new one, or one to go on with.", show_default=False)
    ] = None,
    trust: consent.Trust = False,
) -> None:
    """Try many settings, several runs at once, and say which is best.

    Every run is a directory of its own, DIR/runs/POINT-seedK. The same command again goes on where it stopped: what
    is finished is not done twice, what is not goes on from its checkpoint. More values or seeds extend the sweep.
    """
    given = {
        name: value for name, value in locals().items() if name not in ("resume", "jobs", "trust") and value is not None
    }
    if resume is not None and given:
        raise UsageError(f"--resume goes on with a sweep as it is, but {min(given).rstrip('_')} is given too")
    asked = None if resume is not None else _asked(config, set_, given, trust=trust)
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
