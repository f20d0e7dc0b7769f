"""Several processes for one run on this machine: start them, and restart them when one dies.

Every process runs `kedge resume DIRECTORY`; its environment says which one it is. They talk over socket pairs that they
inherit, so nothing listens anywhere. torchrun starts them on many machines: see docs/distributed.md.
"""

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import torch

from kedge.errors import UsageError
from kedge.runs import rank as program
from kedge.runs.joining import JOINED, LEFT, LOST, SOCKETS
from kedge.runs.stalls import Silence
from kedge.simulator.checkpoint import Checkpoints
from kedge.simulator.transport import mesh

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

TRIES = 2
"""How often in a row the processes may die without progress."""

PATIENCE = 0.1
"""Seconds between two looks at the processes."""

FAREWELL, SHORT_FAREWELL = 30.0, 2.0
"""Seconds the others have to exit by themselves after one failed for a reason that all may share, or died."""

TERMINALS = {signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGINT)}
"""Signals that a terminal sends to all processes: only the launcher handles them, and passes them on."""

FILES = 64
"""How many files this process may have open in addition to the sockets."""


class Failure(NamedTuple):
    """The process that ended the others, and how it ended; no code means it does not answer."""

    rank: int
    code: int | None

    @property
    def has_said_why(self) -> bool:
        """Whether the cause was its own."""
        return self.code is not None and self.code > 0 and self.code != LOST

    def __str__(self) -> str:
        if self.code is None:
            return "does not answer"
        if self.code == LOST:
            return "lost another process"
        with suppress(ValueError):
            return f"was ended by {signal.Signals(-self.code).name}"
        return f"was ended by signal {-self.code}"


def launch(
    directory: Path,
    checkpoints: Path,
    workers: int,
    say: Callable[[str], None],
    *,
    options: Sequence[str],
    stall_timeout: float,
    stop: Callable[[], bool],
) -> int:
    """Play the run in ``directory`` in ``workers`` processes until it is over; return the exit code.

    ``options`` are those of `kedge resume`. When ``stop`` returns True, the processes stop after their round.
    """
    reached, idle = -1, 0
    while True:
        with _started(["resume", *options, "--", str(directory)], workers) as processes:
            failure = _watch(processes, stall_timeout, say, stop)
        if failure is None:
            return 0
        if failure.has_said_why:
            assert failure.code is not None
            return failure.code
        if stop():
            say(f"interrupted; continue with `kedge resume {directory}`")
            return 1
        before, reached = reached, Checkpoints(checkpoints).newest()
        idle = 0 if reached > before else idle + 1
        if idle >= TRIES:
            why = f"{failure} {TRIES} times in a row"
            where = f"before round {max(0, reached) + 1} was saved"
            say(f"process {failure.rank} of {workers} {why} {where}; the run ends here")
            return 1
        say(f"process {failure.rank} of {workers} {failure}; all restart from round {max(0, reached)}")


class _Process(NamedTuple):
    process: subprocess.Popen[bytes]
    socket: socket.socket


@contextmanager
def _started(arguments: Sequence[str], workers: int) -> Iterator[list[_Process]]:
    """Start the processes, each with a socket to every other one and to this one; none is left at the end."""
    processes: list[_Process] = []
    _allow_files(workers * (workers + 1) + FILES)
    # They import from where this process does.
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(str(Path(path).absolute()) for path in sys.path),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, torch.get_num_threads() // workers))),
        "WORLD_SIZE": str(workers),
    }
    try:
        for rank, peers in enumerate(mesh(workers)):
            ours, theirs = socket.socketpair()
            inherited = [peer.fileno() for _, peer in sorted(peers.items())]
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), SOCKETS: " ".join(map(str, inherited))}
            command = [sys.executable, "-P", program.__file__, str(theirs.fileno()), *arguments]
            with theirs, _unheard(TERMINALS):
                process = subprocess.Popen(command, env=environment | own, pass_fds=[theirs.fileno(), *inherited])
            processes.append(_Process(process, ours))
            for peer in peers.values():
                peer.close()
    except OSError as error:
        _end(processes)
        raise UsageError(f"workers is {workers}, but that many cannot be started: {error.strerror}") from error
    try:
        yield processes
    finally:
        _end(processes)


def _end(processes: Sequence[_Process]) -> None:
    for process, _ in processes:
        process.kill()
    for process, end in processes:
        process.wait()
        end.close()


def _allow_files(count: int) -> None:
    if resource is not None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY and soft < count:
            with suppress(ValueError, OSError):  # then a socket says what is missing
                resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


@contextmanager
def _unheard(signals: set[signal.Signals]) -> Iterator[None]:
    """Start a process that never hears these signals."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _watch(
    processes: Sequence[_Process], stall_timeout: float, say: Callable[[str], None], stop: Callable[[], bool]
) -> Failure | None:
    """Wait until all processes have ended well, or return the failure of one."""
    silence = Silence(len(processes), stall_timeout, say, playing=False)
    asked, first, deadline = False, None, float("inf")
    with selectors.DefaultSelector() as selector:
        for rank, (_, end) in enumerate(processes):
            selector.register(end, selectors.EVENT_READ, rank)
        while True:
            for key, _ in selector.select(PATIENCE):
                signs = _signs(processes[key.data].socket)
                if not signs:  # it has ended
                    selector.unregister(key.fileobj)
                    continue
                silence.heard(key.data)
                for sign, plays in ((JOINED, True), (LEFT, False)):
                    if sign in signs:
                        silence.plays(key.data, plays)
            codes = [process.poll() for process, _ in processes]
            failed = [Failure(rank, code) for rank, code in enumerate(codes) if code]
            for rank, code in enumerate(codes):
                if code is not None:
                    silence.ended(rank)
            if failed and first is None:
                first = min(failed, key=lambda failure: failure.code == LOST)
                deadline = time.monotonic() + (FAREWELL if first.has_said_why else SHORT_FAREWELL)
            if None not in codes or time.monotonic() >= deadline:
                # A process that lost another one is not the cause, though it may have ended first.
                return min(failed, key=lambda failure: (failure.code == LOST, failure != first), default=None)
            if not asked and stop():
                asked = True
                for process, _ in processes:
                    process.terminate()
            if (stalled := silence.look()) is not None:
                return Failure(stalled, None)


def _signs(end: socket.socket) -> bytes:
    """Return the heartbeats; empty if the process has ended."""
    with suppress(OSError):
        return end.recv(4096)
    return b""


def check_workers(workers: int, shards: int) -> None:
    """Refuse more processes than there are shards."""
    if workers > shards:
        raise UsageError(f"workers is {workers}, but must be at most shards, which is {shards}")
    if os.name != "posix":
        raise UsageError(f"workers is {workers}, but must be 1 on this system; torchrun starts several processes")
