"""The figures of an experiment: accuracy over rounds for every panel and protocol, and over gradients and bytes."""

import math
from pathlib import Path

from matplotlib import rc_context

from kedge.report.palette import COLOURS
from kedge.report.panels import FORMATS, Series, View, draw_rankings, draw_views
from kedge.reproduce.plan import PROTOCOLS, Hyper, Plan
from kedge.reproduce.results import Measure, Runs, megabytes
from kedge.runs.reader import StoredRun

DRAWN = ("tuned", "equal", "eta")
"""The protocols that are drawn; the others only show how much the first depends on the grid."""

SATURATED = 0.9
"""An accuracy above which the error, on a log axis, says more."""


def draw(plan: Plan, runs: Runs, measured: list[Measure], folder: Path) -> None:
    """Write figure and budgets, each as .png and .svg; at the smoke scale, to save time, no .svg."""
    with rc_context({"text.parse_math": False}):  # names and titles may have dollars in them
        _draw(plan, runs, measured, folder)


def _draw(plan: Plan, runs: Runs, measured: list[Measure], folder: Path) -> None:
    formats = FORMATS[:1] if plan.scale == "smoke" else FORMATS
    experiment, count = plan.experiment, len({row.seed for row in measured})
    heading = f"{plan.title} ({experiment.figure}), {plan.scale} scale"
    reduced = f"Reduced: {plan.size.reduced}."
    runs = {trial: run for trial, run in runs.items() if trial.case.protocol in DRAWN}
    measured = [row for row in measured if row.protocol in DRAWN]
    if len(experiment.all_lines()) > len(COLOURS):
        note = f"Dots: seeds; strokes: their mean. In colour: the algorithms of the paper's figures. {reduced}"
        value = "test accuracy at the end"
        draw_rankings(_rankings(plan, measured, "accuracy"), folder / "figure", heading, note, value, formats)
        equal = {f"{place}, equal {name}": ranking for name in ("gradients", "bytes")
                 for place, ranking in _rankings(plan, measured, f"at_{name}").items()}  # fmt: skip
        draw_rankings(equal, folder / "budgets", heading, note, "test accuracy at equal budgets", formats, alike=True)
        return
    seeds = f"mean over {count} seeds; bands: smallest to largest" if count > 1 else "one seed"
    note = f"Lines: {seeds}. {reduced}"
    rows = _rows(plan, runs, measured)
    draw_views(rows, folder / "figure", heading, note, formats)
    budgets = [[_over(plan, runs, panel, "tuned", key, "test_accuracy") for panel in experiment.panels_at(plan.scale)]
               for key in ("gradients", "megabytes")]  # fmt: skip
    draw_views(budgets, folder / "budgets", f"{heading}: equal budgets", note, formats)


def _rows(plan: Plan, runs: Runs, measured: list[Measure]) -> list[list[View]]:
    """Return the diagrams of an experiment: its ends for a sweep, otherwise the curves of every panel and protocol."""
    experiment, panels = plan.experiment, list(plan.experiment.panels_at(plan.scale))
    protocols = [protocol for protocol in plan.protocols if protocol in DRAWN]
    if experiment.sweep:
        return [[_sweep(plan, measured, protocol, metric) for metric in ("accuracy", "loss")]
                for protocol in protocols]  # fmt: skip
    metrics = ["test_accuracy", *(["test_loss"] if experiment.loss else [])]
    if len(panels) == 1:
        return [
            [_over(plan, runs, panels[0], protocol, "round", metric) for protocol in protocols] for metric in metrics
        ]
    return [[_over(plan, runs, panel, protocol, "round", metric) for panel in panels]
            for metric in metrics for protocol in protocols]  # fmt: skip


def _rankings(plan: Plan, measured: list[Measure], key: str) -> dict[str, dict[str, list[float]]]:
    """Return a measure by panel and protocol, and by line."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in measured:
        values = found.setdefault(f"{row.panel}: {plan.how(row.panel, row.protocol)}", {}).setdefault(row.line, [])
        values.append(getattr(row, key))
    return found


def _over(plan: Plan, runs: Runs, panel: str, protocol: str, key: str, metric: str) -> View:
    """Draw a metric over rounds, gradients or megabytes."""
    series: dict[str, Series] = {}
    drawn = [run for run in runs.values() if run.diverged is None]
    error = metric == "test_accuracy" and max(map(_top, drawn), default=0.0) > SATURATED
    for (case, hyper, _), run in runs.items():
        if case[:2] == (panel, protocol):
            line = series.setdefault(case.line, Series(case.line, _rates(hyper, case.line)))
            if run.diverged is not None:
                line.diverged += 1
            else:
                x = [megabytes(row) if key == "megabytes" else row[key] for row in run.rows]
                line.runs.append((x, [1 - row[metric] if error else row[metric] for row in run.rows]))
    names = {"round": "rounds", "gradients": "minibatch gradients, all clients", "megabytes": "MB down and up"}
    return View(
        f"{panel}: {plan.how(panel, protocol)}", names[key], "test error" if error else metric.replace("_", " "),
        list(series.values()), log_y=error or metric == "test_loss",
    )  # fmt: skip


def _top(run: StoredRun) -> float:
    return max((row["test_accuracy"] for row in run.rows), default=0.0)


def _rates(hyper: Hyper, line: str) -> str:
    """Return the point of a line for the legend, without what its name says."""
    letters = {"eta": "η", "beta": "β", "step": "γ/ηK"}
    values = {name: value for name, value in hyper._asdict().items() if value is not None}
    return " ".join(f"{letters[name]} {value:g}" for name, value in values.items() if line != f"{name} = {value:g}")


def _sweep(plan: Plan, measured: list[Measure], protocol: str, metric: str) -> View:
    """Draw the end of every line over the values of the swept setting."""
    key = plan.experiment.sweep
    assert key is not None
    series: dict[tuple[str, int], tuple[list[float], list[float]]] = {}
    lines: dict[str, Series] = {}
    error = metric == "accuracy" and max(row.accuracy for row in measured) > SATURATED
    for row in measured:
        if row.protocol == protocol:
            x, y = series.setdefault((row.line, row.seed), ([], []))
            x.append(plan.value(row.panel, row.line, key))
            value = 1 - row.accuracy if error else getattr(row, metric)
            y.append(value if row.diverged is None else math.nan)
            lines.setdefault(row.line, Series(row.line)).diverged += row.diverged is not None
    for (line, _), run in series.items():
        lines[line].runs.append(run)
    return View(
        PROTOCOLS[protocol], key.partition(".")[2].replace("_", " "), f"test {'error' if error else metric} at the end",
        list(lines.values()), log_x=True, log_y=error or metric == "loss",
    )  # fmt: skip
