"""What a report page shows, as plain data: curves thinned to what a screen can show, and numbers for the tables.

Only the curves are thinned. The ends, the best values and the first rounds at which a target is reached come from all
rows; of a run that improves very often, `records` leaves out steps that are too small to matter.
"""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from kedge.checks import is_higher_better
from kedge.errors import UsageError
from kedge.report.comparison import LARGEST
from kedge.report.lines import Line, differing, kinds_of, metric_words, repeat_command, seed_of, state_of, unique
from kedge.report.palette import DARK, DARK_RAMP, STYLES, look, shade
from kedge.runs.division import division_of
from kedge.runs.reader import Row, StoredRun

AXES = ("round", "bytes", "gradients", "seconds")
COUNTERS = frozenset({"round", "bytes_down", "bytes_up", "gradients", "seconds"})
"""Columns that are no metrics."""

USUAL = ("test_accuracy", "test_loss")
"""The metrics that come first."""

GOALS = 6
"""The most metrics that may have a target: the usual ones, and others on the test set."""

NUMBERS = 1_200_000
"""About how many numbers the curves of a page may have."""

FEWEST, MOST = 24, 600
"""Points of a curve: as many as fit, but within these bounds."""

METRICS = 60
"""The most metrics of a page."""

RECORDS = 240
"""The most first times per run and metric that are kept exactly."""

PICTURES = 6
"""The most pictures of divisions."""

DIGITS = 6
DASHES = {"-": [], "--": [9, 5], ":": [2, 4], "-.": [9, 4, 2, 4]}
LONGEST = 200
"""The most characters of a name or a sentence."""

MIXED = (
    "Some lines were evaluated on held-out training samples, others on the test set; each kind is ranked on its own."
)


def contents(lines: Sequence[Line], title: str, command: str) -> dict[str, Any]:
    """Return everything that the page shows."""
    runs = [run for line in lines for run in line.runs]
    metrics, notes = _metrics(runs)
    points = max(FEWEST, min(MOST, NUMBERS // max(1, len(runs) * (len(metrics) + len(AXES)))))
    kept = {id(run): rounds for line in lines for run, rounds in _kept(line.runs, points)}
    thinned = sum(len(run.rows) > len(kept[id(run)]) for run in runs)
    if thinned:
        notes.append(f"The curves of {thinned} runs show at most {points} points each; the tables use every row.")
    if len(kinds_of(lines)) == 2:
        notes.append(MIXED)
    goals = {name: is_higher_better(name) for name in [name for name in metrics if name.startswith("test_")][:GOALS]}
    settings = [line.settings for line in lines if line.settings]
    apart = differing(settings)
    common = {key: value for key, value in (settings[0] if settings else {}).items() if key not in apart}
    environments = list(dict.fromkeys(_environment(run) for run in runs if run.summary))
    place = iter(range(len(runs)))
    return {
        "version": version("kedge"), "title": title[:LONGEST], "command": command, "axes": AXES, "metrics": metrics,
        "words": {name: metric_words(name, kinds_of(lines)) for name in metrics},
        "lines": [
            _line(name, line, own_look) | {
                "runs": [next(place) for _ in line.runs],
                "settings": {key: line.settings[key] for key in apart if key in line.settings},
            } for name, line, own_look in zip(unique([line.name for line in lines]), lines, looks(lines), strict=True)
        ],
        "runs": [_run(run, kept[id(run)], metrics, goals, environments) for run in runs],
        "higher": goals, "targets": _targets(lines, goals), "apart": apart, "common": common,
        "environments": [dict(pairs) for pairs in environments], "partitions": _pictures(lines, notes), "notes": notes,
    }  # fmt: skip


def looks(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return the look of every line: its algorithm's colour, another dash for each of its lines, and a shade."""
    algorithms = list(dict.fromkeys(line.algorithm for line in lines))
    seen: dict[str, int] = dict.fromkeys(algorithms, 0)
    found = []
    for place, line in enumerate(lines):
        own = look(line.algorithm, algorithms.index(line.algorithm))
        style = STYLES[(STYLES.index(own["linestyle"]) + seen[line.algorithm]) % len(STYLES)]
        seen[line.algorithm] += 1
        colour = own["color"]
        found.append({
            "color": colour, "dark": DARK.get(colour, colour), "dash": DASHES[style], "marker": own["marker"],
            "shade": shade(place, len(lines)), "shade_dark": shade(place, len(lines), DARK_RAMP),
        })  # fmt: skip
    return found


def _pictures(lines: Sequence[Line], notes: list[str]) -> list[dict[str, Any]]:
    """Return who has which labels, once for every division of the data, as far as the configurations tell."""
    found: dict[str, dict[str, Any]] = {}
    for line in lines:
        data = {key: value for key, value in line.settings.items() if key.startswith("data.")}
        key = repr(sorted(data.items()))
        if not data or key in found or len(found) == PICTURES:
            continue
        try:
            division = division_of(line.runs[0].config)
        except UsageError as error:
            notes.append(f"Who has which labels is not known: {error}"[: 2 * LONGEST])
            found[key] = {}
            continue
        found[key] = {} if division is None else division._asdict()
    return [picture for picture in found.values() if picture]


def _metrics(runs: Sequence[StoredRun]) -> tuple[list[str], list[str]]:
    """Return the metrics that any run has, the usual ones first, and what to say about those left out."""
    columns = {name for run in runs for row in (run.rows[:1] + run.rows[-1:]) for name in row} - COUNTERS
    found = sorted(columns, key=lambda name: (name not in USUAL, name))
    notes = [f"Only the first {METRICS} of {len(found)} metrics are shown."] if len(found) > METRICS else []
    return found[:METRICS], notes


def _kept(runs: Sequence[StoredRun], points: int) -> list[tuple[StoredRun, list[Row]]]:
    """Return the rows to show, the same rounds for all runs of a line, so that their mean exists."""
    rounds = sorted({row["round"] for run in runs for row in run.rows})
    if len(rounds) <= points:
        return [(run, run.rows) for run in runs]
    chosen = {rounds[round(place * (len(rounds) - 1) / (points - 1))] for place in range(points)}
    return [(run, [row for row in run.rows if row["round"] in chosen]) for run in runs]


def _line(name: str, line: Line, own_look: dict[str, Any]) -> dict[str, Any]:
    healthy = [run for run in line.runs if run.diverged is None and run.error is None and run.rows]
    ends = [run.rows[-1] for run in healthy]
    return {
        "name": name, "algorithm": line.algorithm, "held_out": line.held_out, "look": own_look, "healthy": len(healthy),
        "diverged": sum(run.diverged is not None for run in line.runs),
        "accuracy": _mean(_finite(end.get("test_accuracy") for end in ends)),
        "spread": _spread(_finite(end.get("test_accuracy") for end in ends)),
        "best": _mean(_finite(_best(run) for run in healthy)),
        "loss": _mean(_finite(end.get("test_loss") for end in ends)),
        **{axis: _mean(_finite(_axis(end, axis) for end in ends)) for axis in AXES},
    }  # fmt: skip


def _run(
    run: StoredRun, rows: Sequence[Row], metrics: Sequence[str], goals: Mapping[str, bool],
    environments: Sequence[tuple[tuple[str, str], ...]],
) -> dict[str, Any]:  # fmt: skip
    problems = [problem[:LONGEST] for problem in run.problems[:20]]
    odd = {name: count for name in metrics if (count := sum(_is_odd(row.get(name)) for row in run.rows))}
    problems += [f"{count} values of {name[:60]} are left out: not finite, or too large" for name, count in odd.items()]
    columns = {axis: [_number(_axis(row, axis)) for row in rows] for axis in AXES}
    columns |= {name: [_number(row.get(name)) for row in rows] for name in metrics
                if any(name in row for row in rows)}  # fmt: skip
    return {
        "path": os.fspath(run.path), "seed": seed_of(run), "state": state_of(run)[:LONGEST],
        "healthy": run.diverged is None and run.error is None and bool(run.rows),
        "problems": problems, "columns": columns, "rows": len(run.rows),
        "records": {name: records(run.rows, name, higher=higher) for name, higher in goals.items()},
        "command": repeat_command(run), "engine": str((run.summary or {}).get("engine", "")),
        "environment": environments.index(_environment(run)) if run.summary else None,
    }  # fmt: skip


def records(rows: Sequence[Row], metric: str, *, higher: bool) -> list[list[float | None]]:
    """Return rounds, bytes and values of the rows that are better than all before: they say when a target is reached.

    If there are many, steps too small to matter are left out.
    """
    better: list[Row] = []
    for row in rows:
        value = row.get(metric)
        if value is None or _is_odd(value):
            continue
        if not better or (value > better[-1][metric] if higher else value < better[-1][metric]):
            better.append(row)
    if len(better) > RECORDS:
        least = abs(better[-1][metric] - better[0][metric]) / RECORDS
        coarse = better[:1]
        for row in better[1:]:
            if abs(row[metric] - coarse[-1][metric]) >= least:
                coarse.append(row)
        better = coarse if coarse[-1] is better[-1] else [*coarse, better[-1]]
    return [[_number(row["round"]) for row in better], [_number(_axis(row, "bytes")) for row in better],
            [_number(row[metric]) for row in better]]  # fmt: skip


def _targets(lines: Sequence[Line], goals: Mapping[str, bool]) -> dict[str, float]:
    """Return a target that the good lines reach: 95 % of the best accuracy, or a loss 5 % above the lowest."""
    found = {}
    for metric, higher in goals.items():
        means = []
        for line in lines:
            ends = _finite(run.rows[-1].get(metric) for run in line.runs if run.last is not None)
            means += [mean] if (mean := _mean(ends)) is not None else []
        if means:
            best = max(means) if higher else min(means)
            found[metric] = round(0.95 * best, 2) if higher else float(f"{1.05 * best:.2g}")
    return found


def _environment(run: StoredRun) -> tuple[tuple[str, str], ...]:
    versions = (run.summary or {}).get("versions", {})
    return tuple((str(name)[:LONGEST], str(value)[:LONGEST]) for name, value in list(versions.items())[:METRICS])


def _axis(row: Row, axis: str) -> float:
    return row["bytes_down"] + row["bytes_up"] if axis == "bytes" else row[axis]


def _best(run: StoredRun) -> float | None:
    return max(_finite(row.get("test_accuracy") for row in run.rows), default=None)


def _finite(values: Iterable[float | None]) -> list[float]:
    return [float(value) for value in values if value is not None and not _is_odd(value)]


def _is_odd(value: float | None) -> bool:
    return value is not None and not abs(value) <= LARGEST  # also true of what is not a number


def _mean(values: Sequence[float]) -> float | None:
    return _number(sum(values) / len(values)) if values else None


def _spread(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    mean = sum(values) / len(values)
    return _number(math.sqrt(sum((value - mean) * (value - mean) for value in values) / (len(values) - 1)))


def _number(value: float | None) -> float | None:
    """Return a number with the digits that a picture or a table can show; None if it is not finite or beyond bounds."""
    if value is None or _is_odd(value):
        return None
    if abs(value) < 1 / LARGEST:
        return 0
    if value == int(value) and abs(value) < 2**53:
        return int(value)
    return float(f"{value:.{DIGITS}g}")
