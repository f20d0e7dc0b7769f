"""Runs as tables for other programs: every row as CSV or Parquet, and the results as LaTeX."""

import csv
import io
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

from kedge.errors import UsageError
from kedge.report.comparison import Summary, default_target, summarise
from kedge.report.lines import NAME, Line, differing, kinds_of, seed_of

FORMATS = ("csv", "parquet", "latex")


def check_format(kind: str) -> None:
    """Refuse a format that does not exist."""
    if kind not in FORMATS:
        raise UsageError(f"format is {kind!r}, but must be one of {', '.join(FORMATS)}")


def exported(lines: Sequence[Line], kind: str, target: float | None = None) -> bytes:
    """Return the content of a file of this kind."""
    check_format(kind)
    if kind == "latex":
        return latex(lines, target).encode()
    return csv_table(lines) if kind == "csv" else parquet(lines)


def rows(lines: Sequence[Line]) -> Iterator[dict[str, Any]]:
    """Return a row per evaluated round: its line, run and seed, the settings that differ, and all its columns."""
    apart = _apart(lines)
    for line in lines:
        own = {key: line.settings.get(key) for key in apart}
        for run in line.runs:
            place = {"line": line.name, "algorithm": line.algorithm, "seed": seed_of(run), "run": os.fspath(run.path)}
            for row in run.rows:
                yield place | own | row | place  # whatever a metric is called


def _apart(lines: Sequence[Line]) -> list[str]:
    return [key for key in differing([line.settings for line in lines if line.settings]) if key != NAME]


def csv_table(lines: Sequence[Line]) -> bytes:
    """Return all rows as CSV."""
    every = list(rows(lines))
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, _columns(every), lineterminator="\n")
    writer.writeheader()
    writer.writerows(every)
    return file.getvalue().encode("utf-8", "surrogateescape")


def parquet(lines: Sequence[Line]) -> bytes:
    """Return all rows as Parquet: names as text, a setting as numbers if all its values are, the rest as numbers."""
    try:
        import pyarrow
        from pyarrow.parquet import write_table
    except ImportError:
        raise UsageError("format is parquet, but that needs pyarrow: pip install 'kedge[parquet]'") from None
    every = list(rows(lines))
    texts = {"line", "algorithm", "run"} | {
        key for key in _apart(lines) if not all(_is_number(line.settings.get(key, "0")) for line in lines)
    }
    columns = {}
    for name in _columns(every):
        values = [row.get(name) for row in every]
        if name in texts:
            columns[name] = pyarrow.array([_text(value) for value in values], pyarrow.string())
        elif name in ("round", "seed"):
            columns[name] = pyarrow.array(values, pyarrow.int64())
        else:
            columns[name] = pyarrow.array([None if v is None else float(v) for v in values], pyarrow.float64())
    file = io.BytesIO()
    write_table(pyarrow.table(columns), file)
    return file.getvalue()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _columns(every: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in every for name in row))


def _text(value: str | None) -> str | None:
    return None if value is None else value.encode("utf-8", "replace").decode()


def latex(lines: Sequence[Line], target: float | None = None) -> str:
    """Return the results as a table for the LaTeX package booktabs, the best values in bold.

    Runs on held-out samples and runs on the test set are in two parts of the table, each with its own best values.
    """
    kinds = kinds_of(lines)
    lines = sorted(lines, key=lambda line: not line.held_out)
    groups = {line.name: line.runs for line in lines}
    target = default_target(groups) if target is None else target
    results = summarise(groups, target)
    goal = "target" if target is None else f"{100 * target:g}\\,\\%"
    said = ["Held-out accuracy", "held-out loss"] if kinds == (True,) else ["Accuracy", "Loss"]
    heads = ["Algorithm", f"{said[0]} (\\%)", "Best (\\%)", said[1].capitalize(), f"Rounds to {goal}", f"MB to {goal}"]
    cells = []
    for kind in kinds:
        alike = [own for line, own in zip(lines, results, strict=True) if line.held_out == kind]
        cells += [_cells(alike, own.algorithm, place) for place, own in enumerate(alike)]
    keep = [place for place in range(len(heads)) if place == 0 or any(row[place] != "--" for row in cells)]
    rows = ["  " + " & ".join(row[place] for place in keep) + " \\\\\n" for row in cells]
    if len(kinds) == 2:
        rows.insert(sum(line.held_out for line in lines), "  \\midrule\n")
    body = "".join(rows)
    about = "% the first rows: on held-out training samples; the others: on the test set\n" * (len(kinds) == 2)
    return (
        f"% \\usepackage{{booktabs}}\n{about}"
        f"\\begin{{tabular}}{{l{'r' * (len(keep) - 1)}}}\n  \\toprule\n"
        f"  {' & '.join(heads[place] for place in keep)} \\\\\n  \\midrule\n{body}  \\bottomrule\n\\end{{tabular}}\n"
    )


def _cells(results: Sequence[Summary], name: str, place: int) -> list[str]:
    own = results[place]
    spread = own.final_accuracy_std
    shown = [
        _best(results, place, "final_accuracy", lambda v: f"{100 * v:.1f}", higher=True)
        + ("" if spread is None or own.final_accuracy is None else f" $\\pm$ {100 * spread:.1f}"),
        _best(results, place, "best_accuracy", lambda v: f"{100 * v:.1f}", higher=True),
        _best(results, place, "final_loss", lambda v: f"{v:.3g}", higher=False),
        _best(results, place, "rounds_to_target", lambda v: f"{v:.0f}", higher=False),
        _best(results, place, "megabytes_to_target", lambda v: f"{v:.3g}", higher=False),
    ]
    name = escaped(name) + (f" ({own.diverged} of {own.seeds} diverged)" if own.diverged else "")
    return [name, *shown]


def _best(results: Sequence[Summary], place: int, field: str, show: Any, *, higher: bool) -> str:
    """Return a value as text, in bold if no other is better."""
    value = getattr(results[place], field)
    if value is None or not math.isfinite(value):
        return "--"
    known = [found for each in results if (found := getattr(each, field)) is not None and math.isfinite(found)]
    best = max(known) if higher else min(known)
    return f"\\textbf{{{show(value)}}}" if value == best and len(known) > 1 else str(show(value))


def escaped(text: str) -> str:
    """Return a text that LaTeX prints as it is."""
    special = {letter: f"\\{letter}" for letter in "&%$#_{}"} | {
        "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "\\": "\\textbackslash{}", "<": "\\textless{}",
        ">": "\\textgreater{}",
    }  # fmt: skip
    return "".join(special.get(letter, letter) for letter in text if letter.isprintable())
