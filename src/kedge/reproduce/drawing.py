"""The figures of an experiment: accuracy over rounds for every panel and protocol, and over gradients and bytes."""

import math
import textwrap
from pathlib import Path

from kedge.report.panels import FORMATS, Series, View, draw_views
from kedge.reproduce.plan import PROTOCOLS, Plan
from kedge.reproduce.results import Curve, Measure, megabytes


def draw(plan: Plan, curves: list[Curve], measured: list[Measure], folder: Path) -> None:
    """Write figure.png and .pdf, and budgets.png and .pdf; at the smoke scale, which is in a hurry, no .pdf."""
    formats = FORMATS[:1] if plan.scale == "smoke" else FORMATS
    experiment, lines = plan.experiment, list(plan.experiment.all_lines())
    panels = list(experiment.panels_at(plan.scale))
    if experiment.sweep:
        rows = [[_sweep(plan, measured, protocol, metric) for metric in ("accuracy", "loss")]
                for protocol in plan.protocols]  # fmt: skip
    else:
        metrics = ["test_accuracy", *(["test_loss"] if experiment.loss else [])]
        rows = [[_over(curves, panel, protocol, "round", metric) for panel in panels]
                for metric in metrics for protocol in plan.protocols]  # fmt: skip
        if len(panels) == 1:
            rows = [[row[0] for row in rows]]
    heading = f"{plan.title} ({experiment.figure}), {plan.scale} scale"
    bands = "" if len(lines) > 8 else "; bands: smallest to largest"
    seeds = f"mean over {len(plan.seeds)} seeds{bands}" if len(plan.seeds) > 1 else "one seed"
    note = f"Lines: {seeds}. Reduced: {plan.size.reduced}."
    draw_views(rows, folder / "figure", heading, textwrap.fill(note, 60 + 45 * len(rows[0])), formats)
    budgets = [[_over(curves, panel, "tuned", key, "test_accuracy") for key in ("gradients", "megabytes")]
               for panel in panels]  # fmt: skip
    draw_views(budgets, folder / "budgets", f"{heading}: equal budgets", textwrap.fill(note, 150), formats)


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
