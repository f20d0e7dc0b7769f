"""A table of small diagrams that share their lines: each a PNG and a PDF."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from kedge.report.figures import COLOURS, STYLES, save_figure, tidy

FORMATS = ("png", "pdf")

LEGEND = 16
"""Lines in a column of the legend."""

Points = tuple[list[float], list[float]]
"""x and y of one run."""


@dataclass
class Series:
    """A line: its runs, one a seed, with as many points each (NaN: none there), and how many of them diverged."""

    label: str
    runs: list[Points] = field(default_factory=list)
    diverged: int = 0


@dataclass(frozen=True)
class View:
    """One diagram."""

    title: str
    x: str
    y: str
    series: list[Series]
    log_x: bool = False
    log_y: bool = False  # if the values span more than a decade
    marker: str = ""


def draw_views(
    rows: Sequence[Sequence[View]], path: Path, title: str, note: str, formats: Sequence[str] = FORMATS
) -> list[Path]:
    """Draw the views as a table; a line has one look in all of them."""
    columns = max(len(row) for row in rows)
    labels = list(dict.fromkeys(line.label for row in rows for view in row for line in view.series))
    legend_columns = -(-len(labels) // LEGEND)
    height = max(3.4 * len(rows) + 1.3, 1.3 + 0.22 * min(len(labels), LEGEND))
    figure = Figure(figsize=(max(6.0, 4.6 * columns) + 2.0 * legend_columns, height), layout="constrained")
    table = figure.subplots(len(rows), columns, squeeze=False)
    for places, row in zip(table, rows, strict=True):
        for axes, view in zip(places, row, strict=True):
            _draw(axes, view, labels)
    handles: dict[str, Artist] = {}
    for axes in table.flat:
        found, names = axes.get_legend_handles_labels()
        handles |= {name: handle for name, handle in zip(names, found, strict=True) if name not in handles}
    order = sorted(handles, key=labels.index)
    figure.legend(
        [handles[name] for name in order], order, loc="outside right center", ncols=legend_columns, frameon=False,
        fontsize=9,
    )  # fmt: skip
    return _finish(figure, path, title, note, formats)


def draw_rankings(
    rankings: Mapping[str, Mapping[str, Sequence[float]]],
    path: Path,
    title: str,
    note: str,
    value: str,
    formats: Sequence[str] = FORMATS,
) -> list[Path]:
    """Draw, for each heading, the values of every label as dots with their mean, the largest mean on top."""
    lines = max(len(ranking) for ranking in rankings.values())
    figure = Figure(figsize=(6.5 * len(rankings), 1.8 + 0.24 * lines), layout="constrained")
    table = figure.subplots(1, len(rankings), squeeze=False)[0]
    for axes, (heading, ranking) in zip(table, rankings.items(), strict=True):
        order = sorted(ranking, key=lambda label: np.mean(ranking[label]))
        for place, label in enumerate(order):
            axes.plot(ranking[label], [place] * len(ranking[label]), "o", color=COLOURS[0], markersize=4, alpha=0.6)
            axes.plot(np.mean(ranking[label]), place, "|", color=COLOURS[3], markersize=11, markeredgewidth=2)
        axes.set_yticks(range(len(order)), order, fontsize=8)
        axes.set_title(heading, fontsize=10)
        axes.set_xlabel(value, fontsize=9)
        tidy(axes)
    return _finish(figure, path, title, note, formats)


def _finish(figure: Figure, path: Path, title: str, note: str, formats: Sequence[str]) -> list[Path]:
    figure.suptitle(title, fontsize=12)
    figure.supxlabel(note, fontsize=8, color="#555555")
    written = [path.with_name(f"{path.name}.{kind}") for kind in formats]
    for file in written:  # without a date: the same data give the same file
        save_figure(figure, file, dpi=90, metadata={"CreationDate": None} if file.suffix == ".pdf" else None)
    return written


def _draw(axes: Axes, view: View, labels: list[str]) -> None:
    for line in view.series:
        place = labels.index(line.label)
        look: dict[str, Any] = {
            "color": COLOURS[place % len(COLOURS)],
            "linestyle": STYLES[place // len(COLOURS) % len(STYLES)],
        }
        if line.diverged:
            _note(axes, view, line)
        if not line.runs:
            continue
        x = np.array([run[0] for run in line.runs]).mean(0)
        y = np.ma.masked_invalid([run[1] for run in line.runs])
        axes.plot(x, y.mean(0), label=line.label, linewidth=1.7, marker=view.marker, markersize=4, **look)
        if len(labels) <= len(COLOURS):  # more bands than that hide each other
            axes.fill_between(x, y.min(0), y.max(0), color=look["color"], alpha=0.15, linewidth=0)
    axes.set_title(view.title, fontsize=10)
    axes.set_xlabel(view.x, fontsize=9)
    axes.set_ylabel(view.y, fontsize=9)
    if view.log_x:
        axes.set_xscale("log")
        values = sorted({value for line in view.series for run in line.runs for value in run[0]})
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.set_xticks([], minor=True)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=view.x == "rounds", min_n_ticks=1))
    heights = [value for line in view.series for run in line.runs for value in run[1] if math.isfinite(value)]
    if view.log_y and heights and min(heights) > 0 and max(heights) > 10 * min(heights):
        axes.set_yscale("log")
    tidy(axes)


def _note(axes: Axes, view: View, line: Series) -> None:
    """Say in the diagram which lines lost runs."""
    before = sum(other.diverged > 0 for other in view.series[: view.series.index(line)])
    text = f"{line.label}: {line.diverged} diverged"
    axes.text(0.98, 0.02 + 0.06 * before, text, transform=axes.transAxes, ha="right", fontsize=7, color="#555555")
