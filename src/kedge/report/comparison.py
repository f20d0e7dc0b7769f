"""Several algorithms over several seeds, summarised."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from kedge.runs.reader import Row, StoredRun

NAN, LARGEST = float("nan"), 1e100
"""A missing value, and the largest that counts; a directory from somebody else may have any."""

USUAL = ("test_loss", "test_accuracy")
"""The columns that every evaluation has."""

Runs = Mapping[str, Sequence[StoredRun]]
"""The runs of every algorithm, one per seed."""


@dataclass(frozen=True)
class Summary:
    """The results of an algorithm: means over the seeds."""

    algorithm: str
    seeds: int
    diverged: int
    final_accuracy: float | None
    final_accuracy_std: float | None
    best_accuracy: float | None
    final_loss: float | None
    rounds_to_target: float | None  # None: at least one seed never reached it
    megabytes_to_target: float | None
    gradients: float | None
    seconds: float | None
    eta: float | str | None = None
    beta: float | str | None = None
    own: Mapping[str, float | None] = field(default_factory=dict)
    """Your own metrics at the end, by the name of their column."""

    def row(self) -> dict[str, float | str | None]:
        """Return everything as one row of a table."""
        found = asdict(self)
        return found | {f"final_{name}": value for name, value in found.pop("own").items()}


def default_target(runs: Runs) -> float | None:
    """Return 95 % of the best final accuracy of any algorithm, which the good ones reach, rounded to one percent."""
    finals = [mean for own in runs.values() if (mean := _mean(_final(own, "test_accuracy"))) is not None]
    return round(0.95 * max(finals), 2) if finals else None


def own_metrics(runs: Runs) -> list[str]:
    """Return the columns of your own metrics on the test set; with personal layers, the means over the clients."""
    lasts = [run.last for own in runs.values() for run in own if run.last is not None]
    return list(dict.fromkeys(name for last in lasts for name in last if _is_own(name, last)))


def _is_own(name: str, row: Row) -> bool:
    if name.startswith("test_"):
        return name not in USUAL
    return "test_loss" not in row and name.startswith("clients_") and not name.endswith("_worst_decile")


def summarise(runs: Runs, target: float | None) -> list[Summary]:
    """Summarise, in the order in which the algorithms were given."""
    metrics = own_metrics(runs)
    return [_summary(name, own, target, metrics) for name, own in runs.items()]


def _summary(name: str, runs: Sequence[StoredRun], target: float | None, metrics: list[str]) -> Summary:
    done = [run.rows for run in runs if run.last is not None]
    accuracies = _final(runs, "test_accuracy")
    reached = [_first_at(history, target) for history in done] if target is not None else []
    hits = [row for row in reached if row is not None]
    complete = bool(hits) and len(hits) == len(runs)
    return Summary(
        algorithm=name,
        seeds=len(runs),
        diverged=sum(run.diverged is not None for run in runs),
        final_accuracy=_mean(accuracies),
        final_accuracy_std=statistics.stdev(accuracies) if len(accuracies) > 1 else None,
        best_accuracy=_mean([top for run in runs if run.last is not None and (top := _top(run)) is not None]),
        final_loss=_mean(_final(runs, "test_loss")),
        rounds_to_target=_mean([row["round"] for row in hits]) if complete else None,
        megabytes_to_target=_mean([(row["bytes_down"] + row["bytes_up"]) / 1e6 for row in hits]) if complete else None,
        gradients=_mean([history[-1]["gradients"] for history in done]),
        seconds=_mean([history[-1]["seconds"] for history in done]),
        eta=_hyper(runs, "eta"),
        beta=_hyper(runs, "beta"),
        own={metric: _mean(_final(runs, metric)) for metric in metrics},
    )


def _hyper(runs: Sequence[StoredRun], name: str) -> float | str | None:
    """Return a hyper-parameter, if there is one that all the runs have."""
    found = {run.config.get("algorithm", {}).get(name) for run in runs}
    return found.pop() if len(found) == 1 else None


def _mean(values: list[float]) -> float | None:
    try:
        return statistics.fmean(values) if values else None
    except OverflowError:  # in a directory from somebody else
        return None


def _top(run: StoredRun) -> float | None:
    return max(
        (row["test_accuracy"] for row in run.rows if abs(row.get("test_accuracy", NAN)) <= LARGEST), default=None
    )


def _first_at(history: list[Row], target: float) -> Row | None:
    return next((row for row in history if row.get("test_accuracy", -1.0) >= target), None)


def _final(runs: Sequence[StoredRun], metric: str) -> list[float]:
    return [run.last[metric] for run in runs if run.last is not None and abs(run.last.get(metric, NAN)) <= LARGEST]
