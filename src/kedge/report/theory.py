"""Figures of the theory."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from kedge.report.figures import DASHES, files_of, save_figure, tidy
from kedge.report.palette import STYLES, look
from kedge.theory import Constants
from kedge.theory.tables import Ranked


def draw_rates(rows: Sequence[Ranked], constants: Constants, rounds: int, path: Path) -> list[Path]:
    """Draw the bounds of all rows that hold against the rounds, on two logarithmic axes."""
    figure = Figure(figsize=(8.5, 4.6), layout="constrained")
    axes = figure.subplots()
    at = np.geomspace(1, 10 * rounds, 60)
    shown = [row for row in rows if not math.isinf(row.rounds)]
    named = Counter((row.rate.algorithm, row.rate.source) for row in shown)
    seen: Counter[str] = Counter()
    for place, row in enumerate(shown):
        values = [row.rate.at(constants, float(r)) for r in at]
        name, source = row.rate.algorithm, row.rate.source
        table = f", table {row.rate.table}" if named[name, source] > 1 else ""
        own = look(name, place)
        if seen[name]:  # several rows about one algorithm: another dash, and open markers
            style = STYLES[(STYLES.index(own["linestyle"]) + seen[name]) % len(STYLES)]
            own |= {"linestyle": style, "fillstyle": "none"}
        seen[name] += 1
        axes.loglog(at, values, label=f"{name} ({source}{table})", markersize=4, markevery=(place, 12), **own)
    axes.set_xlabel("rounds")
    axes.set_ylabel("bound on E|∇f|², numerical factors 1")
    axes.set_title(
        f"N = {constants.N}, S = {constants.S}, K = {constants.K}, σ = {constants.sigma:g}, ζ = {constants.zeta:g}"
    )
    tidy(axes)
    figure.legend(loc="outside right center", frameon=False, fontsize=8, handlelength=DASHES)
    written = files_of(path)
    for file in written:
        save_figure(figure, file, dpi=130)
    return written
