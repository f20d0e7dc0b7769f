"""`kedge theory`: the paper's rates for given constants."""

import math
from pathlib import Path

from rich.table import Table

from kedge.cli.console import output
from kedge.theory import Constants
from kedge.theory import rates as ranking


def rates(constants: Constants, rounds: int, target: float | None, out: Path | None) -> None:
    """Print the ranked rows, and draw them."""
    rows = ranking(constants, rounds, target)
    table = Table(box=None, pad_edge=False)
    for name in ("algorithm", "source", "rounds to target", f"bound after {rounds}", "largest term", "assumes also"):
        table.add_column(name, justify="right" if name.startswith(("rounds", "bound")) else "left")
    for row in rows:
        known = not math.isinf(row.rounds)
        needed, bound = (f"{row.rounds:,.0f}", f"{row.bound:.3g}") if known else ("-", "-")
        table.add_row(
            row.rate.algorithm, row.rate.source, needed, bound, row.dominant or "no guarantee",
            ", ".join(["full participation"] * (row.rate.table == 1) + list(row.rate.assumptions)) or "nothing",
        )  # fmt: skip
    output.print(table)
    output.print("All numerical factors are 1: compare the rows, do not read them as predictions.", soft_wrap=True)
    if out is not None:
        from kedge.report.theory import draw_rates  # matplotlib is slow to load

        written = draw_rates(rows, constants, rounds, out)
        output.print(f"Drawn: {', '.join(map(str, written))}", soft_wrap=True)
