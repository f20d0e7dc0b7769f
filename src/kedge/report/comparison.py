"""Several algorithms over several seeds, summarised."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

Row = dict[str, float]


@dataclass(frozen=True)
class Record:
    """One run of a comparison."""

    algorithm: str
    seed: int
    history: list[Row]
    diverged: int | None = None  # the round in which it diverged


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


def default_target(records: Iterable[Record]) -> float | None:
    """Return 95 % of the best final accuracy of any algorithm, which the good ones reach, rounded to one percent."""
    finals = [mean for _, mean in _final(records, "test_accuracy")]
    return round(0.95 * max(finals), 2) if finals else None


def summarise(records: list[Record], target: float | None) -> list[Summary]:
    """Summarise, in the order in which the algorithms were given."""
    return [
        _summary(name, [record for record in records if record.algorithm == name], target)
        for name in dict.fromkeys(record.algorithm for record in records)
    ]


def _summary(name: str, records: list[Record], target: float | None) -> Summary:
    done = [record.history for record in records if record.diverged is None and record.history]
    accuracies = [history[-1]["test_accuracy"] for history in done if "test_accuracy" in history[-1]]
    reached = [_first_at(history, target) for history in done] if target is not None else []
    hits = [row for row in reached if row is not None]
    complete = bool(hits) and len(hits) == len(records)
    return Summary(
        algorithm=name,
        seeds=len(records),
        diverged=sum(record.diverged is not None for record in records),
        final_accuracy=_mean(accuracies),
        final_accuracy_std=statistics.stdev(accuracies) if len(accuracies) > 1 else None,
        best_accuracy=_mean([max(row["test_accuracy"] for row in history) for history in done if accuracies]),
        final_loss=_mean([history[-1]["test_loss"] for history in done if "test_loss" in history[-1]]),
        rounds_to_target=_mean([row["round"] for row in hits]) if complete else None,
        megabytes_to_target=_mean([(row["bytes_down"] + row["bytes_up"]) / 1e6 for row in hits]) if complete else None,
        gradients=_mean([history[-1]["gradients"] for history in done]),
        seconds=_mean([history[-1]["seconds"] for history in done]),
    )


def _mean(values: list[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _first_at(history: list[Row], target: float) -> Row | None:
    return next((row for row in history if row.get("test_accuracy", -1.0) >= target), None)


def _final(records: Iterable[Record], metric: str) -> list[tuple[str, float]]:
    finals: dict[str, list[float]] = {}
    for record in records:
        if record.diverged is None and record.history and metric in record.history[-1]:
            finals.setdefault(record.algorithm, []).append(record.history[-1][metric])
    return [(name, statistics.fmean(values)) for name, values in finals.items()]
