"""What a sweep shows: a live table on a terminal, else a line per run; and its tables at the end."""

from typing import Any, Self

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from kedge.cli.console import figure, output
from kedge.files import write_csv
from kedge.runs.batch import Event, Outcome
from kedge.runs.grid import label, short_keys, short_label
from kedge.runs.sweep import Standing, Sweep, ranked

LIVE = 10
"""Points in the live table."""

SHOWN = 30
"""Points in the last one."""


class View:
    """Follows a sweep."""

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        self._running: dict[str, Event] = {}
        self._ended: set[str] = set()
        self._found: set[str] = set()  # of those, by an earlier command
        self._bar = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(bar_width=30), MofNCompleteColumn(),
            TextColumn("rounds,"), TimeElapsedColumn(), TextColumn("so far,"), TimeRemainingColumn(),
            TextColumn("to go"),
        )  # fmt: skip
        self._task = self._bar.add_task("", total=sweep.total)
        self._live = Live(get_renderable=self._render, console=output, transient=True, refresh_per_second=4)

    def __enter__(self) -> Self:
        self._sweep.watch = self._follow
        if output.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if output.is_terminal:
            self._live.stop()

    def _follow(self, event: Event) -> None:
        self._bar.update(self._task, completed=sum(self._sweep.rounds.values()))
        if event.outcome is None:
            before = self._running.get(event.name)
            self._running[event.name] = event if event.row or before is None else Event(
                event.name, event.round, before.row
            )  # fmt: skip
            return
        self._running.pop(event.name, None)
        self._ended.add(event.name)
        if event.found:
            self._found.add(event.name)
        if not output.is_terminal and not event.found:
            output.print(f"{event.name}: {result(event.outcome)}", highlight=False, soft_wrap=True)

    def _render(self) -> Group:
        sweep = self._sweep
        before = f" ({len(self._found)} before)" if self._found else ""
        self._bar.update(self._task, description=f"{len(self._ended)} runs done{before}")
        now = Table(box=None, pad_edge=False, show_header=False)
        for name, event in sorted(self._running.copy().items()):
            value = (event.row or {}).get(sweep.plan.metric)
            now.add_row("running", name, f"round {event.round}", number(sweep.plan.metric, value))
        best = ranked([s for s in list(sweep.standings.values()) if s.outcomes], sweep.plan.metric)
        table = [_table(sweep, best[:LIVE], "best so far")] if best else []
        return Group(*table, now, self._bar)


def number(metric: str, value: float | None) -> str:
    """Write a value of the metric."""
    return figure(value, ".1%" if metric == "test_accuracy" else ".4g")


def result(outcome: Outcome) -> str:
    """Say what a run came to."""
    if outcome.error is not None:
        return f"failed: {outcome.error}"
    if outcome.last is None:
        return f"diverged in round {outcome.diverged}"
    row = outcome.last
    parts = [f"{metric.replace('_', ' ')} {number(metric, row[metric])}" for metric in ("test_accuracy", "test_loss")
             if metric in row]  # fmt: skip
    return f"{', '.join(parts)} after {row['round']} rounds ({row['seconds']:.1f} s)"


def final_table(sweep: Sweep) -> Table:
    """Return the points, best first."""
    standings = ranked(sweep.standings.values(), sweep.plan.metric)
    table = _table(sweep, standings[:SHOWN], None)
    if len(standings) > SHOWN:
        table.caption = f"... and {len(standings) - SHOWN} more, in summary.csv"
    return table


def _table(sweep: Sweep, standings: list[Standing], title: str | None) -> Table:
    plan = sweep.plan
    table = Table(title=title, box=None, pad_edge=False, title_justify="left", caption_justify="left")
    for name in short_keys(list(plan.axes)).values():
        table.add_column(name, justify="right")
    for name in (plan.metric.replace("_", " "), "seeds", "rounds", ""):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for place, standing in enumerate(standings):
        mean, spread = standing.mean(plan.metric), standing.spread(plan.metric)
        score = number(plan.metric, mean)
        if mean is not None and spread is not None:
            score += f" ± {100 * spread:.1f}" if plan.metric == "test_accuracy" else f" ± {spread:.2g}"
        table.add_row(
            *(_short(value) for value in standing.point.values()), score,
            f"{len(standing.outcomes)}/{standing.seeds}", str(standing.rounds or "-"), _state(standing),
            style="bold" if place == 0 and mean is not None else None,
        )  # fmt: skip
    return table


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else short_label(value)


def _state(standing: Standing) -> str:
    return {
        "finished": "", "diverged": f"{standing.diverged} diverged", "failed": f"{standing.failed} failed",
        "stopped": f"stopped after round {standing.rounds}",
    }.get(standing.state, standing.state)  # fmt: skip


def best_line(sweep: Sweep) -> str:
    """Say which point is best, and which were stopped."""
    plan = sweep.plan
    stopped = sum(standing.state == "stopped" for standing in sweep.standings.values())
    more = f" {stopped} of {len(sweep.standings)} points were stopped early." if stopped else ""
    best = ranked(sweep.standings.values(), plan.metric)[0]
    mean = best.mean(plan.metric)
    if mean is None:
        return f"No point came to its end.{more}"
    settings = " ".join(f"--set {key}={label(value)}" for key, value in best.point.items())
    return f"Best: {settings} ({plan.metric.replace('_', ' ')} {number(plan.metric, mean)}).{more}"


def write_tables(sweep: Sweep) -> list[str]:
    """Write a row per point and a row per run; return the files' names."""
    runs: list[dict[str, object]] = []
    points: list[dict[str, object]] = []
    for rank, standing in enumerate(ranked(sweep.standings.values(), sweep.plan.metric), 1):
        values: dict[str, object] = {key: label(value) for key, value in standing.point.items()}
        about: dict[str, object] = {
            "rank": rank, **values, "state": standing.state, "rounds": standing.rounds, "seeds": len(standing.outcomes),
            "diverged": standing.diverged, "failed": standing.failed,
        }  # fmt: skip
        for metric in ("test_accuracy", "test_loss"):
            about |= {metric: standing.mean(metric), f"{metric}_std": standing.spread(metric)}
        points.append(about)
        for seed, outcome in sorted(standing.outcomes.items()):
            state = "failed" if outcome.error else "diverged" if outcome.last is None else standing.state
            row: dict[str, object] = dict(outcome.last or {"round": outcome.round})
            runs.append({"run": outcome.path.name, **values, "seed": seed, "state": state, **row})
    write_csv(sweep.path / "summary.csv", points)
    write_csv(sweep.path / "runs.csv", runs)
    return ["summary.csv", "runs.csv"]
