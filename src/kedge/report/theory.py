"""Figures of the theory."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from kedge.report.figures import files_of, save_figure, tidy
from kedge.report.palette import look
from kedge.theory import Constants
from kedge.theory.tables import Ranked


def draw_rates(rows: Sequence[Ranked], constants: Constants, rounds: int, path: Path) -> list[Path]:
    """Draw the bounds of all rows that hold against the rounds, on two logarithmic axes."""
    figure = Figure(figsize=(8.5, 4.6), layout="constrained")
    axes = figure.subplots()
    at = np.geomspace(1, 10 * rounds, 60)
    for place, row in enumerate(row for row in rows if not math.isinf(row.rounds)):
        values = [row.rate.at(constants, float(r)) for r in at]
        label = f"{row.rate.algorithm} ({row.rate.source})"
        axes.loglog(at, values, label=label, markersize=4, markevery=(place, 12), **look(row.rate.algorithm, place))
    axes.set_xlabel("rounds")
    axes.set_ylabel("bound on E|∇f|², numerical factors 1")
    axes.set_title(
        f"N = {constants.N}, S = {constants.S}, K = {constants.K}, σ = {constants.sigma:g}, ζ = {constants.zeta:g}"
    )
    tidy(axes)
    figure.legend(loc="outside right center", frameon=False, fontsize=8)
    written = files_of(path)
    for file in written:
        save_figure(figure, file, dpi=130)
    return written
