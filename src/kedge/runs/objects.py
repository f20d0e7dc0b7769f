"""`kedge.compare` and `kedge.sweep`: the commands of the same names, with objects instead of names."""

import dataclasses
import itertools
import math
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from kedge.algorithm import Algorithm
from kedge.algorithms import ALGORITHMS
from kedge.checks import whole
from kedge.errors import UsageError, shown, unknown
from kedge.problem import Federation
from kedge.runs.grid import POINTS, Point, point_name
from kedge.runs.reader import StoredRun
from kedge.runs.result import DivergedError, Result, as_table, plot
from kedge.runs.search import Standing, ranked, spread
from kedge.runs.simulate import simulate

if TYPE_CHECKING:
    from pandas import DataFrame

SEEDS = 1000
"""The most seeds."""

Model = nn.Module | Callable[[int], nn.Module]
Data = Federation | Callable[[int], Federation]


@dataclass(frozen=True)
class Trained:
    """The runs of one algorithm, one per seed."""

    name: str
    algorithm: Algorithm[Any, Any]
    results: list[Result]
    diverged: int = 0

    def row(self) -> dict[str, Any]:
        """Return its hyper-parameters, and mean and standard deviation over the seeds of every final metric."""
        hyper = {name: getattr(self.algorithm, name) for name in ("eta", "beta") if hasattr(self.algorithm, name)}
        about = {"algorithm": self.name} | hyper | {"seeds": len(self.results), "diverged": self.diverged}
        last = [result.history[-1] for result in self.results if result.history]
        if self.diverged or not last:
            return about
        for name in (each for each in last[0] if each.startswith(("test_", "clients_"))):
            values = [row[name] for row in last]
            about |= {name: statistics.fmean(values)}
            about |= {} if (found := spread(values)) is None else {f"{name}_std": found}
        return about


@dataclass(frozen=True, repr=False)
class Comparison:
    """Several algorithms on the same data, cohorts and minibatches."""

    trained: dict[str, Trained]

    @property
    def results(self) -> dict[str, list[Result]]:
        """The results of every algorithm, one per seed."""
        return {name: each.results for name, each in self.trained.items()}

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per algorithm: eta, beta, the number of seeds, and mean and standard deviation over them."""
        return [each.row() for each in self.trained.values()]

    def to_pandas(self) -> "DataFrame":
        """Return the rows as a table."""
        return as_table(self.rows())

    def plot(self, *columns: str) -> Any:
        """Draw columns of the histories against rounds, the first seed of every algorithm."""
        return plot({name: each.results[0].history for name, each in self.trained.items()}, columns)

    def __repr__(self) -> str:
        return _text(self.rows(), "± is the standard deviation over the seeds")


@dataclass(frozen=True, repr=False)
class SweepResult:
    """What a sweep found."""

    standings: list[Standing]
    """The points with their runs, the best first."""
    metric: str
    best: Point
    """The best point."""
    holdout: float
    """The share of every client's samples that it was chosen on; 0 if it was chosen on the test set."""
    final: Trained = field(repr=False)
    """The best point, trained on all samples and evaluated on the test set."""

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per point, the best first; the metric is that of the samples it was chosen on."""
        name = self.metric if not self.holdout else self.metric.replace("test_", "held_out_", 1)
        return [
            each.point | {"seeds": each.seeds, name: each.mean(self.metric), f"{name}_std": each.spread(self.metric)}
            for each in self.standings
        ]

    def to_pandas(self) -> "DataFrame":
        """Return the rows as a table."""
        return as_table(self.rows())

    def __repr__(self) -> str:
        chosen = f"chosen on {self.holdout:g} of every client's samples" if self.holdout else "chosen on the test set"
        last = self.final.row().get(self.metric)
        return _text(self.rows(), f"best: {self.best}, {chosen}; then {self.metric} {_number(last)}")


def compare(
    model: Model,
    federation: Data,
    algorithms: Mapping[str, Algorithm[Any, Any]] | Sequence[Algorithm[Any, Any]],
    *,
    seeds: int = 3,
    out: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Comparison:
    """Compare algorithms on the same data, cohorts and minibatches, with several seeds.

    Args:
        model: a module, or a function of the seed that returns one.
        federation: the clients' data, or a function of the seed that returns it.
        algorithms: by name, or a list of them.
        seeds: how many, from ``seed`` on.
        out: a directory; every run has its own in it, and calling again resumes what is unfinished.
        settings: what `kedge.simulate` takes.
    """
    if not isinstance(algorithms, Mapping | list | tuple):
        raise UsageError(f"algorithms is {shown(algorithms)}, but must be a dict or a list of algorithms")
    for algorithm in algorithms.values() if isinstance(algorithms, Mapping) else algorithms:
        if not isinstance(algorithm, Algorithm):
            raise UsageError(
                f"algorithms holds {shown(algorithm)}, but must hold algorithms such as kedge.FedAvg(eta=0.1)"
            )
    named = dict(algorithms) if isinstance(algorithms, Mapping) else dict(_named(algorithms))
    if not named:
        raise UsageError("algorithms is empty, but must hold at least one")
    return Comparison(
        {name: _trained(name, model, federation, each, seeds, out, settings) for name, each in named.items()}
    )


def sweep(
    model: Model,
    federation: Data,
    algorithm: Algorithm[Any, Any] | type[Algorithm[Any, Any]],
    grid: Mapping[str, Sequence[Any]],
    *,
    seeds: int = 3,
    metric: str = "test_accuracy",
    holdout: float = 0.1,
    out: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> SweepResult:
    """Try every combination of values, choose the best on held-out samples, and train it on all of them.

    Args:
        model: a module, or a function of the seed that returns one.
        federation: the clients' data, or a function of the seed that returns it.
        algorithm: whose hyper-parameters the grid may set.
        grid: the values of each hyper-parameter or setting of `kedge.simulate`, as in ``{"eta": [0.1, 0.5]}``.
        seeds: how many, from ``seed`` on.
        metric: a column of the history that decides.
        holdout: the share of every client's samples to choose on, instead of the test set; 0 chooses on the test set,
            whose value is then no honest estimate.
        out: a directory; every run has its own in it, and calling again resumes what is unfinished.
        settings: what `kedge.simulate` takes.
    """
    if not (isinstance(algorithm, Algorithm) or (isinstance(algorithm, type) and issubclass(algorithm, Algorithm))):
        raise UsageError(
            f"algorithm is {shown(algorithm)}, but must be an algorithm such as kedge.FedAvg(eta=0.1), or its class"
        )
    standings = []
    place = None if out is None else Path(out) / "points"
    data = _held_out(federation, holdout) if holdout else federation
    for point in _points(grid):
        chosen, more = _applied(algorithm, point)
        name = point_name(point)
        played = _played(name, model, data, chosen, seeds, place, settings | more)
        runs = {seed: _stored(*ended) for seed, ended in enumerate(played)}
        standings.append(Standing(name, point, seeds, max(run.round for run in runs.values()), runs))
        known = {name for run in runs.values() for name in run.last or {}}
        if known and metric not in known:  # before the other points are tried
            raise unknown("metric", metric, known)
    best = ranked(standings, metric)[0]
    if best.mean(metric) is None:
        all_diverged = all(each.diverged for each in standings)
        why = "every point of the grid diverged" if all_diverged else f"no point of the grid has a finite {metric}"
        raise UsageError(f"{why}, so there is no best one")
    chosen, more = _applied(algorithm, best.point)
    final = _trained("best", model, federation, chosen, seeds, out, settings | more)
    return SweepResult(ranked(standings, metric), metric, best.point, holdout, final)


def _named(algorithms: Sequence[Algorithm[Any, Any]]) -> Iterator[tuple[str, Algorithm[Any, Any]]]:
    ids = {kind: name for name, kind in ALGORITHMS.items()}
    seen: set[str] = set()
    for algorithm in algorithms:
        name = ids.get(type(algorithm), type(algorithm).__name__)
        if name in seen:
            raise UsageError(f"algorithms holds {name} twice; give each a name, as in {{'small eta': ...}}")
        seen.add(name)
        yield name, algorithm


def _trained(
    name: str, model: Model, federation: Data, algorithm: Algorithm[Any, Any], seeds: int,
    out: str | os.PathLike[str] | None, settings: Mapping[str, Any],
) -> Trained:  # fmt: skip
    played = list(_played(name, model, federation, algorithm, seeds, out, settings))
    return Trained(name, algorithm, [result for result, _ in played], sum(diverged for _, diverged in played))


def _played(
    name: str, model: Model, federation: Data, algorithm: Algorithm[Any, Any], seeds: int,
    out: str | os.PathLike[str] | None, settings: Mapping[str, Any],
) -> Iterator[tuple[Result, bool]]:  # fmt: skip
    """Yield the result of every seed, and whether it diverged."""
    first = settings.get("seed", 0)
    for seed in range(first, first + whole("seeds", seeds, 1, SEEDS)):
        its = model if isinstance(model, nn.Module) else model(seed)
        data = federation if isinstance(federation, Federation) else federation(seed)
        more = {} if out is None else {"out": Path(out) / f"{name}-{seed}", "resume": True}
        try:
            result = simulate(its, data, algorithm, **dict(settings) | {"seed": seed} | more)
        except DivergedError as error:
            yield error.result, True
            continue
        if result.interrupted:  # a shorter run among the others would make their means wrong
            raise KeyboardInterrupt
        yield result, False


def _stored(result: Result, diverged: bool) -> StoredRun:
    """Return a result as the ranking of points reads it."""
    return StoredRun(
        Path(), {}, result.history, {"diverged_in_round" if diverged else "round": result.simulation.round}
    )


def _points(grid: Mapping[str, Sequence[Any]]) -> list[Point]:
    if not grid:
        raise UsageError("grid is empty, but must name at least one hyper-parameter or setting")
    grid = {name: values.tolist() if isinstance(values, np.ndarray) else values for name, values in grid.items()}
    for name, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise UsageError(f"grid has {name}={shown(values)}, but must list its values")
        if name == "seed":
            raise UsageError("grid names seed, but seeds says how many there are")
    if (count := math.prod(map(len, grid.values()))) > POINTS:
        raise UsageError(f"grid has {count} points, but at most {POINTS} can be tried")
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def _applied(algorithm: Any, point: Point) -> tuple[Algorithm[Any, Any], dict[str, Any]]:
    """Return the algorithm with what the point sets of it, and the rest, which are settings."""
    fields = {each.name for each in dataclasses.fields(algorithm)}
    own = {name: value for name, value in point.items() if name in fields}
    if not isinstance(algorithm, type):
        made = dataclasses.replace(algorithm, **own)
    else:
        for each in dataclasses.fields(algorithm):
            if each.default is each.default_factory is dataclasses.MISSING and each.name not in own:
                name = algorithm.__name__
                raise UsageError(f"{name} needs {each.name}, but the grid has none; give {name}({each.name}=...)")
        made = algorithm(**own)
    return made, {name: value for name, value in point.items() if name not in fields}


def _held_out(federation: Data, share: float) -> Data:
    """Return the data with a share of every client's samples as its test set, the same for every seed."""
    if isinstance(federation, Federation):
        return federation.held_out(share)
    make = federation
    return lambda seed: make(seed).held_out(share)


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _text(rows: Sequence[Mapping[str, Any]], caption: str) -> str:
    """Write rows as plain text; a standard deviation stands behind its mean."""
    some = any(row.get("diverged") for row in rows)
    names = dict.fromkeys(
        name for row in rows for name in row if not name.endswith("_std") and (some or name != "diverged")
    )

    def cell(row: Mapping[str, Any], name: str) -> str:
        spread = row.get(f"{name}_std")
        return "-" if row.get(name) is None else _number(row[name]) + ("" if spread is None else f" ± {spread:.2g}")

    table = [list(names), *([cell(row, name) for name in names] for row in rows)]
    widths = [max(len(line[place]) for line in table) for place in range(len(names))]
    lines = ("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in table)
    return "\n".join([*lines, caption])
