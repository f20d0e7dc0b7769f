"""The figures of an experiment: accuracy over rounds for every panel and protocol, and over gradients and bytes."""

import math
import textwrap
from pathlib import Path

from kedge.report.figures import COLOURS
from kedge.report.panels import FORMATS, Series, View, draw_rankings, draw_views
from kedge.reproduce.plan import PROTOCOLS, Plan
from kedge.reproduce.results import Curve, Measure, megabytes


def draw(plan: Plan, curves: list[Curve], measured: list[Measure], folder: Path) -> None:
    """Write figure.png and .pdf, and budgets.png and .pdf; at the smoke scale, which is in a hurry, no .pdf."""
    formats = FORMATS[:1] if plan.scale == "smoke" else FORMATS
    experiment = plan.experiment
    heading = f"{plan.title} ({experiment.figure}), {plan.scale} scale"
    many, count = len(experiment.all_lines()) > len(COLOURS), len(plan.seeds)
    reduced = f"Reduced: {plan.size.reduced}."
    seeds = f"mean over {count} seeds{'' if many else '; bands: smallest to largest'}" if count > 1 else "one seed"
    note = f"Lines: {seeds}. {reduced}"
    if many:
        ranks = textwrap.fill(f"Dots: seeds; strokes: their mean. {reduced}", 90)
        draw_rankings(_rankings(measured), folder / "figure", heading, ranks, "test accuracy at the end", formats)
    else:
        rows = _rows(plan, curves, measured)
        draw_views(rows, folder / "figure", heading, textwrap.fill(note, 60 + 45 * len(rows[0])), formats)
    budgets = [[_over(curves, panel, "tuned", key, "test_accuracy") for key in ("gradients", "megabytes")]
               for panel in experiment.panels_at(plan.scale)]  # fmt: skip
    draw_views(budgets, folder / "budgets", f"{heading}: equal budgets", textwrap.fill(note, 150), formats)


def _rows(plan: Plan, curves: list[Curve], measured: list[Measure]) -> list[list[View]]:
    """Return the diagrams of an experiment: of a sweep its ends, else the curves of every panel and protocol."""
    experiment, panels = plan.experiment, list(plan.experiment.panels_at(plan.scale))
    if experiment.sweep:
        return [[_sweep(plan, measured, protocol, metric) for metric in ("accuracy", "loss")]
                for protocol in plan.protocols]  # fmt: skip
    metrics = ["test_accuracy", *(["test_loss"] if experiment.loss else [])]
    rows = [[_over(curves, panel, protocol, "round", metric) for panel in panels]
            for metric in metrics for protocol in plan.protocols]  # fmt: skip
    return [[row[0] for row in rows]] if len(panels) == 1 else rows


def _rankings(measured: list[Measure]) -> dict[str, dict[str, list[float]]]:
    """Return the accuracies at the end by panel and protocol, and by line."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in measured:
        values = found.setdefault(f"{row.panel}: {PROTOCOLS[row.protocol]}", {}).setdefault(row.line, [])
        values.append(row.accuracy)
    return found


def _over(curves: list[Curve], panel: str, protocol: str, key: str, metric: str) -> View:
    """Draw a metric over rounds, gradients or megabytes."""
    series: dict[str, Series] = {}
    for curve in curves:
        if curve.case[:2] == (panel, protocol):
            line = series.setdefault(curve.case.line, Series(curve.case.line))
            if curve.diverged is not None:
                line.diverged += 1
            else:
                x = [megabytes(row) if key == "megabytes" else row[key] for row in curve.history]
                line.runs.append((x, [row[metric] for row in curve.history]))
    names = {"round": "rounds", "gradients": "minibatch gradients, all clients", "megabytes": "MB down and up"}
    return View(
        f"{panel}: {PROTOCOLS[protocol]}", names[key], metric.replace("_", " "), list(series.values()),
        log_y=metric == "test_loss",
    )  # fmt: skip


def _sweep(plan: Plan, measured: list[Measure], protocol: str, metric: str) -> View:
    """Draw the end of every line over the values of the swept setting."""
    key = plan.experiment.sweep
    assert key is not None
    series: dict[tuple[str, int], tuple[list[float], list[float]]] = {}
    lines: dict[str, Series] = {}
    for row in measured:
        if row.protocol == protocol:
            x, y = series.setdefault((row.line, row.seed), ([], []))
            x.append(plan.value(row.panel, row.line, key))
            y.append(getattr(row, metric) if row.diverged is None else math.nan)
            lines.setdefault(row.line, Series(row.line)).diverged += row.diverged is not None
    for (line, _), run in series.items():
        lines[line].runs.append(run)
    return View(
        PROTOCOLS[protocol], key.partition(".")[2].replace("_", " "), f"test {metric} at the end",
        list(lines.values()), log_x=True, log_y=metric == "loss", marker="o",
    )  # fmt: skip
