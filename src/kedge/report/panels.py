"""A table of small diagrams with the same lines, as a PNG and an SVG."""

import itertools
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from kedge.report.figures import save_figure, tidy
from kedge.report.palette import COLOURS, GREY, has_own_colour, is_named, look, shade

FORMATS = ("png", "svg")

DECADES = 2
"""On a log axis, means that lie more decades above the lowest are cut off: a collapsed line would hide the rest."""

FEW = 15
"""Curves with at most this many points have a marker on each."""

FEW_TICKS = 8
"""On a log axis, at most this many values have a tick each."""

Points = tuple[list[float], list[float]]
"""x and y of one run."""


@dataclass
class Series:
    """A line: its runs, one per seed, each with the same number of points (NaN: missing), and how many diverged."""

    label: str
    note: str = ""  # after the label in the legend, such as the rates of the line
    runs: list[Points] = field(default_factory=list)
    diverged: int = 0


@dataclass(frozen=True)
class View:
    """One diagram; all diagrams of a figure with the same y share one scale."""

    title: str
    x: str
    y: str
    series: list[Series]
    log_x: bool = False
    log_y: bool = False


def draw_views(
    rows: Sequence[Sequence[View]], path: Path, title: str, note: str, formats: Sequence[str] = FORMATS
) -> list[Path]:
    """Draw the views as a table; a line looks the same in all of them."""
    columns = max(len(row) for row in rows)
    labels = list(dict.fromkeys(line.label for row in rows for view in row for line in view.series))
    figure = Figure(figsize=(max(6.0, 4.7 * columns), 3.7 * len(rows) + 0.9), layout="constrained")
    table = figure.subplots(len(rows), columns, squeeze=False)
    ranges = {view.y: _range([other for row in rows for other in row if other.y == view.y])
              for row in rows for view in row}  # fmt: skip
    for places, row in zip(table, rows, strict=True):
        for axes, view in itertools.zip_longest(places, row):
            if view is None:
                axes.set_axis_off()
            else:
                _draw(axes, view, labels, ranges[view.y])
    return _finish(figure, path, title, note, formats)


def _range(views: Sequence[View]) -> tuple[float, float] | None:
    """Return y limits, with a margin, that contain the means over the runs of all lines."""
    means = [np.ma.masked_invalid([run[1] for run in line.runs]).mean(0)
             for view in views for line in view.series if line.runs]  # fmt: skip
    values = [float(value) for mean in means for value in np.ma.compressed(mean)]
    if not values or min(values) == max(values):
        return None
    low, high = min(values), max(values)
    if views[0].log_y and low > 0:
        high = min(high, 10**DECADES * low)
        margin = (high / low) ** 0.06
        return low / margin, high * margin
    margin = 0.05 * (high - low)
    return low - margin, high + margin


def draw_rankings(
    rankings: Mapping[str, Mapping[str, Sequence[float]]],
    path: Path,
    title: str,
    note: str,
    value: str,
    formats: Sequence[str] = FORMATS,
    rows: int = 1,
    *,
    alike: bool = False,
) -> list[Path]:
    """Draw, for each heading, the values of every label as dots with their mean, the largest mean on top.

    If the values under all headings are alike, they share one axis and the order of the first heading. With more
    lines than there are colours, only those that have their own colour everywhere are coloured.
    """
    lines = max(len(ranking) for ranking in rankings.values())
    columns = -(-len(rankings) // rows)
    figure = Figure(figsize=(6.5 * columns, rows * (1.8 + 0.24 * lines)), layout="constrained")
    table = figure.subplots(rows, columns, squeeze=False, sharex=alike)
    first = next(iter(rankings.values()))
    for axes, (heading, ranking) in zip(table.flat, rankings.items(), strict=True):
        sorting = first if alike else ranking
        order = sorted(ranking, key=lambda label: np.mean(sorting[label]))
        for place, label in enumerate(order):
            own = look(label, place)
            colour = own["color"] if lines <= len(COLOURS) or has_own_colour(label) else GREY
            dots = {"color": colour, "fillstyle": own["fillstyle"], "markersize": 4, "alpha": 0.6}
            axes.plot(ranking[label], [place] * len(ranking[label]), "o", **dots)
            axes.plot(np.mean(ranking[label]), place, "|", color=colour, markersize=12, markeredgewidth=2.5)
        axes.set_yticks(range(len(order)), order, fontsize=8)
        axes.set_title(heading, fontsize=10)
        axes.set_xlabel(value, fontsize=9)
        tidy(axes)
    return _finish(figure, path, title, note, formats)


def draw_intervals(
    intervals: Mapping[str, Mapping[str, tuple[float, float, float]]],
    path: Path,
    title: str,
    note: str,
    value: str,
    formats: Sequence[str] = FORMATS,
    *,
    hollow: Collection[str] = (),
    first: int = 0,
) -> list[Path]:
    """Draw a row per heading with (low, mean, high) of every label: ratios on a log axis, where 1 is no difference.

    The rows named in `hollow` have open markers; a line separates this many first rows from the others.
    """
    labels = list(dict.fromkeys(label for row in intervals.values() for label in row))
    figure = Figure(figsize=(8.5, 1.3 + 0.34 * len(intervals)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(1, color="#777777", linewidth=1)
    if first:
        axes.axhline(first - 0.5, color="#777777", linewidth=0.8, linestyle=":")
    for place, (heading, row) in enumerate(intervals.items()):
        for label, (low, mean, high) in row.items():
            number = labels.index(label)
            own = look(label, number)
            at = place + 0.22 * (number - (len(labels) - 1) / 2)
            axes.plot([low, high], [at, at], color=own["color"], linewidth=1.6, alpha=0.7)
            face = "white" if heading in hollow else own["color"]
            axes.plot(mean, at, own["marker"], color=own["color"], markerfacecolor=face, markersize=5, label=label)
    axes.set_yticks(range(len(intervals)), intervals, fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(value, fontsize=9)
    named = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))  # each label once
    axes.legend([named[label] for label in labels], labels, frameon=False, fontsize=8)
    tidy(axes)
    return _finish(figure, path, title, note, formats)


def _finish(figure: Figure, path: Path, title: str, note: str, formats: Sequence[str]) -> list[Path]:
    figure.suptitle(textwrap.fill(title, int(10 * figure.get_figwidth())), fontsize=12)
    note = "\n".join(textwrap.fill(line, int(15 * figure.get_figwidth())) for line in note.splitlines())
    figure.supxlabel(note, fontsize=8, color="#555555")
    written = [path.with_name(f"{path.name}.{kind}") for kind in formats]
    for file in written:
        save_figure(figure, file, dpi=90)
    return written


def _draw(axes: Axes, view: View, labels: list[str], limits: tuple[float, float] | None) -> None:
    for line in view.series:
        place = labels.index(line.label)
        own: dict[str, Any] = look(line.label, place)
        if not any(map(is_named, labels)):  # variants of one algorithm: colours of algorithms would mislead
            own["color"] = shade(place, len(labels))
        if line.diverged:
            _note(axes, view, line)
        if not line.runs:
            continue
        x = np.array([run[0] for run in line.runs]).mean(0)
        y = np.ma.masked_invalid([run[1] for run in line.runs])
        label = f"{line.label}  {line.note}" if line.note else line.label
        every = 1 if len(x) <= FEW else -(-len(x) // 8)
        axes.plot(x, y.mean(0), label=label, linewidth=1.6, markersize=4, markevery=every, **own)
        if len(labels) <= len(COLOURS):  # more bands than that hide each other
            axes.fill_between(x, y.min(0), y.max(0), color=own["color"], alpha=0.12, linewidth=0)
    axes.set_title(textwrap.fill(view.title, 50), fontsize=10)
    axes.set_xlabel(view.x, fontsize=9)
    axes.set_ylabel(view.y, fontsize=9)
    if view.log_x:
        axes.set_xscale("log")
        values = sorted({value for line in view.series for run in line.runs for value in run[0]})
        if len(values) > FEW_TICKS:
            values = [at for at in LogLocator(subs=(1, 2, 5)).tick_values(values[0], values[-1])
                      if values[0] <= at <= values[-1]]  # fmt: skip
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.set_xticks([], minor=True)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(7, integer=view.x == "rounds", min_n_ticks=1))
    if view.log_y and limits and limits[0] > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7) if limits[1] < 10 * limits[0] else (1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    if limits:
        axes.set_ylim(limits)
    axes.legend(framealpha=0.7, edgecolor="none", fontsize=7, handlelength=3.2)
    tidy(axes)


def _note(axes: Axes, view: View, line: Series) -> None:
    """Note in the diagram which lines lost runs."""
    before = sum(other.diverged > 0 for other in view.series[: view.series.index(line)])
    text = f"{line.label}: {line.diverged} diverged"
    axes.text(0.98, 0.02 + 0.06 * before, text, transform=axes.transAxes, ha="right", fontsize=7, color="#555555")
