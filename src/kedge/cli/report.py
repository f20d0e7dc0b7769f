"""`kedge report`: a page about runs."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from kedge.cli.console import output, size
from kedge.report.lines import Line, lines_of, runs_of
from kedge.report.page import check_target, write_report
from kedge.runs.directory import check_place


def report(places: Sequence[Path], out: Path, title: str | None) -> None:
    """Write the page."""
    check_place(out.parent)
    check_target(out)
    lines = lines_of(runs_of(places))
    runs = [run for line in lines for run in line.runs]
    command = shlex.join(["kedge", "report", *map(str, places), "--out", str(out)])
    written = write_report(lines, out, title or title_of(lines), command)
    problems = sum(bool(run.problems) for run in runs)
    said = f"Written to {out}: {_count(len(lines), 'line')} from {_count(len(runs), 'run')}, {size(written)}"
    odd = f"; the page says what is wrong with {_count(problems, 'run')}" if problems else ""
    output.print(said + odd, soft_wrap=True)


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"


def title_of(lines: Sequence[Line]) -> str:
    """Say what the runs are about: their data and their algorithms."""
    data = sorted({line.settings["data.dataset"] for line in lines if "data.dataset" in line.settings})
    algorithms = list(dict.fromkeys(line.algorithm for line in lines if line.algorithm))
    names = ", ".join(algorithms) if len(algorithms) <= 4 else f"{len(algorithms)} algorithms"
    return f"{', '.join(data[:3])}: {names}" if data and names else names or ", ".join(data[:3]) or "Runs"
