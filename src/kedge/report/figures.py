"""Figures: curves with a band over the seeds, and which client holds which labels. Each is a PNG and an SVG."""

import io
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from kedge.files import write_atomically
from kedge.report.comparison import Runs, own_metrics
from kedge.report.lines import is_held_out, metric_words
from kedge.report.palette import COLOURS, look

DASHES = 3.5
"""The length of a line in a legend, in letters: enough to see how it is dashed."""


IMAGES = frozenset({".png", ".svg", ".pdf", ".jpg", ".jpeg", ".gif", ".webp", ".tif", ".tiff", ".eps", ".bmp"})


def draw_comparison(compared: Runs, path: Path, title: str) -> list[Path]:
    """Draw accuracy (or loss) and your own metrics against rounds and bytes: means, and their range over the seeds."""
    every = [run for own in compared.values() for run in own]
    known = {name for run in every for row in run.rows[-1:] for name in row}
    usual = [name for name in ("test_accuracy", "test_loss") if name in known][:1]
    metrics = [*usual, *own_metrics(compared)] or ["test_loss"]
    figure = Figure(figsize=(12, 0.8 + 3.6 * len(metrics)), layout="constrained")
    shade = 0.15 if len(compared) <= len(COLOURS) else 0.0  # more bands than that hide each other
    grid = figure.subplots(len(metrics), 2, sharex="col", sharey="row", squeeze=False)
    for metric, (left, right) in zip(metrics, grid, strict=True):
        _draw_metric(compared, metric, left, right, shade)
    left, right = grid[-1]
    left.set_xlabel("rounds")
    left.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    right.set_xlabel("communication, MB down and up, all clients")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=9, handlelength=DASHES)
    figure.suptitle(title, fontsize=11)
    seeds = len({run.seed for run in every})
    note = (
        f"lines: mean of {seeds} seeds" + ("; bands: smallest to largest" if shade else "") if seeds > 1 else "one seed"
    )
    figure.supxlabel(note, fontsize=8, color="#555555")
    return _save(figure, path)


def _draw_metric(compared: Runs, metric: str, left: Axes, right: Axes, shade: float) -> None:
    for place, name in enumerate(compared):
        runs = [run.rows for run in compared[name] if run.last is not None]
        own = look(name, place)
        lost = sum(run.diverged is not None for run in compared[name])
        label = f"{name} ({lost} diverged)" if lost else name
        if not runs or not all(metric in row for run in runs for row in run):
            left.plot([], [], label=label, **own)
            continue
        values = np.array([[row[metric] for row in run] for run in runs])
        rounds = np.array([row["round"] for row in runs[0]])
        megabytes = np.array([[(row["bytes_down"] + row["bytes_up"]) / 1e6 for row in run] for run in runs]).mean(0)
        for axes, x in ((left, rounds), (right, megabytes)):
            axes.plot(x, values.mean(0), label=label, linewidth=1.8, markersize=4, markevery=-(-len(x) // 12), **own)
            axes.fill_between(x, values.min(0), values.max(0), color=own["color"], alpha=shade, linewidth=0)
    left.set_ylabel(metric_words(metric, {is_held_out(run) for runs in compared.values() for run in runs}))
    if metric == "test_loss":
        left.set_yscale("log")
    for axes in (left, right):
        tidy(axes)


def draw_partition(counts: NDArray[np.int64], path: Path, title: str) -> list[Path]:
    """Draw clients x labels: the area of a dot is the number of samples."""
    clients, labels = counts.shape
    shown = counts[:60]
    figure = Figure(figsize=(min(16.0, 2.0 + 0.22 * len(shown)), 1.6 + 0.32 * labels), layout="constrained")
    axes = figure.subplots()
    x, y = np.nonzero(shown)
    axes.scatter(x, y, s=140 * shown[x, y] / shown.max(), color=COLOURS[0])
    axes.set_xlabel("client" + (f" (the first {len(shown)} of {clients})" if clients > len(shown) else ""))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_ylabel("label")
    axes.set_yticks(range(labels))
    axes.set_xlim(-0.7, len(shown) - 0.3)
    axes.set_title(f"{title} (the largest dot: {shown.max()} samples)", fontsize=11)
    tidy(axes)
    return _save(figure, path)


def files_of(path: Path) -> list[Path]:
    """Return the two files of a figure: ``path`` with the suffix of each format in place of any suffix of an image."""
    stem = path.stem if path.suffix.lower() in IMAGES else path.name
    return [path.with_name(stem + ending) for ending in (".png", ".svg")]


def tidy(axes: Axes) -> None:
    """Remove what carries no information."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6)


def _save(figure: Figure, path: Path) -> list[Path]:
    written = files_of(path)
    for file in written:
        save_figure(figure, file, dpi=130)
    return written


DATES = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}


def save_figure(figure: Figure, path: Path, **options: Any) -> None:
    """Write a figure in the format of its suffix; like every file, it is complete or there is a `WriteError`.

    There is no date and a fixed salt, so the same data gives the same file.
    """
    content = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "kedge", "svg.fonttype": "none"}):
        figure.savefig(content, format=path.suffix[1:], **({"metadata": DATES.get(path.suffix)} | options))
    write_atomically(path, content.getvalue())
