"""What a sweep shows: a live table on a terminal, otherwise one line per run; and its tables at the end."""

from typing import Any

from rich.table import Table

from kedge.cli.console import number, output
from kedge.cli.progress import RunsDisplay
from kedge.files import write_csv
from kedge.report.lines import is_held_out, metric_words
from kedge.runs.batch import Event
from kedge.runs.grid import label, short_keys, short_label
from kedge.runs.reader import StoredRun
from kedge.runs.search import Standing, ranked
from kedge.runs.sweep import BEST, Sweep, SweepPlan

LIVE = 10
"""Points in the live table."""

SHOWN = 30
"""Points in the last one."""


def sweep_display(sweep: Sweep) -> RunsDisplay:
    """Return what follows a sweep: on a terminal with the best points so far."""

    def best() -> list[Table]:
        found = ranked([s for s in list(sweep.standings.values()) if s.runs], sweep.plan.metric)
        return [_table(sweep, found[:LIVE], "best so far")] if found else []

    def line(event: Event) -> str:
        assert event.ended is not None
        return f"{event.name}: {result(event.ended)}"

    display = RunsDisplay(
        sweep.total, lambda event: sweep.rounds[event.name], line,
        metric=sweep.plan.metric, console=output, tables=best,
    )  # fmt: skip
    sweep.watch = display.follow
    return display


def result(run: StoredRun) -> str:
    """Describe the result of a run."""
    if run.error is not None:
        return f"failed: {run.error}"
    if run.last is None:
        return f"diverged in round {run.diverged}"
    row, kinds = run.last, [is_held_out(run)]
    parts = [f"{metric_words(metric, kinds)} {number(metric, row[metric])}" for metric in ("test_accuracy", "test_loss")
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
    for name in (plan.criterion, "seeds", "rounds", ""):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for place, standing in enumerate(standings):
        mean, spread = standing.mean(plan.metric), standing.spread(plan.metric)
        score = number(plan.metric, mean)
        if mean is not None and spread is not None:
            score += f" ± {100 * spread:.1f}" if plan.metric == "test_accuracy" else f" ± {spread:.2g}"
        table.add_row(
            *(_short(value) for value in standing.point.values()), score,
            f"{len(standing.runs)}/{standing.seeds}", str(standing.rounds or "-"), _state(standing),
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
        return f"No point finished{' with a finite value' if best.state == 'finished' else ''}.{more}"
    settings = " ".join(f"--set {key}={label(value)}" for key, value in best.point.items())
    return f"Best: {settings} ({plan.criterion} {number(plan.metric, mean)}).{more}"


def tested_line(plan: SweepPlan, tested: Standing) -> str:
    """Say how the best point does on the test set, which had no part in the choice."""
    said, mean, spread = plan.metric.replace("_", " "), tested.mean(plan.metric), tested.spread(plan.metric)
    if mean is None:
        return f"Trained on all samples ({BEST}/), it failed or diverged, or {said} is not finite."
    scale = 100 if plan.metric == "test_accuracy" else 1
    more = "" if spread is None else f" ± {scale * spread:.2g}, the standard deviation over {len(tested.runs)} seeds"
    return f"Trained on all samples ({BEST}/): {said} {number(plan.metric, mean)}{more}."


def write_tables(sweep: Sweep) -> list[str]:
    """Write one row per point and one per run; return the names of the files."""
    runs: list[dict[str, object]] = []
    points: list[dict[str, object]] = []
    for rank, standing in enumerate(ranked(sweep.standings.values(), sweep.plan.metric), 1):
        values: dict[str, object] = {key: label(value) for key, value in standing.point.items()}
        about: dict[str, object] = {
            "rank": rank, **values, "state": standing.state, "rounds": standing.rounds, "seeds": len(standing.runs),
            "diverged": standing.diverged, "failed": standing.failed,
        }  # fmt: skip
        for metric in ("test_accuracy", "test_loss"):
            about |= {metric: standing.mean(metric), f"{metric}_std": standing.spread(metric)}
        points.append(about)
        for seed, run in sorted(standing.runs.items()):
            state = "failed" if run.error else "diverged" if run.last is None else standing.state
            row: dict[str, object] = dict(run.last or {"round": run.round})
            runs.append({"run": run.path.name, **values, "seed": seed, "state": state, **row})
    write_csv(sweep.path / "summary.csv", points)
    write_csv(sweep.path / "runs.csv", runs)
    return ["summary.csv", "runs.csv"]
