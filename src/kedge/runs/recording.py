"""A run's record while it runs: its history and, in a directory, metrics, checkpoints and summary.

The order of the writes ensures that a resumed run loses no round: a row of metrics is flushed to disk before the
checkpoint that counts it, and `summary.json`, written last, says that the run is finished.
"""

import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from kedge.client import Metric
from kedge.errors import RunWarning, UsageError
from kedge.problem import Federation
from kedge.runs.checkpoint_timer import CheckpointTimer, Interval
from kedge.runs.directory import RunDirectory, environment
from kedge.runs.reader import Row
from kedge.simulator import Simulation
from kedge.simulator.checkpoint import Checkpoints, Like, Loaded
from kedge.simulator.fingerprint import fingerprint, metrics_fingerprint


class Recording:
    """Keeps what happens; without a directory, in memory only."""

    def __init__(
        self,
        run: Simulation,
        federation: Federation,
        directory: RunDirectory | None,
        interval: Interval,
        metrics: Mapping[str, Metric],
    ) -> None:
        self.history: list[Row] = []
        self._run = run
        self._directory = directory
        self._schedule = CheckpointTimer(interval)
        self._checkpoints = None if directory is None else Checkpoints(directory.checkpoints)
        self._fingerprint = {} if directory is None else fingerprint(run, federation) | metrics_fingerprint(metrics)
        self._written_with = environment() | run.computes_with()
        self._recorded: dict[int, Row] = {}  # rows of rounds that are replayed
        self._before = 0.0  # seconds, of earlier processes
        self._began = time.perf_counter()

    @contextmanager
    def opened(self, resume: bool, rounds: int) -> Iterator[None]:
        """Lock the directory and, to resume, go to the last checkpoint."""
        if self._directory is None:
            if resume:
                self._restore(None)
            yield
            return
        with self._directory.opened():
            begun = resume and self._directory.has_fingerprint(self._fingerprint)
            if resume:
                self._resume(self._directory, rounds)
            if not begun:
                self._directory.write_fingerprint(self._fingerprint)
            self._directory.write_configuration()  # after the summary is gone: a run that will continue is not finished
            self._began = time.perf_counter()
            yield

    def _resume(self, directory: RunDirectory, rounds: int) -> None:
        assert self._checkpoints is not None
        rows = directory.repaired_rows()
        like = Like(self._run.server_state(), self._run.row_template, len(self._run.federation))
        loaded = self._checkpoints.load(self._fingerprint, len(rows), like)
        reached = max([loaded.manifest.round if loaded else 0, *(int(row["round"]) for row in rows)])
        if reached > rounds:
            raise UsageError(f"rounds is {rounds}, but the run in {directory.path} has already played {reached}")
        self._restore(loaded)
        if loaded is not None:
            self._before = loaded.manifest.seconds
            self._compare(loaded.manifest.written_with, loaded.manifest.round)
        self._recorded = {int(row["round"]): row for row in rows if row["round"] > self._run.round}
        self.history[:] = [row for row in rows if row["round"] <= self._run.round]
        self._before = max([self._before, *(row.get("seconds", 0.0) for row in rows)])
        if self._run.round < rounds:
            directory.reopen()

    def _restore(self, loaded: Loaded | None) -> None:
        """Go to the checkpoint that rank 0 has loaded and sends to the other ranks."""
        run = self._run
        (found,) = run.processes.agree(loaded is not None)
        if found:
            state = run.processes.share(loaded.state if loaded else run.server_state())
            run.restore(state, run.processes.share_rows(loaded.rows if loaded else (), run.row_template))

    def _compare(self, written_with: Mapping[str, Any], round: int) -> None:
        for key, here in self._written_with.items():
            if (there := written_with.get(key)) != here:
                text = f"the checkpoint of round {round} was computed with {key} {there}, but this is {key} {here}"
                warnings.warn(f"{text}: the last bits may differ", RunWarning, stacklevel=2)

    def seconds(self) -> float:
        """Return the seconds computed so far, including those of earlier processes."""
        return self._before + self._elapsed()

    def skip(self, seconds: float) -> None:
        """Leave out seconds that were not the run's."""
        self._began += seconds

    def _elapsed(self) -> float:
        return time.perf_counter() - self._began

    def add(self, row: Row) -> None:
        """Keep a row of metrics; what an earlier process wrote stays as it is."""
        round = int(row["round"])
        self.history += [self._recorded.pop(earlier) for earlier in sorted(self._recorded) if earlier < round]
        recorded = self._recorded.pop(round, None)
        if recorded is not None:
            self.history.append(recorded)
            if _timeless(recorded) != _timeless(row):
                text = f"round {round} was replayed and differs from its row in metrics.jsonl"
                warnings.warn(f"{text}, which was kept", RunWarning, stacklevel=2)
        elif not self._recorded:  # otherwise it was not evaluated when first played, and rows stay in order
            self.history.append(row)
            if self._directory is not None:
                self._directory.append_metrics(row)

    def is_due(self, *, now: bool = False) -> bool:
        """Return whether to checkpoint, by the schedule or ``now``."""
        run, schedule, checkpoints = self._run, self._schedule, self._checkpoints
        if checkpoints is None or schedule.interval.never:
            return False
        if checkpoints.last is not None and checkpoints.last.round == run.round:
            return False
        return now or schedule.is_due(run.round, self._elapsed(), run.unsaved_bytes())

    @property
    def wants_all(self) -> bool:
        """Whether the next checkpoint should hold every row of client state."""
        return self._checkpoints is not None and self._checkpoints.wants_all

    def checkpoint(self, *, every: bool) -> None:
        """Save a checkpoint, with every row of client state or what changed; all ranks must call it."""
        run, schedule = self._run, self._schedule
        if self._directory is None or self._checkpoints is None:
            for _ in run.client_rows(changed=not every):
                pass
            run.settle()
            return
        size, began = run.unsaved_bytes(), self._elapsed()
        self._directory.flush_metrics()
        self._checkpoints.save(
            run.server_state(),
            lambda changed: run.client_rows(changed=changed),
            seconds=self.seconds(),
            records=len(self.history),
            fingerprint=self._fingerprint,
            written_with=self._written_with,
        )
        run.settle()
        schedule.took(self._elapsed() - began, self._elapsed(), size)

    def checkpoint_now(self) -> None:
        """Save a checkpoint, unless checkpoints are off."""
        due, every = self._run.processes.agree(self.is_due(now=True), self.wants_all)
        if due:
            self.checkpoint(every=every)

    def diverged(self) -> None:
        """Record that the run has no result."""
        if self._directory is not None:
            self._directory.write_summary(self._summary() | {"diverged_in_round": self._run.round})

    def finish(self, model: nn.Module) -> None:
        """Write the model, a last checkpoint and the summary."""
        written = {} if self._directory is None else self._directory.write_model(model.state_dict())
        self.checkpoint_now()
        if self._directory is not None:
            spent = {"checkpoint_seconds": self._schedule.spent}  # by this process
            self._directory.write_summary(self._summary() | self.history[-1] | spent | written)

    def _summary(self) -> dict[str, Any]:
        run = self._run
        return {"algorithm": repr(run.algorithm), "engine": run.description(), "versions": environment()}


def _timeless(row: Row) -> Row:
    return {key: value for key, value in row.items() if key != "seconds"}
