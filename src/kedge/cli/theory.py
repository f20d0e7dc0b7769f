"""`kedge theory`: the paper's rates for given constants, and the rate laboratory."""

import math
import time
from pathlib import Path

import torch
import typer
from rich.table import Table

from kedge.cli.console import errors, output
from kedge.cli.run import RUNS
from kedge.errors import UsageError
from kedge.files import claimed, make_new_directory
from kedge.theory import Constants
from kedge.theory import rates as ranking
from kedge.theory.laboratory import check_names
from kedge.theory.laboratory import verify as experiments


def rates(constants: Constants, rounds: int, target: float | None, out: Path | None) -> None:
    """Print the ranked rows, and draw them."""
    rows = ranking(constants, rounds, target)
    table = Table(box=None, pad_edge=False)
    for name in ("algorithm", "source", "rounds to target", f"bound after {rounds}", "largest term", "assumes also"):
        wide = 13 if name == "algorithm" else None  # the longest id
        table.add_column(name, justify="right" if name.startswith(("rounds", "bound")) else "left", min_width=wide)
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


def verify(names: list[str] | None, out: Path | None, *, quick: bool) -> None:
    """Run the experiments of the laboratory, print what they find, and write the report."""
    from kedge.report.laboratory import outcome, write_report  # matplotlib is slow to load

    check_names(names)
    path = out or make_new_directory(RUNS, "theory")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the vectors are tiny
    findings, began = [], time.perf_counter()
    try:
        with claimed(path, lambda: _check_empty(path), new=out is None):
            for finding in experiments(names, quick=quick, before=lambda name: errors.print(f"{name} ...")):
                findings.append(finding)
                output.print(f"{finding.name}: {outcome(finding).strip('*')} ({finding.claim})", soft_wrap=True)
                for sentence in finding.sentences:
                    output.print(f"  {sentence}", soft_wrap=True)
            command = "kedge theory verify" + " --quick" * quick + "".join(f" --only {name}" for name in names or [])
            write_report(findings, path, command)
    finally:
        torch.set_num_threads(threads)
    output.print(
        f"{time.perf_counter() - began:.0f} s. Written to {path}: report.md, and a figure each.", soft_wrap=True
    )
    if not all(finding.holds for finding in findings):
        raise typer.Exit(1)


def _check_empty(path: Path) -> None:
    if any(path.iterdir()):
        raise UsageError(f"out is {path}, but that directory is not empty; nothing was overwritten")
