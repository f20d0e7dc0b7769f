"""What the runs of an experiment came to: a measure per run, kept in small CSV files."""

import csv
import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kedge.files import write_csv
from kedge.reproduce.plan import Case, Hyper
from kedge.runs.reader import Row

LAST = 0.2
"""What counts as the end of a run: the evaluations of its last fifth, whose mean is less noisy than the last one."""

DIGITS = 6
"""Of every number in a table."""

CHANCE = 0.1
"""The accuracy that a diverged run counts with: guessing one of ten labels."""


@dataclass(frozen=True)
class Curve:
    """One run."""

    case: Case
    hyper: Hyper
    seed: int
    history: list[Row]
    diverged: int | None = None


@dataclass(frozen=True)
class Measure:
    """A run in a row of numbers."""

    panel: str
    protocol: str
    line: str
    seed: int
    eta: float
    beta: float | None
    accuracy: float  # mean of the last fifth
    loss: float
    speed: float  # accuracy, mean of all evaluations
    best: float
    at_gradients: float  # accuracy when the cheapest line of the panel has spent all its gradients
    at_bytes: float
    rounds: int
    gradients: float
    megabytes: float
    diverged: int | None

    @property
    def case(self) -> Case:
        """What was run."""
        return Case(self.panel, self.protocol, self.line)


def final(history: list[Row], key: str) -> float:
    """Return the mean of a metric over the last fifth of the evaluations."""
    return statistics.fmean(row[key] for row in history[-max(1, round(LAST * len(history))) :])


def megabytes(row: Row) -> float:
    """Return what was sent until then, down and up, by all."""
    return (row["bytes_down"] + row["bytes_up"]) / 1e6


def measures(curves: Iterable[Curve]) -> list[Measure]:
    """Measure every run; budgets are those of the cheapest line of its panel and protocol."""
    curves = list(curves)
    return [_measure(curve, _budgets(curves, curve.case)) for curve in curves]


def _budgets(curves: list[Curve], case: Case) -> tuple[float, float]:
    ends = [
        curve.history[-1] for curve in curves if curve.case[:2] == case[:2] and curve.diverged is None and curve.history
    ]
    gradients = min((row["gradients"] for row in ends), default=math.inf)
    return gradients, min(map(megabytes, ends), default=math.inf)


def _measure(curve: Curve, budgets: tuple[float, float]) -> Measure:
    history, case, hyper = curve.history, curve.case, curve.hyper
    common: dict[str, Any] = {
        "panel": case.panel, "protocol": case.protocol, "line": case.line, "seed": curve.seed, "eta": hyper.eta,
        "beta": hyper.beta, "diverged": curve.diverged,
    }  # fmt: skip
    if curve.diverged is not None or not history:
        spent = history[-1] if history else {"gradients": 0.0, "bytes_down": 0.0, "bytes_up": 0.0}
        return Measure(
            **common, accuracy=CHANCE, loss=math.inf, speed=CHANCE, best=_best(history), at_gradients=CHANCE,
            at_bytes=CHANCE, rounds=curve.diverged or 0, gradients=spent["gradients"], megabytes=megabytes(spent),
        )  # fmt: skip
    return Measure(
        **common,
        accuracy=final(history, "test_accuracy"),
        loss=final(history, "test_loss"),
        speed=statistics.fmean(row["test_accuracy"] for row in history),
        best=_best(history),
        at_gradients=_within(history, lambda row: row["gradients"], budgets[0]),
        at_bytes=_within(history, megabytes, budgets[1]),
        rounds=int(history[-1]["round"]),
        gradients=history[-1]["gradients"],
        megabytes=megabytes(history[-1]),
    )


def _best(history: list[Row]) -> float:
    return max((row["test_accuracy"] for row in history), default=CHANCE)


def _within(history: list[Row], spent: Callable[[Row], float], budget: float) -> float:
    affordable = [row for row in history if spent(row) <= budget * (1 + 1e-9)]
    return final(affordable, "test_accuracy") if affordable else CHANCE


def write_measures(path: Path, rows: Iterable[Measure]) -> None:
    """Write a row per run."""
    write_csv(path, [asdict(row) for row in rows], digits=DIGITS)


def read_measures(path: Path) -> list[Measure]:
    """Read what `write_measures` has written."""
    with path.open(newline="", encoding="utf-8") as file:
        return [_parsed(row) for row in csv.DictReader(file)]


def _parsed(row: dict[str, str]) -> Measure:
    text, whole, missing = {"panel", "protocol", "line"}, {"seed", "rounds"}, {"beta", "diverged"}
    values: dict[str, Any] = {}
    for name, value in row.items():
        if name in text:
            values[name] = value
        elif name in missing and not value:
            values[name] = None
        else:
            values[name] = int(value) if name in whole | {"diverged"} else float(value)
    return Measure(**values)


def write_curves(path: Path, curves: Iterable[Curve]) -> None:
    """Write a row per evaluation, without the seconds, which are never the same."""
    rows = [
        {
            **curve.case._asdict(), "seed": curve.seed,
            **{key: row[key] for key in ("round", "test_accuracy", "test_loss", "gradients")},
            "megabytes": megabytes(row),
        }
        for curve in curves
        for row in curve.history
    ]  # fmt: skip
    write_csv(path, rows, digits=DIGITS)
