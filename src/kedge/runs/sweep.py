"""A sweep: one configuration at many points and seeds, all at once, in rungs of more and more rounds, or as found.

Its directory holds `sweep.toml`, which says what it is, and `runs/<point>-seed<k>/`, ordinary directories of runs.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from kedge.checks import expanded, is_higher_better, whole
from kedge.errors import UsageError, shown
from kedge.files import refuse_link, write_atomically
from kedge.own_code import PLACES
from kedge.runs.batch import FREE, Event, available_cores, rehearse, run_batch
from kedge.runs.config import Config, check, eval_every
from kedge.runs.directory import to_toml
from kedge.runs.grid import Axis, Choices, Point, corners, extended, parse_grid, point_name, points
from kedge.runs.optuna_search import FILE as STUDY
from kedge.runs.optuna_search import Study, require_optuna
from kedge.runs.own import absolute_place, entry_of, metrics_of
from kedge.runs.reader import read_toml
from kedge.runs.search import Standing, ranked
from kedge.runs.toml import merged

FILE, BEST = "sweep.toml", "best"

HOLDOUT = 0.1
"""The share of the training samples that points are compared on, unless something else is asked for."""

RUNS = 100_000
"""The most runs a sweep may have."""


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep is."""

    base: Mapping[str, Any]
    axes: Mapping[str, Axis]
    seeds: int = 3
    metric: str = "test_accuracy"
    halving: int | None = None
    """After each rung, one in this many points continues, with this many times the rounds."""
    trials: int | None = None
    """How many points optuna tries."""

    def config(self, point: Point, seed: int = 0, rounds: int | None = None) -> Config:
        """Return the checked configuration of a run: ``seed`` counts from that of the base."""
        config = check(merged(self.base, point.items()))
        run = config.run.model_copy(
            update={
                "seed": config.run.seed + seed, "rounds": rounds or config.run.rounds,
                "eval_every": eval_every(config),  # of the last rung, so that all rungs have it
            }
        )  # fmt: skip
        return config.model_copy(update={"run": run})

    @property
    def holdout(self) -> bool:
        """Whether points are compared on samples held out of the training, and not on the test set."""
        return bool(self.base.get("data", {}).get("holdout")) and "data.holdout" not in self.axes

    @property
    def criterion(self) -> str:
        """What decides, in words."""
        said = self.metric.replace("_", " ")
        return f"held-out {said.replace('test ', '', 1)}" if self.holdout and "test " in said else said

    def check(self) -> None:
        """Refuse what cannot be run, before anything is."""
        if self.metric not in (known := columns(check(self.base))):
            raise UsageError(f"metric is {shown(self.metric)}, but must be one of {', '.join(known)}")
        for name, value, least in (("seeds", self.seeds, 1), ("halving", self.halving, 2), ("trials", self.trials, 1)):
            if value is not None:
                whole(name, value, least, RUNS)
        if (runs := self.seeds * (self.trials or len(points(self.axes)))) > RUNS:
            raise UsageError(f"the sweep has {runs} runs, but must have at most {RUNS}")
        if self.trials is not None:
            require_optuna()
        if self.halving is not None and self.trials is not None:
            raise UsageError("halving and a search by optuna exclude each other")
        if self.halving is not None and "run.rounds" in self.axes:
            raise UsageError("--grid names run.rounds, but with halving the rungs decide on the rounds")


def with_holdout(plan: SweepPlan) -> SweepPlan:
    """Return the sweep with samples held out for its choice, unless it says otherwise or its data has no samples."""
    data = plan.base.get("data", {})
    axis = plan.axes.get("data.dataset")
    names = (
        axis.values if isinstance(axis, Choices) else [data.get("dataset", "digits")] if isinstance(data, dict) else []
    )
    sampled = all(isinstance(name, str) and entry_of(name).make is None for name in names)
    if not names or not sampled or "holdout" in data or "data.holdout" in plan.axes:
        return plan
    return replace(plan, base=merged(plan.base, [("data.holdout", HOLDOUT)]))


def columns(config: Config) -> list[str]:
    """Return the columns of a configuration's rows that say how good a model is."""
    names = ["accuracy", "loss", *metrics_of(config.run.metrics)]
    kinds = ("clients", "clients_test") if config.run.eval_clients or config.run.local_update is not None else ()
    clients = [f"{kind}_{name}{worst}" for kind in kinds for name in names for worst in ("", "_worst_decile")]
    return [f"test_{name}" for name in names] + clients


def absolute(base: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration with absolute paths."""
    places: dict[str, Callable[[str], str]] = dict.fromkeys(PLACES, absolute_place)
    places["data.data_dir"] = lambda path: str(expanded(path).absolute())
    changes = []
    for key, place in places.items():
        section, _, name = key.partition(".")
        values = base.get(section)
        if isinstance(values, dict) and isinstance(values.get(name), str):
            changes.append((key, place(values[name])))
    return merged(base, changes)


def absolute_axes(axes: Mapping[str, Axis]) -> dict[str, Axis]:
    """Return the grid with absolute paths."""

    def placed(key: str, axis: Axis) -> Axis:
        if key not in PLACES or not isinstance(axis, Choices):
            return axis
        return Choices(tuple(absolute_place(name) if isinstance(name, str) else name for name in axis.values))

    return {key: placed(key, axis) for key, axis in axes.items()}


class _About(BaseModel):
    """The section `sweep` of a sweep's file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    grid: list[str]
    seeds: int = 3
    metric: str = "test_accuracy"
    halving: int | None = None
    trials: int | None = None


def read_plan(path: Path) -> SweepPlan:
    """Return what the sweep in a directory is."""
    file = path / FILE
    sections = read_toml(file)
    if sections is None:
        raise UsageError(f"{path} has no {FILE}, so it is not a directory of `kedge sweep`")
    for name, section in sections.items():
        if not isinstance(section, dict):
            raise UsageError(f"{file} cannot be read: {name} is {shown(section)}, but must be a section")
    try:
        about = _About.model_validate(sections.pop("sweep", {}))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(map(str, ["sweep", *first["loc"]]))[:60]
        raise UsageError(f"{file} cannot be read: {key}: {first['msg'].lower()}") from None
    return SweepPlan(sections, parse_grid(about.grid), about.seeds, about.metric, about.halving, about.trials)


def write_plan(path: Path, plan: SweepPlan) -> None:
    """Write what the sweep in a directory is."""
    about = {
        "grid": [f"{key}={axis}" for key, axis in plan.axes.items()], "seeds": plan.seeds, "metric": plan.metric,
        "halving": plan.halving, "trials": plan.trials,
    }  # fmt: skip
    write_atomically(path / FILE, to_toml({"sweep": about} | dict(plan.base)).encode())


def joined(there: SweepPlan, here: SweepPlan) -> SweepPlan:
    """Return the sweep that continues ``there``: it may add values, seeds and trials, nothing else."""
    for section in dict.fromkeys([*there.base, *here.base]):
        before, now = there.base.get(section, {}), here.base.get(section, {})
        for key in dict.fromkeys([*before, *now]):
            if f"{section}.{key}" not in FREE - {"run.rounds"} and before.get(key) != now.get(key):
                _refuse(f"{section}.{key}", before.get(key), now.get(key))
    for name in ("metric", "halving"):
        if getattr(there, name) != getattr(here, name):
            _refuse(name, getattr(there, name), getattr(here, name))
    if (there.trials is None) != (here.trials is None):
        raise UsageError("a sweep of a grid cannot continue as a search by optuna, or vice versa")
    axes = extended(there.axes, here.axes)
    seeds = max(there.seeds, here.seeds)
    if here.halving is not None and (axes != there.axes or seeds != there.seeds):
        raise UsageError("the existing sweep has a different grid or number of seeds, and halving cannot be extended")
    if here.trials is not None and (axes != there.axes or seeds != there.seeds):
        raise UsageError("the existing search has a different grid or number of seeds; only trials can be added")
    trials = None if there.trials is None or here.trials is None else max(there.trials, here.trials)
    return SweepPlan(here.base, axes, seeds, here.metric, here.halving, trials)


def _refuse(name: str, there: Any, here: Any) -> None:
    def said(value: Any) -> str:
        return "not set" if value is None else repr(value)

    raise UsageError(f"the existing sweep is different: {name} is {said(there)} there, but {said(here)} here")


def rungs(count: int, rounds: int, factor: int) -> list[tuple[int, int]]:
    """Return how many points play up to which round, rung after rung: the last rung plays all rounds."""
    sizes = [count]
    while sizes[-1] >= factor and rounds >= factor ** len(sizes):
        sizes.append(sizes[-1] // factor)
    return [(size, rounds // factor ** (len(sizes) - 1 - place)) for place, size in enumerate(sizes)]


class Sweep:
    """A sweep in progress."""

    def __init__(
        self,
        plan: SweepPlan,
        path: Path,
        processes: int | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Check every point; nothing is written before `run`."""
        plan.check()
        if processes is not None:
            whole("workers", processes, 1)
        self.plan = plan
        self.path = path
        self.processes = processes
        self.standings: dict[str, Standing] = {}
        self.rounds: dict[str, int] = {}  # played so far, by job
        self.total = 0  # rounds in all
        self.watch: Callable[[Event], None] = lambda event: None
        self._stop = stop
        self._jobs: dict[str, tuple[Standing, int]] = {}
        self._rungs: list[tuple[int, int]] = []
        if plan.trials is not None:
            self.total = plan.trials * plan.seeds * self._rehearse(corners(plan.axes))
        else:
            rounds = self._rehearse(points(plan.axes))
            for point in points(plan.axes):
                self.add(point_name(point), point)
                self.total += plan.config(point).run.rounds * plan.seeds
            if plan.halving is not None:
                self._rungs = rungs(len(self.standings), rounds, plan.halving)
                before = [0, *(played for _, played in self._rungs)]
                steps = [size * (played - last) for (size, played), last in zip(self._rungs, before, strict=False)]
                self.total = sum(steps) * plan.seeds

    def _rehearse(self, points: Iterable[Point]) -> int:
        """Refuse any invalid point; return the rounds of the last."""
        rounds = 0
        for point in points:
            config = self.plan.config(point)
            entry = entry_of(config.data.dataset)
            if entry.known and entry.classes is None and self.plan.metric == "test_accuracy":
                raise UsageError(f"metric is test_accuracy, but {config.data.dataset} has no accuracy; use test_loss")
            if rehearse(config).is_personal and self.plan.metric.startswith("test_"):
                raise UsageError(
                    f"metric is {self.plan.metric}, but with personal layers only the clients' own models are "
                    "evaluated; use clients_test_accuracy, with client_tests"
                )
            rounds = config.run.rounds
        return rounds

    def add(self, name: str, point: Point) -> Standing:
        """Add a point."""
        if name in self.standings:
            raise UsageError(f"two points of the grid would both be called {name}; write their values differently")
        self.standings[name] = Standing(name, point, self.plan.seeds)
        return self.standings[name]

    def run(self) -> bool:
        """Run until everything is done; return False if it was stopped. The caller holds the directory."""
        refuse_link(self.path / "runs")
        write_plan(self.path, self.plan)
        if self.plan.trials is not None:
            return self._search(self.plan.trials)
        if self.plan.halving is None:
            return self.play(self.standings.values())
        remaining = list(self.standings.values())
        for size, rounds in self._rungs:
            best = ranked(remaining, self.plan.metric)[:size] if size < len(remaining) else remaining
            for standing in remaining:
                standing.stopped = standing not in best
            remaining = [standing for standing in remaining if not standing.stopped]
            if not self.play(remaining, rounds):
                return False
        return True

    def _search(self, trials: int) -> bool:
        """Try what optuna proposes, as many points at once as there are processes for."""
        refuse_link(self.path / STUDY)
        study = Study(self.path, self.plan.axes, is_higher_better(self.plan.metric), check(self.plan.base).run.seed)
        known, asked = study.trials(), True
        while asked:
            new = {number: self.add(f"trial{number:04d}", point) for number, point in known.items()}
            if not self.play(new.values()):
                return False
            for number, standing in new.items():
                study.tell(number, standing.mean(self.plan.metric))
            at_once = -(-(self.processes or available_cores()) // self.plan.seeds)
            known = study.ask(min(at_once, trials - len(self.standings)))
            asked = bool(known)
        return True

    def play(self, standings: Iterable[Standing], rounds: int | None = None) -> bool:
        """Play all seeds of some points; False if it was stopped."""
        jobs: dict[str, Config] = {}
        for standing in standings:
            for seed in range(self.plan.seeds):
                config = self.plan.config(standing.point, seed, rounds)
                name = f"{standing.name}-seed{config.run.seed}"
                jobs[name] = config
                self._jobs[name] = standing, config.run.seed
                if config.run.rounds > standing.rounds:  # how it ended in an earlier rung no longer counts
                    standing.rounds, standing.runs = config.run.rounds, {}
        return len(run_batch(jobs, self.path / "runs", self.processes, self._follow, self._stop)) == len(jobs)

    def evaluate(self) -> Standing | None:
        """Train the best point on all samples and evaluate it on the test set; None if that was done, or cannot be."""
        best = ranked(self.standings.values(), self.plan.metric)[0]
        if not self.plan.holdout or best.mean(self.plan.metric) is None:
            return None
        standing, jobs = Standing(best.name, best.point, self.plan.seeds, best.rounds), {}
        for seed in range(self.plan.seeds):
            config = self.plan.config(best.point, seed)
            data = config.data.model_copy(update={"holdout": 0.0})
            jobs[f"{best.name}-seed{config.run.seed}"] = config.model_copy(update={"data": data})
        refuse_link(self.path / BEST)
        ended = run_batch(jobs, self.path / BEST, self.processes, stop=self._stop)
        standing.runs = {jobs[name].run.seed: run for name, run in ended.items()}
        return standing

    def _follow(self, event: Event) -> None:
        standing, seed = self._jobs[event.name]
        self.rounds[event.name] = event.round if event.ended is None else standing.rounds
        if event.ended is not None:
            standing.runs[seed] = event.ended
        self.watch(event)
