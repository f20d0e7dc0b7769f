"""The results of an experiment's runs: one row of measures per run, kept in small CSV files."""

import csv
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kedge.files import write_csv
from kedge.reproduce.plan import Case, FinalRun, Hyper
from kedge.runs.reader import MODEL_HASH, Row, StoredRun
from kedge.runs.search import end

LAST = 0.2
"""What counts as the end of a run: the evaluations of its last fifth, whose mean is less noisy than the last one."""

DIGITS = 6
"""Digits of every number in a table."""

Chances = Mapping[str, float]
"""The accuracy of guessing in every panel: what a diverged run counts as, and where every run starts."""

TARGET_STEP = 0.005
SERIOUS = 0.75


Runs = Mapping[FinalRun, StoredRun]
"""The final runs of an experiment."""


@dataclass(frozen=True)
class Measure:
    """A run in a row of numbers."""

    panel: str
    protocol: str
    line: str
    seed: int
    eta: float
    beta: float | None
    step: float | None  # γ / ηK, if it was chosen
    accuracy: float  # mean of the last fifth
    loss: float
    area: float  # the area under the accuracy curve over the rounds, as a mean
    best: float
    target: float  # an accuracy, the same for all lines of a panel
    rounds_to: float  # to the target; infinite if it was not reached
    gradients_to: float
    megabytes_to: float
    at_gradients: float  # accuracy by the time the cheapest line of the panel has spent all its gradients
    at_bytes: float
    step_norm: float | None  # |x^{r+1} - x^r|, mean of all evaluated rounds
    rounds: int  # of a run that diverged: those that it was to play
    gradients: float
    megabytes: float
    model: str
    diverged: int | None

    @property
    def case(self) -> Case:
        """What was run."""
        return Case(self.panel, self.protocol, self.line)


def final(history: list[Row], key: str) -> float:
    """Return the mean of a metric over the last fifth of the evaluations."""
    return end(history, key, LAST)


def megabytes(row: Row) -> float:
    """Return the bytes sent so far, down and up, by all clients."""
    return (row["bytes_down"] + row["bytes_up"]) / 1e6


def measures(runs: Runs, chances: Chances) -> list[Measure]:
    """Measure every run; targets and budgets are those of its panel."""
    goals = {trial.case[:2]: _goals(runs, trial.case, chances[trial.case.panel]) for trial in runs}
    return [_measure(trial, run, goals[trial.case[:2]]) for trial, run in runs.items()]


class _Goals(NamedTuple):
    chance: float
    target: float
    rounds: int
    gradients: float
    megabytes: float


def _goals(runs: Runs, case: Case, chance: float) -> _Goals:
    """Return the target and budgets of a panel's runs.

    The target is where the weakest of its tuned lines ends, rounded down to half a percent, so that all can reach it;
    lines below three quarters of the best do not count. Budgets are what the cheapest line of the protocol spends.
    """
    sound: dict[Case, list[list[Row]]] = {trial.case: [] for trial in runs if trial.case.panel == case.panel}
    for trial, run in runs.items():
        if trial.case in sound and run.last is not None:
            sound[trial.case].append(run.rows)
    ends: dict[str, list[float]] = {}
    tuned = {own: rows for own, rows in sound.items() if own.protocol == "tuned"}
    for own, histories in (tuned if any(tuned.values()) else sound).items():
        ends.setdefault(own.line, []).extend(final(rows, "test_accuracy") for rows in histories)
    means = [statistics.fmean(values) for values in ends.values() if values]
    weakest = min((mean for mean in means if mean >= SERIOUS * max(means)), default=1.0)
    spent = [rows[-1] for own, histories in sound.items() if own.protocol == case.protocol for rows in histories]
    return _Goals(
        chance,
        math.floor(round(weakest / TARGET_STEP, 6)) * TARGET_STEP,
        int(max((row["round"] for row in spent), default=1)),
        min((row["gradients"] for row in spent), default=math.inf),
        min(map(megabytes, spent), default=math.inf),
    )


def _measure(trial: FinalRun, run: StoredRun, goals: _Goals) -> Measure:
    history, chance = run.rows, goals.chance
    common: dict[str, Any] = {
        **trial.case._asdict(), **trial.hyper._asdict(), "seed": trial.seed, "diverged": run.diverged,
        "model": str((run.summary or {}).get(MODEL_HASH, ""))[:16], "target": goals.target,
    }  # fmt: skip
    if run.last is None:
        spent = history[-1] if history else {"gradients": 0.0, "bytes_down": 0.0, "bytes_up": 0.0}
        never: dict[str, Any] = dict.fromkeys(("rounds_to", "gradients_to", "megabytes_to"), math.inf)
        return Measure(
            **common, **never, accuracy=chance, loss=math.inf, area=chance, best=_best(history, chance),
            at_gradients=chance, at_bytes=chance, step_norm=None, rounds=max(goals.rounds, run.diverged or 0),
            gradients=spent["gradients"], megabytes=megabytes(spent),
        )  # fmt: skip
    rounds, gradients, bytes_ = (
        [0.0, *map(spent, history)] for spent in (lambda row: row["round"], lambda row: row["gradients"], megabytes)
    )
    accuracy = [chance, *(row["test_accuracy"] for row in history)]  # it starts from guessing, at zero cost
    share = _reached(accuracy, goals.target)
    norms = [row["step_norm"] for row in history if "step_norm" in row]
    return Measure(
        **common,
        accuracy=final(history, "test_accuracy"),
        loss=final(history, "test_loss"),
        area=float(np.diff(rounds) @ (np.array(accuracy[1:]) + accuracy[:-1]) / 2 / rounds[-1]),
        best=_best(history, chance),
        rounds_to=_at(rounds, share),
        gradients_to=_at(gradients, share),
        megabytes_to=_at(bytes_, share),
        at_gradients=_within(gradients, accuracy, goals.gradients),
        at_bytes=_within(bytes_, accuracy, goals.megabytes),
        step_norm=statistics.fmean(norms) if norms else None,
        rounds=int(history[-1]["round"]),
        gradients=history[-1]["gradients"],
        megabytes=megabytes(history[-1]),
    )


def _best(history: list[Row], chance: float) -> float:
    return max((row["test_accuracy"] for row in history), default=chance)


def _reached(accuracy: list[float], target: float) -> float:
    """Return where, in evaluations, a curve first reaches the target, interpolated linearly between two of them."""
    for place, (before, after) in enumerate(itertools.pairwise(accuracy)):
        if after >= target:
            return place + max(0.0, (target - before) / (after - before)) if after > before else float(place)
    return math.inf


def _at(spent: list[float], place: float) -> float:
    return math.inf if math.isinf(place) else float(np.interp(place, range(len(spent)), spent))


def _within(spent: list[float], accuracy: list[float], budget: float) -> float:
    """Return the mean accuracy over the last fifth of a budget, interpolated linearly between evaluations."""
    last = min(budget, spent[-1])
    return float(np.mean(np.interp(np.linspace((1 - LAST) * last, last, 21), spent, accuracy)))


def write_measures(path: Path, rows: Iterable[Measure]) -> None:
    """Write a row per run."""
    write_csv(path, [asdict(row) for row in rows], digits=DIGITS)


def read_measures(path: Path) -> list[Measure]:
    """Read what `write_measures` has written."""
    with path.open(newline="", encoding="utf-8") as file:
        return [_parsed(row) for row in csv.DictReader(file)]


def _parsed(row: dict[str, str]) -> Measure:
    text, whole = {"panel", "protocol", "line", "model"}, {"seed", "rounds"}
    missing = {"beta", "step", "step_norm", "diverged"}
    values: dict[str, Any] = {}
    for name, value in row.items():
        if name in text:
            values[name] = value
        elif name in missing and not value:
            values[name] = None
        else:
            values[name] = int(value) if name in whole | {"diverged"} else float(value)
    return Measure(**values)


def write_curves(path: Path, runs: Runs) -> None:
    """Write one row per evaluation, without the seconds, which vary."""
    rows = [
        {
            **trial.case._asdict(), "seed": trial.seed,
            **{key: row[key] for key in ("round", "test_accuracy", "test_loss", "gradients")},
            "megabytes": megabytes(row), "step_norm": row.get("step_norm"),
        }
        for trial, run in runs.items()
        for row in run.rows
    ]  # fmt: skip
    write_csv(path, rows, digits=DIGITS)


def read_curves(path: Path, measured: Iterable[Measure]) -> Runs:
    """Read the runs that `write_curves` has written, each with as much as measures and figures need."""
    rows: dict[tuple[Case, int], list[Row]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for values in csv.DictReader(file):
            case = Case(values.pop("panel"), values.pop("protocol"), values.pop("line"))
            own = rows.setdefault((case, int(values.pop("seed"))), [])
            numbers = {key: float(value) for key, value in values.items() if value}
            own.append(numbers | {"bytes_down": 1e6 * numbers.pop("megabytes"), "bytes_up": 0.0})
    runs: dict[FinalRun, StoredRun] = {}
    for row in measured:
        ended = {} if row.diverged is None else {"diverged_in_round": row.diverged}
        trial = FinalRun(row.case, Hyper(row.eta, row.beta, row.step), row.seed)
        runs[trial] = StoredRun(
            path.parent, rows=rows.get((row.case, row.seed), []), summary=ended | {MODEL_HASH: row.model}
        )
    return runs
