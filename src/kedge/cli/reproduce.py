"""`kedge reproduce`: a figure of the paper, or your own experiment, with one command."""

import math
import shlex
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from rich.markdown import Markdown
from rich.table import Table

from kedge.checks import whole
from kedge.cli import consent
from kedge.cli.console import errors, figure, output
from kedge.cli.progress import batch_display
from kedge.cli.signals import Stop, StoppedError, stopping
from kedge.errors import UsageError, unknown
from kedge.reproduce.conduct import UnfinishedError, conduct
from kedge.reproduce.estimate import cost_table, estimate
from kedge.reproduce.experiment import SCALES, load, names, read_own
from kedge.reproduce.plan import Plan
from kedge.reproduce.rehearsal import check_plan, code_of
from kedge.runs.batch import Event, available_cores
from kedge.runs.config import Config

RESULTS = Path("experiments/results")


def reproduce(
    name: str | None,
    scale: str,
    out: Path,
    jobs: int | None,
    device: str | None,
    data_dir: str | None,
    *,
    list_: bool,
    trust: bool,
) -> None:
    """Repeat an experiment, or list them."""
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    if list_:
        output.print(_table())
        return
    if jobs is not None:
        whole("jobs", jobs, 1)
    if out.exists() and not out.is_dir():
        raise UsageError(f"out is {out}, but that is not a directory")
    if name is None:
        raise UsageError("no figure is given; `kedge reproduce --list` shows them")
    own = Path(name) if name.endswith(".toml") else None
    experiments = [read_own(own)] if own else [load(chosen) for chosen in (names() if name == "all" else [name])]
    plans = [Plan(chosen, scale, device, data_dir, bool(own)) for chosen in experiments if scale in chosen.scales]
    if not plans:
        raise UsageError(f"{name} has no scale {scale}, but {', '.join(experiments[0].scales)}")
    if own is not None:
        consent.allow([], code_of(plans[0].experiment, scale), own, trust=trust)
        check_plan(plans[0])
    if len(plans) > 1:  # cheapest first, after those that its claims are about
        plans.sort(key=lambda plan: (bool(plan.experiment.needs()), estimate(plan).seconds))
    given = (
        "".join(
            f" --{option} {value}"
            for option, value in {
                "out": out if out != RESULTS else None,
                "device": device,
                "data-dir": data_dir,
            }.items()
            if value is not None
        )
        + " --trust" * trust
    )
    left_out = []
    with stopping() as stop:
        for plan in plans:
            try:
                _one(plan, name if own else plan.experiment.name, out, jobs, stop, given)
            except UsageError as error:
                if len(plans) == 1:
                    raise
                left_out.append(plan.experiment.name)
                errors.print(f"kedge: {plan.experiment.name} is left out: {error}", markup=False, soft_wrap=True)
    if left_out:
        raise UsageError(f"left out, as reported above: {', '.join(left_out)}")


def _one(plan: Plan, source: str, out: Path, jobs: int | None, stop: Stop, given: str) -> None:
    name, guess, cores = plan.experiment.name, estimate(plan), min(jobs or available_cores(), available_cores())
    time = "" if math.isnan(guess.seconds) else f", about {guess.on(cores)} on {cores} core{'s' * (cores > 1)}"
    errors.print(f"{name}: {guess.runs} runs{time}", highlight=False)
    command = f"kedge reproduce {shlex.quote(source)} --scale {plan.scale}"
    with ExitStack() as displays:
        try:
            report = conduct(plan, out, jobs, partial(_follow, displays, name), stop, command)
        except UnfinishedError:
            assert stop.signal is not None
            raise StoppedError(f"stopped; continue with `{command}{given}`", stop.signal) from None
    output.print(
        Markdown(report.verdict) if output.is_terminal else report.verdict,
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    output.print(f"Written to {report.folder}.", highlight=False, soft_wrap=True)


def _follow(displays: ExitStack, name: str, title: str, jobs: Mapping[str, Config]) -> Callable[[Event], None]:
    """Show the progress of a batch, in place of the previous one."""

    def line(event: Event) -> str:
        last = None if event.ended is None else event.ended.last
        return f"{name}, {title}: {event.name}, accuracy {figure((last or {}).get('test_accuracy'), '.1%')}"

    displays.close()
    return displays.enter_context(batch_display(jobs, line, f"{name}, {title}: ")).follow


def _table() -> Table:
    table = Table(
        box=None, pad_edge=False, title="Rough times on two cores; paper is meant for a GPU", title_justify="left"
    )
    for column in ("figure", "of the paper", "what it shows", *SCALES):
        table.add_column(column, no_wrap=column in ("figure", *SCALES), justify="right" if column in SCALES else "left")
    for row in cost_table():
        table.add_row(*row)
    return table
