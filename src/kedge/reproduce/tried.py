"""What every line tried in its search, kept in grid.csv: a row per point and tuning seed."""

import csv
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kedge.files import write_csv
from kedge.reproduce.plan import Case, Hyper
from kedge.reproduce.results import DIGITS, LAST
from kedge.reproduce.search import Search
from kedge.runs.search import ends, merit

GRID = "grid.csv"


class End(NamedTuple):
    """How a run of the search ended."""

    accuracy: float
    loss: float


Tried = Mapping[Case, Mapping[Hyper, Mapping[int, End]]]
"""How every point that a line could choose ended, by tuning seed; without the finer grid."""


def write_tried(path: Path, found: Search) -> None:
    """Write all that a search has tried."""
    rows: list[dict[str, Any]] = []
    for case, own in found.found.items():
        tried = [(standing, finer) for finer, part in enumerate((own.tried, own.finer)) for standing in part]
        tried.sort(key=lambda each: tuple(value or 0 for value in reversed(each[0].point.values())))
        for standing, finer in tried:
            place = {"panel": case.panel, "line": case.line, **standing.point, "finer": finer}
            for seed, run in standing.runs.items():
                rows.append(place | {"seed": seed} | End(*ends(run, LAST))._asdict())
    write_csv(path, rows, digits=DIGITS)


def read_tried(path: Path) -> Tried:
    """Read what `write_tried` has written."""
    found: dict[Case, dict[Hyper, dict[int, End]]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["finer"] == "0":
                beta, step = (float(row[key]) if row[key] else None for key in ("beta", "step"))
                points = found.setdefault(Case(row["panel"], "tuned", row["line"]), {})
                runs = points.setdefault(Hyper(float(row["eta"]), beta, step), {})
                runs[int(row["seed"])] = End(float(row["accuracy"]), float(row["loss"]))
    return found


def elsewhere(points: Mapping[Hyper, Mapping[int, End]], chosen: Hyper, judge: str) -> dict[int, Hyper]:
    """Return, by tuning seed, the point that a line would have chosen without it, if that is not a neighbour."""
    seeds = sorted({seed for runs in points.values() for seed in runs})
    found = {seed: _best(points, judge, seed) for seed in seeds} if len(seeds) > 1 else {}
    return {seed: point for seed, point in found.items() if not point.near(chosen)}


def _best(points: Mapping[Hyper, Mapping[int, End]], judge: str, without: int) -> Hyper:
    def score(point: Hyper) -> tuple[float, float]:
        left = [end for seed, end in points[point].items() if seed != without]
        means = (statistics.fmean(getattr(end, name) for end in left) for name in End._fields)
        return merit(f"test_{judge}", *means)

    return max(points, key=score)
