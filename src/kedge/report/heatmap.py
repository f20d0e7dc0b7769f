"""The picture of a sweep: a matrix of numbers for two keys, a curve for one, a panel per key for more."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from kedge.report.figures import save_figure

NONE = "#D9D9D9"
BEST = "#D55E00"
LINE = "#0072B2"

TICKS = 10
"""The most values that each have a tick."""


@dataclass(frozen=True)
class Cell:
    """A point of a sweep: its values by key, its mean and spread, and a note such as why there is no mean."""

    point: Mapping[str, Any]
    mean: float | None
    spread: float | None = None
    note: str = ""


def draw_sweep(cells: Sequence[Cell], path: Path, metric: str, more_is_better: bool, title: str) -> list[Path]:
    """Draw the points and mark the best; return the PNG and the PDF.

    The title says, up to a colon, what the numbers are: the words stand at their axis too.
    """
    keys = list(cells[0].point)
    grid = len({tuple(map(str, cell.point.values())) for cell in cells}) == math.prod(
        len({str(cell.point[key]) for cell in cells}) for key in keys
    )
    known = [cell for cell in cells if cell.mean is not None]
    # Points that were stopped early rank lower whatever their number: the best is one that was not stopped.
    best = max(
        known, key=lambda cell: (not cell.note, (cell.mean or 0.0) * (1 if more_is_better else -1)), default=None
    )
    if len(keys) == 2 and grid:
        figure = _matrix(cells, keys, metric, more_is_better, best)
    else:
        figure = _panels(cells, keys, metric, more_is_better, best, title.partition(":")[0])
    figure.suptitle(title, fontsize=11)
    written = [path.with_name(path.name + ending) for ending in (".png", ".pdf")]
    save_figure(figure, written[0], dpi=130)
    save_figure(figure, written[1])
    return written


def _matrix(cells: Sequence[Cell], keys: list[str], metric: str, more_is_better: bool, best: Cell | None) -> Figure:
    down, across = ([*{str(cell.point[key]): None for cell in cells}] for key in keys)
    means = np.full((len(down), len(across)), np.nan)
    figure = Figure(figsize=(2.4 + 0.95 * len(across), 1.7 + 0.62 * len(down)), layout="constrained")
    axes = figure.subplots()
    places = {
        id(cell): (down.index(str(cell.point[keys[0]])), across.index(str(cell.point[keys[1]]))) for cell in cells
    }
    for cell in cells:
        means[places[id(cell)]] = math.nan if cell.mean is None else cell.mean
    axes.set_facecolor(NONE)
    shown = np.log(means) if metric == "test_loss" and np.nanmin(means, initial=1.0) > 0 else means
    image = axes.imshow(shown, cmap="viridis" if more_is_better else "viridis_r", aspect="auto")
    for cell in cells:
        row, column = places[id(cell)]
        red, green, blue, _ = image.cmap(image.norm(shown[row, column])) if cell.mean is not None else (1, 1, 1, 1)
        dark = 0.3 * red + 0.6 * green + 0.1 * blue < 0.5
        axes.text(column, row, _words(cell, metric), ha="center", va="center", fontsize=8, color="w" if dark else "k")
        if cell is best:
            axes.add_patch(_frame(row, column))
    _name_across(axes, across)
    axes.set_yticks(range(len(down)), down)
    axes.set_xlabel(keys[1])
    axes.set_ylabel(keys[0])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return figure


def _frame(row: int, column: int) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((column - 0.47, row - 0.47), 0.94, 0.94, fill=False, edgecolor=BEST, linewidth=2.5)


def _words(cell: Cell, metric: str) -> str:
    if cell.mean is None:
        return cell.note or "-"
    accuracy = metric == "test_accuracy"
    number = f"{100 * cell.mean:.1f}" if accuracy else f"{cell.mean:.3g}"
    if cell.spread is not None:
        number += f"\n± {100 * cell.spread:.1f}" if accuracy else f"\n± {cell.spread:.1g}"
    return f"{number}\n{cell.note}" if cell.note else number


def _panels(
    cells: Sequence[Cell], keys: list[str], metric: str, more_is_better: bool, best: Cell | None, said: str
) -> Figure:
    """Draw every point over each key, and a line through the best at each value."""
    figure = Figure(figsize=(1.4 + 3.8 * len(keys), 3.8), layout="constrained")
    scale = 100 if metric == "test_accuracy" else 1
    choose = max if more_is_better else min
    lined = False
    for axes, key in zip(figure.subplots(1, len(keys), sharey=True, squeeze=False)[0], keys, strict=True):
        values = sorted({cell.point[key] for cell in cells}, key=_order)
        at, ordered = _places(axes, values), all(map(_is_number, values))
        finals: dict[float, list[float]] = {}
        for cell in cells:
            x = at[str(cell.point[key])]
            if cell.mean is None:
                axes.plot([x], [0.02], "x", color="#555555", transform=axes.get_xaxis_transform())
                continue
            spread = None if cell.spread is None else scale * cell.spread
            look: dict[str, Any] = {"alpha": 0.35 if cell.note else 1.0}
            look |= {"color": BEST, "zorder": 4} if cell is best else {"color": LINE}
            axes.errorbar([x], [scale * cell.mean], spread, fmt="o", markersize=4, capsize=2, linewidth=0.8, **look)
            if not cell.note:
                finals.setdefault(x, []).append(scale * cell.mean)
        # A line between words would say that there is something between them.
        if ordered and (1 < len(finals) < len(cells) or len(keys) == 1):
            lined, order = True, sorted(finals)
            axes.plot(order, [choose(finals[x]) for x in order], color=LINE, linewidth=1.2, alpha=0.8)
        axes.set_xlabel(key)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, linewidth=0.6)
    first = figure.axes[0]
    means = [cell.mean for cell in cells if cell.mean is not None]
    if metric == "test_loss" and means and min(means) > 0 and max(means) / min(means) > 100:
        first.set_yscale("log")
    first.set_ylabel(said)
    notes = {
        "orange: the best point": best is not None,
        "pale: stopped early": any(cell.note and cell.mean is not None for cell in cells),
        "line: the best at each value": lined,
        "crosses: diverged or failed": any(cell.mean is None for cell in cells),
    }
    figure.supxlabel("; ".join(note for note, holds in notes.items() if holds), fontsize=8, color="#555555")
    return figure


def _places(axes: Axes, values: list[Any]) -> dict[str, float]:
    """Return the position of each value: numbers to scale, logarithmic if they span enough; words side by side."""
    if all(map(_is_number, values)):
        if values[0] > 0 and values[-1] / values[0] >= 8:
            axes.set_xscale("log")
            axes.xaxis.set_minor_locator(NullLocator())
            if len(values) <= TICKS:
                axes.set_xticks(values, _labels(values))
        return {str(value): float(value) for value in values}
    names = [str(value) for value in values]
    short = [name.rpartition("/")[2] for name in names]
    _name_across(axes, short if len(set(short)) == len(names) else names)
    return {str(value): float(place) for place, value in enumerate(values)}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _labels(values: list[float]) -> list[str]:
    """Return the labels of a logarithmic axis; a value too near to the one before has a tick only."""
    labels, last = [f"{values[0]:g}"], values[0]
    for value in values[1:]:
        free = math.log(value / last) >= 0.09 * math.log(values[-1] / values[0])
        labels.append(f"{value:g}" if free else "")
        last = value if free else last
    return labels


def _name_across(axes: Axes, names: list[str]) -> None:
    slanted: dict[str, Any] = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(range(len(names)), names, **(slanted if max(map(len, names)) > 8 else {}))


def _order(value: Any) -> tuple[bool, Any]:
    number = isinstance(value, int | float)
    return (not number, value if number else _parts(str(value)))


def _parts(text: str) -> list[str | int]:
    """Return text and numbers in turn, so that [8] comes before [64], and that before [64,64]."""
    parts = re.split(r"([0-9]+)", text.rstrip("]"))
    return [int(part) if place % 2 else part for place, part in enumerate(parts)]
