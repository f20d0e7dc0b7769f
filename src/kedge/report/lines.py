"""The lines of a report: runs that differ only in their seed belong together, and are named by what sets them apart."""

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kedge.algorithms import ALGORITHMS
from kedge.errors import UsageError, shown
from kedge.runs.reader import CONFIG, StoredRun, is_run, read_run, read_runs
from kedge.runs.rebuild import MISSING, PYTHON

NAME = "algorithm.name"
ALIKE = frozenset({
    "run.seed", "run.device", "run.engine", "run.threads", "run.workers", "run.stall_timeout", "run.state_memory",
    "run.checkpoint_every", "data.data_dir", "algorithm.sha256",
})  # fmt: skip
"""Settings in which the runs of one line may differ: they say where and how a run is computed, and with which seed."""

KEYS = 200
"""The most settings of a configuration that a report shows."""

_IDS = {kind.__name__: name for name, kind in ALGORITHMS.items()}


@dataclass(frozen=True)
class Line:
    """Some runs under one name."""

    name: str
    runs: Sequence[StoredRun]
    algorithm: str = ""
    settings: dict[str, str] = field(default_factory=dict)


def runs_of(places: Iterable[Path]) -> list[StoredRun]:
    """Read the runs in these directories, and all runs below those that are folders of runs; each is read once."""
    found: dict[Path, StoredRun] = {}
    for place in places:
        runs = [read_run(place)] if is_run(place) else read_runs(place)
        if not runs:
            raise UsageError(f"{place} holds no runs: no directory in it has a {CONFIG} or metrics")
        found |= {run.path.absolute(): run for run in runs}
    return list(found.values())


def named_lines(groups: Mapping[str, Sequence[StoredRun]]) -> list[Line]:
    """Return the lines of runs that are already in groups with names."""
    return [Line(name, runs, algorithm_of(runs[0]), settings_of(runs[0])) for name, runs in groups.items() if runs]


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
    """Name every line by its algorithm and, if several lines have the same, by the settings that differ."""
    alike: dict[str, list[dict[str, str]]] = {}
    for algorithm, own in zip(algorithms, settings, strict=True):
        alike.setdefault(algorithm, []).extend([own] if own else [])
    apart = {name: [key for key in differing(own) if key != NAME] for name, own in alike.items()}
    names = []
    for algorithm, own, run in zip(algorithms, settings, runs, strict=True):
        parts = [f"{key.partition('.')[2]} {_short(own.get(key, '-'))}" for key in apart[algorithm]]
        parts = parts if own else [run.path.name]
        names.append(", ".join([algorithm, *parts] if algorithm else parts) or run.path.name)
    count = Counter(names)
    return [name if count[name] == 1 else f"{name}, {place + 1}" for place, name in enumerate(names)]


def _short(text: str) -> str:
    """Return a number as people write it, 0.3 and not 0.30000000000000004, and anything else as it is."""
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
