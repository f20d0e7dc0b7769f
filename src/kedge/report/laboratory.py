"""The report of the rate laboratory: a page of findings, each with its figure."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from kedge.files import write_atomically
from kedge.report.figures import save_figure, tidy
from kedge.report.palette import COLOURS, MARKERS
from kedge.theory.laboratory import Finding, Panel

COLUMNS = 3

NAMES = frozenset({"problem"})
"""What the numbers of an axis are if they only name something: there is nothing between them."""


def write_report(findings: Sequence[Finding], path: Path, command: str) -> list[Path]:
    """Write `report.md` and a figure per finding."""
    written = []
    for finding in findings:
        file = path / f"{finding.name}.png"
        save_figure(drawn(finding), file, dpi=100)
        written.append(file)
    page = path / "report.md"
    write_atomically(page, markdown(findings, command).encode())
    return [page, *written]


def markdown(findings: Sequence[Finding], command: str, images: str = "") -> str:
    """Write the findings as text."""
    lines = ["# What the theory says, and what was measured", "", f"Made by `{command}`.", "", table(findings)]
    for finding in findings:
        lines += [section(finding, images)]
    return "\n".join(lines)


def table(findings: Sequence[Finding]) -> str:
    """Return one row per finding."""
    rows = [f"| {each.claim} | {outcome(each)} |" for each in findings]
    return "\n".join(["| claim | outcome |", "|---|---|", *rows, ""])


def outcome(finding: Finding) -> str:
    """Say how it came out."""
    if not finding.holds:
        return "**the check failed**"
    return "as stated" if finding.as_stated else "**not as stated**"


def section(finding: Finding, images: str = "") -> str:
    """Return a finding with its figure."""
    said = " ".join(finding.sentences)
    return f"**{finding.claim}** ({outcome(finding)}) {said}\n\n![{finding.name}]({images}{finding.name}.png)\n"


def drawn(finding: Finding) -> Figure:
    """Draw a finding."""
    count = len(finding.panels)
    columns = min(count, COLUMNS)
    rows = -(-count // columns)
    figure = Figure(figsize=(4.6 * columns + 0.4, 3.5 * rows), layout="constrained")
    grid = np.atleast_1d(figure.subplots(rows, columns, squeeze=False)).ravel()
    for axes in grid[count:]:
        axes.set_visible(False)
    for axes, panel in zip(grid, finding.panels, strict=False):
        if panel.map:
            _map(figure, axes, panel)
        else:
            _lines(axes, panel)
        axes.set_title(panel.title, fontsize=9)
        axes.set_xlabel(panel.x)
        axes.set_ylabel(panel.y)
    return figure


def _lines(axes: Axes, panel: Panel) -> None:
    named = panel.x in NAMES
    for place, line in enumerate(panel.series):
        axes.plot(
            line.x, [value if math.isfinite(value) else math.nan for value in line.y], label=line.label,
            color=COLOURS[place % len(COLOURS)], linestyle="none" if named else "--" if line.dashed else "-",
            marker=None if line.dashed and not named else MARKERS[place % len(MARKERS)], markersize=4,
        )  # fmt: skip
    axes.set_xscale("linear" if named else "log")
    axes.set_yscale("log")
    points = panel.series[0].x
    axes.set_xticks(points, [f"{point:g}" for point in points])
    axes.xaxis.set_minor_locator(NullLocator())
    if named:
        axes.set_xlim(min(points) - 0.5, max(points) + 0.5)
    axes.legend(frameon=False, fontsize=7)
    tidy(axes)


def _map(figure: Figure, axes: Axes, panel: Panel) -> None:
    values = np.array(panel.map)
    limit = max(0.5, float(np.abs(values[np.isfinite(values)]).max(initial=0.0)))
    image = axes.imshow(values, origin="lower", cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto")
    axes.set_xticks(range(len(panel.columns)), [f"{value:g}" for value in panel.columns])
    axes.set_yticks(range(len(panel.rows)), [f"{value:g}" for value in panel.rows])
    for (row, column), value in np.ndenumerate(values):
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8)
    figure.colorbar(image, ax=axes, shrink=0.8)
