"""The lines of a report: runs that differ only in their seed belong together, and are named by what sets them apart."""

import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kedge.algorithms import ALGORITHMS
from kedge.errors import UsageError, shown
from kedge.runs.reader import CONFIG, StoredRun, is_run, read_run, read_runs
from kedge.runs.rebuild import MISSING, PYTHON
from kedge.runs.sweep import BEST, FILE

NAME = "algorithm.name"
ALIKE = frozenset({
    "run.seed", "run.device", "run.engine", "run.threads", "run.workers", "run.stall_timeout", "run.state_memory",
    "run.checkpoint_every", "data.data_dir", "algorithm.sha256",
})  # fmt: skip
"""Settings in which the runs of one line may differ: they say where and how a run is computed, and with which seed."""

KEYS = 200
"""The most settings of a configuration that a report shows."""

LONGEST = 200
"""The most characters of a name."""

READABLE = 60
"""The most characters of a name that is made of settings; beyond that, the name of the run's directory says more."""

UNTOLD = "run.eval_every"
"""A setting that no name contains."""

HOLDOUT = "data.holdout"

RULERS = ("data.dataset", "model.name", "data.partition")
"""Settings that others follow from, such as the widths of a model."""

BEST_POINT = "best point"

_IDS = {kind.__name__: name for name, kind in ALGORITHMS.items()}


@dataclass(frozen=True)
class Line:
    """Some runs under one name."""

    name: str
    runs: Sequence[StoredRun]
    algorithm: str = ""
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def held_out(self) -> bool:
        """Whether its "test" columns are of held-out training samples."""
        return bool(self.runs) and is_held_out(self.runs[0])


def runs_of(places: Iterable[Path]) -> list[StoredRun]:
    """Read the runs in these directories, and all runs below those that are folders of runs; each is read once."""
    found: dict[Path, StoredRun] = {}
    for place in places:
        runs = [read_run(place)] if is_run(place) else read_runs(place)
        if not runs:
            raise UsageError(f"{place} holds no runs: no directory in it has a {CONFIG} or metrics")
        found |= {run.path.absolute(): run for run in runs}
    return list(found.values())


def is_held_out(run: StoredRun) -> bool:
    """Whether the "test" columns of a run are of training samples that were held out, and not of the test set."""
    share = run.config.get("data", {}).get("holdout")
    return isinstance(share, int | float) and share > 0


def kinds_of(lines: Sequence[Line]) -> tuple[bool, ...]:
    """Return which samples the lines were evaluated on: True stands for held-out ones, False for the test set."""
    return tuple(sorted({line.held_out for line in lines}, reverse=True))


def metric_words(metric: str, kinds: Collection[bool] = ()) -> str:
    """Return a column's name in words: "held-out accuracy" if that is what the "test" column of all the runs is."""
    said = metric.replace("_", " ")
    if True not in kinds or "test " not in said:
        return said
    return f"{'held-out or test' if False in kinds else 'held-out'} {said.replace('test ', '', 1)}"


def named_lines(groups: Mapping[str, Sequence[StoredRun]]) -> list[Line]:
    """Return the lines of runs that are already in groups with names."""
    found = [(name, runs) for name, runs in groups.items() if runs]
    return [
        Line(name, runs, algorithm_of(runs[0]), settings_of(runs[0]))
        for name, (_, runs) in zip(unique([name for name, _ in found]), found, strict=True)
    ]


def lines_of(runs: Sequence[StoredRun]) -> list[Line]:
    """Put runs into lines; a run without a configuration is a line on its own."""
    groups: dict[Any, list[StoredRun]] = {}
    for run in runs:
        settings = settings_of(run)
        key = tuple(item for item in settings.items() if item[0] not in ALIKE) if settings else run.path
        groups.setdefault(key, []).append(run)
    first = [own[0] for own in groups.values()]
    names = _names([algorithm_of(run) for run in first], [settings_of(run) for run in first], first)
    return [
        Line(name, sorted(own, key=seed_order), algorithm_of(own[0]), settings_of(own[0]))
        for name, own in zip(names, groups.values(), strict=True)
    ]


def _names(algorithms: list[str], settings: list[dict[str, str]], runs: list[StoredRun]) -> list[str]:
    """Name every line by its algorithm and, if several lines have the same, by the settings that differ.

    Where some lines were evaluated on held-out samples and others on the test set, every name says on which.
    """
    mixed = len({is_held_out(run) for run in runs}) == 2
    groups = [
        BEST_POINT if mixed and _is_best(run) else algorithm for algorithm, run in zip(algorithms, runs, strict=True)
    ]
    alike: dict[tuple[str, bool], list[dict[str, str]]] = {}
    places = [(group, mixed and is_held_out(run)) for group, run in zip(groups, runs, strict=True)]
    for place, own in zip(places, settings, strict=True):
        alike.setdefault(place, []).extend([own] if own else [])
    apart = {place: telling(own, keep_name=place[0] == BEST_POINT) for place, own in alike.items()}
    names = []
    for place, own, run in zip(places, settings, runs, strict=True):
        keys = [key for key in apart[place] if key in own and (key != HOLDOUT or is_held_out(run))]
        parts = [f"{_called(key)} {_short(own[key])}" for key in keys]
        parts = parts if own else [run.path.name]
        name = ", ".join([place[0], *parts] if place[0] else parts) or run.path.name
        name = name if len(name) <= READABLE else run.path.name
        names.append(name + (f", {'held out' if is_held_out(run) else 'on the test set'}" if mixed else ""))
    return unique(names)


def _called(key: str) -> str:
    section, _, name = key.partition(".")
    return section if name == "name" else name


def _is_best(run: StoredRun) -> bool:
    """Whether a sweep has trained this run at its best point, to evaluate it on the test set."""
    return not is_held_out(run) and run.path.parent.name == BEST and (run.path.parent.parent / FILE).is_file()


def unique(names: Sequence[str]) -> list[str]:
    """Return the names, shortened to what a table can show, and numbered where that leaves several the same."""
    cut = [name if len(name) <= LONGEST else f"{name[: LONGEST - 13]}..." for name in names]
    count, taken = Counter(cut), set(cut)
    found = []
    for place, name in enumerate(cut, 1):
        number = place
        own = name
        while count[name] > 1 and own in taken:
            own = f"{name}, {number}"
            number += len(cut)
        taken.add(own)
        found.append(own)
    return found


def telling(settings: Sequence[Mapping[str, str]], *, keep_name: bool = False) -> list[str]:
    """Return the settings that tell lines apart, without those that follow from the data or the model."""
    keys = [key for key in differing(settings) if key != UNTOLD and not key.endswith("sha256")]
    keys = [key for key in keys if keep_name or key != NAME]
    for ruler in [key for key in RULERS if key in keys]:
        if ruler in keys:
            keys = [key for key in keys if key == ruler or not _follows(key, ruler, settings)]
    return keys


def _follows(key: str, ruler: str, settings: Sequence[Mapping[str, str]]) -> bool:
    """Whether lines with the same value of one setting have the same value of the other."""
    found = {(own.get(ruler), own.get(key)) for own in settings}
    return len(found) == len({value for value, _ in found})


def _short(text: str) -> str:
    """Return a number as people write it, 0.3 and not 0.30000000000000004, and a path without its directories."""
    if "/" in text:
        return text.rstrip("/").rpartition("/")[2]
    try:
        return f"{float(text):.6g}" if "." in text else text
    except ValueError:
        return text


def differing(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the settings that are not the same in all configurations, where that matters."""
    keys = dict.fromkeys(key for own in settings for key in own)
    return [key for key in keys if key not in ALIKE and len({own.get(key) for own in settings}) > 1]


def settings_of(run: StoredRun) -> dict[str, str]:
    """Return the configuration of a run, flat and as text."""
    pairs = ((f"{section}.{key}", value) for section, own in run.config.items() for key, value in own.items())
    return {key[:100]: _text(value) for key, value in list(pairs)[:KEYS]}


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else shown(value)
    return text if len(text) <= 300 else f"{text[:280]}...{text[-10:]}"


def algorithm_of(run: StoredRun) -> str:
    """Return the id of a run's algorithm, or the name of its class; "" if the directory does not say."""
    name = run.config.get("algorithm", {}).get("name")
    if isinstance(name, str):
        return name.rpartition(":")[2][:100]
    kind = str((run.summary or {}).get("algorithm", "")).partition("(")[0]
    return _IDS.get(kind, kind)[:100]


def seed_of(run: StoredRun) -> int | None:
    """Return the seed of a run, if its configuration has one."""
    seed = run.config.get("run", {}).get("seed")
    return seed if isinstance(seed, int) and not isinstance(seed, bool) else None


def seed_order(run: StoredRun) -> tuple[int, str]:
    """Return what runs of one line are sorted by."""
    return seed_of(run) or 0, str(run.path)


def state_of(run: StoredRun) -> str:
    """Say how far a run has come."""
    if run.error is not None:
        return f"failed: {run.error}"
    if run.diverged is not None:
        return f"diverged in round {run.diverged}"
    if run.finished:
        return "finished"
    total = run.config.get("run", {}).get("rounds")
    return f"not finished: round {run.round}" + (f" of {total}" if isinstance(total, int) else "")


def repeat_command(run: StoredRun) -> str:
    """Return the command that repeats a run; "" if there is none, as for a run whose model a Python program made."""
    complete = run.config and not run.config.get(PYTHON, {}).get(MISSING)
    return f"kedge run {shlex.quote(str(run.path / CONFIG))} --out again" if complete else ""
