"""Jobs in separate processes, which end when killed or when their parent ends.

A pool of `concurrent.futures` breaks when one of its processes is killed, by the system for lack of memory say; here
only the job that ran in it is lost, and another process takes its place.
"""

import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import torch

from kedge.errors import RunWarning
from kedge.runs.config import Config
from kedge.runs.rank import end_with_parent
from kedge.runs.reader import Row

PATIENCE = 0.1
"""Seconds between two checks whether to stop."""

STOP_SIGNALS = {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}


@dataclass(frozen=True)
class QueuedRun:
    """A run and its directory; jobs with the same ``problem`` have the same data and model."""

    name: str
    path: Path
    config: Config
    problem: str


class Played(NamedTuple):
    """A job has played a round."""

    round: int
    row: Row | None


class Warned(NamedTuple):
    """A job has a message."""

    text: str


class Ended(NamedTuple):
    """A job has ended, or was stopped; ``error`` says why it failed."""

    error: str | None = None


Message = Played | Warned | Ended
Send = Callable[[Message], None]
Stop = Callable[[], bool]
Play = Callable[[QueuedRun, Send, Stop], None]
"""Plays a job, sending messages of which the last is that it ended; a function that another process can import."""


class _Worker:
    """A process and what it is doing."""

    def __init__(self, play: Play) -> None:
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(play, theirs), daemon=True)
        with _deaf():
            self.process.start()
        theirs.close()
        self.job: QueuedRun | None = None
        self.problem: str | None = None

    def begin(self, job: QueuedRun) -> None:
        self.job, self.problem = job, job.problem
        with suppress(OSError):  # it has died, and `receive` finds out
            self.connection.send(job)

    def receive(self) -> Message:
        try:
            message: Message = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            return Ended(_how(self.process.exitcode))
        return message

    def ask_to_stop(self) -> None:
        with suppress(OSError):
            self.connection.send(None)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()
        self.process.close()


def run_in_processes(
    play: Play, jobs: Sequence[QueuedRun], count: int, report: Callable[[str, Message], None], stop: Stop
) -> None:
    """Play the jobs, ``count`` at once, and report what they send, each with its name.

    When ``stop`` says so, or at Ctrl-C, every job is asked to stop and waited for; a second Ctrl-C ends them at once.
    """
    waiting = list(jobs)
    workers: list[_Worker] = []
    stopping = False

    def go_on() -> bool:
        """Give work to idle processes and listen to busy ones; return False when none is busy."""
        for place in range(min(count, len(waiting) + len(workers)) if not stopping else 0):
            if place == len(workers):
                workers.append(_Worker(play))
            if waiting and workers[place].job is None:
                workers[place].begin(_take(waiting, workers[place].problem))
        busy = [worker for worker in workers if worker.job is not None]
        heard = wait([worker.connection for worker in busy], PATIENCE) if busy else []
        for worker in busy:
            if worker.connection not in heard:
                continue
            job, message = worker.job, worker.receive()
            assert job is not None
            if isinstance(message, Ended):
                worker.job = None
                if not worker.process.is_alive():
                    workers.remove(worker)
                    worker.end()
            report(job.name, message)
        return bool(busy)

    def ask_all() -> None:
        nonlocal stopping
        stopping = True
        for worker in workers:
            worker.ask_to_stop()

    try:
        try:
            while go_on():
                if not stopping and stop():
                    ask_all()
        except KeyboardInterrupt:
            if stopping:
                raise
            ask_all()
            while go_on():
                pass
            raise
    finally:
        for worker in workers:
            worker.end()


def _take(waiting: list[QueuedRun], problem: str | None) -> QueuedRun:
    """Take the next job, if there is one of those whose data the process has already loaded."""
    place = next((place for place, job in enumerate(waiting) if job.problem == problem), 0)
    return waiting.pop(place)


def _how(code: int | None) -> str:
    if code is not None and code < 0:
        with suppress(ValueError):
            return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended with exit code {code}"


@contextmanager
def _deaf() -> Iterator[None]:
    """Start a process that ignores Ctrl-C, which a terminal sends to all: the parent passes it on."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(play: Play, connection: "Connection[Message, QueuedRun | None]") -> None:
    """Play one job after another until there is none; any message while one is running asks it to stop."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    end_with_parent()
    threading.Thread(target=_die_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    warnings.simplefilter("always", RunWarning)
    show = warnings.showwarning

    def tell(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, RunWarning):
            connection.send(Warned(str(message)))
        else:
            show(message, category, *place, **more)

    warnings.showwarning = tell
    with suppress(EOFError, OSError):
        while (job := connection.recv()) is not None:
            play(job, connection.send, connection.poll)


def _die_with_parent() -> None:
    """End this process when its parent ends: its reports would go nowhere, and the next call needs the directory."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
