"""Run a program and watch the memory of the whole family of its processes."""

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.environments import reason

PERIOD, PERIOD_SHARED = 0.5, 3.0  # seconds between two looks; the second kind costs more


@dataclass
class Finished:
    """What a program printed, and the peaks of its memory in MB: pages counted in every process, or shared out."""

    output: str = ""
    errors: str = ""
    resident: float = 0.0
    proportional: float = 0.0


def run(command: list[str], environment: dict[str, str], timeout: float) -> Finished:
    """Run a program to its end; RuntimeError says in one line why it failed."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)
    finished = Finished()
    deadline = time.monotonic() + timeout
    next_shared = time.monotonic() + PERIOD_SHARED
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                finished.output, finished.errors = process.communicate(timeout=PERIOD)
                break
            now = time.monotonic()
            if now > deadline:
                raise RuntimeError(f"not done after {timeout:g} s")
            resident = family(process.pid)
            finished.resident = max(finished.resident, sum(resident.values()))
            if now > next_shared:
                finished.proportional = max(finished.proportional, sum(map(proportional, resident)))
                next_shared = now + PERIOD_SHARED
    finally:
        if process.poll() is None:
            for pid in family(process.pid) or [process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
    if process.returncode:
        raise RuntimeError(reason(finished.errors))
    return finished


def family(root: int) -> dict[int, float]:
    """Return the processes below one, and itself, with their resident memory in MB; none where there is no /proc."""
    parents, resident = {}, {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = file.read_text().rpartition(")")[2].split()
            pid = int(file.parent.name)
            parents[pid], resident[pid] = int(fields[1]), int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    members = [root] if root in parents else []
    for member in members:
        members += [pid for pid, parent in parents.items() if parent == member]
    return {pid: resident[pid] for pid in members}


def proportional(pid: int) -> float:
    """Return a process's share of memory in MB: a page that n processes share counts 1/n."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 2**10
    return 0.0
