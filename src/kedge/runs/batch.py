"""Many runs: each in its own directory, several at once in separate processes, and none repeated.

A finished directory is read, and an unfinished one resumes from its checkpoint: so calling `run_batch` again with the
same jobs continues whatever an earlier call left unfinished, however that ended.
"""

import os
import time
import tomllib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path

from kedge.checks import whole
from kedge.errors import RunWarning, UsageError
from kedge.files import WriteError, claimed, refuse_difference, refuse_link
from kedge.own_code import PLACES
from kedge.runs.config import (
    TEST_SAMPLES,
    Config,
    Problem,
    algorithm_of,
    eval_every,
    problem_of,
    resolved,
    run_config,
)
from kedge.runs.directory import RunDirectory, to_toml
from kedge.runs.live import StopWhen, Watch
from kedge.runs.own import entry_of
from kedge.runs.processes import Ended, Message, Played, QueuedRun, Send, Stop, Warned, run_in_processes
from kedge.runs.reader import (
    FINGERPRINT,
    MODEL,
    MODEL_HASH,
    Row,
    StoredRun,
    read_config,
    read_fingerprint,
    read_rows,
    read_summary,
)
from kedge.runs.settings import SETTINGS
from kedge.runs.simulate import DivergedError
from kedge.settings import Settings
from kedge.simulator import Simulation
from kedge.simulator.fingerprint import data_fingerprint

FREE = frozenset(key for key, each in SETTINGS.items() if each.free)
"""How a job may differ from the run in its directory: how far it goes, where its data is, how it is computed."""

SOURCES = {key: place.partition(".")[2] for place, key in PLACES.items()}
"""The settings that are checksums, and the key in the same section that names the files."""

OFTEN = 0.1
"""Seconds between two reports of rounds that were not evaluated."""


@dataclass(frozen=True)
class Event:
    """Something that happened to a job: it has played a round, or it has ended."""

    name: str
    round: int
    row: Row | None = None
    """The round's metrics, if it was evaluated."""
    ended: StoredRun | None = None
    """The run, when the job has ended."""
    found: bool = False
    """Whether it had ended before this call: its directory was read."""


def run_batch(
    jobs: Mapping[str, Config],
    root: Path,
    processes: int | None = None,
    watch: Callable[[Event], None] = lambda event: None,
    stop: Stop = lambda: False,
    *,
    models: bool = True,
) -> dict[str, StoredRun]:
    """Run checked configurations, each in the directory ``root / name``, and return the runs that have ended.

    Args:
        jobs: a configuration per name. All directories are checked before the first run starts; one that holds a
            different configuration is refused.
        root: where the directories are.
        processes: how many runs at once, each in a process of one thread; None is one per core. If it is one, the
            runs happen in this process, on all cores.
        watch: called in this process for every job that ends, and for running ones at every evaluation and, in
            between, a few times per second.
        stop: called at least a few times per second; True stops every run after its round, with a checkpoint. So does
            Ctrl-C, which is then raised. What was stopped or not started is missing from the result.
        models: whether a finished run whose model is missing is played again; if not, the summary's hash will do.

    A run that fails, diverges, or whose process is killed says so and does not stop the others; calling again tries
    what failed again.
    """
    count = available_cores() if processes is None else whole("processes", processes, 1)
    ended: dict[str, StoredRun] = {}

    def end(name: str, run: StoredRun, *, found: bool = False) -> None:
        ended[name] = run
        watch(Event(name, run.round, ended=run, found=found))

    def report(name: str, message: Message) -> None:
        match message:
            case Played(round, row):
                watch(Event(name, round, row))
            case Warned(text):
                warnings.warn(text, RunWarning, stacklevel=2)
            case Ended(None):
                run = read_ended(root / name, jobs[name], models=models)
                if run is not None:  # otherwise it was stopped
                    end(name, run)
            case Ended(error):
                rows = read_rows(root / name).rows
                end(name, StoredRun(root / name, resolved(jobs[name]), rows, error=error))

    with claimed(root):
        before = {name: read_ended(root / name, config, models=models) for name, config in jobs.items()}
        _check_data({root / name: jobs[name] for name, run in before.items() if run is not None})
        for name, run in before.items():
            if run is not None:
                end(name, run, found=True)
        waiting = [QueuedRun(name, root / name, jobs[name], _key(jobs[name])) for name in jobs if before[name] is None]
        if min(count, len(waiting)) > 1:
            run_in_processes(play_alone, waiting, count, report, stop)
        else:
            for job in waiting:
                if not stop():
                    _play(job, job.config, partial(report, job.name), stop)
    return {name: ended[name] for name in jobs if name in ended}


def available_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def read_ended(path: Path, config: Config, *, models: bool = True) -> StoredRun | None:
    """Return the run in a directory as it was after the rounds of ``config``; None if some are yet to be played."""
    refuse_link(path)
    RunDirectory(path, resume=True)
    _check_same(path, config)
    summary, rows, rounds = read_summary(path), read_rows(path).rows, config.run.rounds
    # As a run of just these rounds would have them: one that was shorter or longer has a row where it ended.
    every = eval_every(config)
    history = [row for row in rows if row["round"] == rounds or (row["round"] < rounds and row["round"] % every == 0)]
    run = StoredRun(path, resolved(config), history, summary)
    diverged = run.diverged
    if diverged is not None and diverged <= rounds:
        return run
    known = (path / MODEL).is_file() or (not models and MODEL_HASH in (summary or {}))
    if summary is not None and diverged is None and not known:
        return None  # to be rewritten from the checkpoint
    evaluated = bool(history) and history[-1]["round"] == rounds
    # A row may be there although the run was killed before its model was: it is whole if there is a summary, or more.
    if not evaluated or (summary is None and rows[-1]["round"] == rounds):
        return None
    at_the_end = summary is not None and summary.get("round") == rounds
    return run if at_the_end else replace(run, summary=dict(history[-1]))


def rehearse(config: Config) -> Simulation:
    """Load the data and prepare the first round, and play nothing: problems are reported before anything runs."""
    run, problem = config.run, _problem(_Wanted(_key(config), config))
    method, settings, loss = algorithm_of(config), run.part(Settings), problem.loss
    simulation = Simulation(problem.model, problem.federation, method, settings, loss, run.device, run.engine, 1)
    simulation.close()
    return simulation


def _check_same(path: Path, config: Config) -> None:
    """Refuse a directory whose run has a different configuration; code that it names is compared, not run."""
    there = read_config(path)
    if there is None:
        return
    here = tomllib.loads(to_toml(resolved(config)))
    for section in dict.fromkeys([*here, *there]):
        before, now = there.get(section, {}), here.get(section, {})
        for key in dict.fromkeys([*before, *now]):
            declared = SETTINGS.get(f"{section}.{key}")  # an older version may not have written it
            theirs, ours = before.get(key, declared.start if declared else None), now.get(key)
            if ours == theirs:
                continue
            source = SOURCES.get(f"{section}.{key}")
            if source is not None and before.get(source) == now.get(source):
                raise UsageError(f"{path} holds a different run: {now[source]} has changed since")
            if f"{section}.{key}" in FREE:
                continue
            raise UsageError(f"{path} holds a different run: {section}.{key} is {theirs!r} there, but {ours!r} here")


def _check_data(finished: Mapping[Path, Config]) -> None:
    """Refuse finished runs whose data differs from what these configurations would load."""
    seen: dict[str, dict[str, str]] = {}
    unknown = 0
    for path, config in finished.items():
        there = read_fingerprint(path)
        if there is None:
            unknown += 1
            continue
        data = config.data
        # The files of a data set are the same whatever is drawn by the seed; but not always those that are tested.
        common = (entry_of(data.dataset).test or 0) >= TEST_SAMPLES and data.test_samples is None and not data.holdout
        key = repr((data.dataset, data.data_dir) if common else (data, config.run.seed))
        if key not in seen:
            seen[key] = data_fingerprint(_problem(_Wanted(_key(config), config)).federation)
        refuse_difference(path / FINGERPRINT, {name: there.get(name) for name in seen[key]}, seen[key])
    if unknown:
        text = f"{unknown} finished runs have no {FINGERPRINT}, so their data cannot be compared"
        warnings.warn(text, RunWarning, stacklevel=3)


def play_alone(job: QueuedRun, send: Send, stop: Stop) -> None:
    """Play a job in a process that has one core to itself."""
    run = job.config.run.model_copy(update={"workers": 1, "threads": 1})
    _play(job, job.config.model_copy(update={"run": run}), send, stop)


def _play(job: QueuedRun, config: Config, send: Send, stop: Stop) -> None:
    told = 0.0

    def watch(done: int, row: Row | None) -> None:
        nonlocal told
        if row is not None or time.monotonic() - told >= OFTEN:
            told = time.monotonic()
            send(Played(done, row))

    error: str | None = None
    try:
        directory = RunDirectory(job.path, resolved(job.config), resume=True)
        callbacks = [Watch(watch), StopWhen(stop)]
        result = run_config(config, _problem(_Wanted(job.problem, config)), directory, callbacks, resume=True)
        if result.interrupted:  # the other runs must not start
            raise KeyboardInterrupt
    except DivergedError:
        pass  # its directory says so
    except (UsageError, WriteError) as problem:
        error = str(problem)
    except MemoryError:
        error = "out of memory; use fewer clients, local steps, opening batches or a smaller batch_size"
    except Exception as problem:  # in a user's own algorithm, say: the other jobs continue
        error = f"{type(problem).__name__}: {problem}"
    send(Ended(error))


def _key(config: Config) -> str:
    """Return what determines the problem of a configuration: equal texts, equal problems."""
    return repr((config.data, config.model, config.run.seed))


@dataclass(frozen=True)
class _Wanted:
    text: str
    config: Config = field(compare=False)


@lru_cache(maxsize=2)
def _problem(wanted: _Wanted) -> Problem:
    return problem_of(wanted.config)
