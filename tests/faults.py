"""Fault injection: break runs in every way we could think of, resume them, and compare with an unbroken run to the bit.

`python -m tests.faults --kills 70` is the long form (some minutes; as root also on a real disk that is full); the test
suite runs a short one. It prints a table of what was tried, how often, and what was lost.
"""

import argparse
import contextlib
import errno
import io
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file

import kedge
import kedge.files
from kedge.cli.main import execute

STATEFUL = [name for name, kind in kedge.ALGORITHMS.items() if len(kind(eta=0.1).init_client(torch.zeros(1)))]
"""The algorithms whose clients keep something."""

ROUNDS = 3

QUICK = [
    "--dataset", "quadratics", "--clients", "6", "--local-steps", "1", "--batch-size", "full",
    "--eta", "0.01", "--threads", "1", "--checkpoint-every", "1", "--eval-every", "1", "--set", "data.dim=5",
    "--rounds", str(ROUNDS),
]  # fmt: skip
"""A run of some milliseconds."""

LONGER = [
    "--clients", "12", "--local-steps", "4", "--rounds", "60", "--eta", "0.05", "--threads", "1",
    "--checkpoint-every", "3", "--eval-every", "1", "--set", "model.widths=[128]",
]  # fmt: skip
"""A run of about a second, a good part of which is writing."""


def command(algorithm: str, options: list[str], out: Path) -> list[str]:
    """Return the arguments of `kedge run`."""
    cohort = "all" if kedge.ALGORITHMS[algorithm].full_participation else "4"
    return ["run", "--algorithm", algorithm, "--cohort", cohort, *options, "--out", str(out)]


@dataclass(frozen=True)
class Left:
    """What a finished run has left, but for the clock."""

    model: bytes
    metrics: list[dict[str, float]]
    state: dict[str, list[float]]

    @classmethod
    def by(cls, path: Path) -> "Left":
        rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        for row in rows:
            del row["seconds"]
        return cls((path / "model.safetensors").read_bytes(), rows, last_state(path))


def manifests(path: Path) -> list[Path]:
    return sorted((path / "checkpoint").glob("round-*.json"))


def last_state(path: Path) -> dict[str, list[float]]:
    """Read the last checkpoint as its documentation says, without the library's own reader."""
    state: dict[str, list[float]] = {}
    for file in json.loads(manifests(path)[-1].read_text())["files"]:
        tensors = load_file(path / "checkpoint" / file["name"])
        clients = tensors.pop("clients", None)
        for name, tensor in tensors.items():
            if clients is None:
                state[name] = tensor.tolist()
            else:
                state |= {f"{client}.{name}": row.tolist() for client, row in zip(clients, tensor, strict=True)}
    return state


@dataclass
class Fault:
    """A row of the table."""

    name: str
    tried: int = 0
    hit: int = 0  # where a fault may come too late, how often it did not
    lost: list[int] = field(default_factory=list)  # rounds that had to be played again
    within: int = 0  # how often a file was being written

    def and_(self, other: "Fault") -> "Fault":
        return Fault(self.name, self.tried + other.tried, self.hit + other.hit, self.lost + other.lost)

    def row(self) -> str:
        lost = f"{max(self.lost)} ({sum(self.lost) / len(self.lost):.1f})" if self.lost else "-"
        name = f"{self.name}, {self.within} of them within a write" if self.within else self.name
        return f"| {name} | {self.tried} | {self.hit} | {lost} | none |"


def progress(path: Path) -> tuple[int, int]:
    """Return the last round in the metrics and the last round that has a checkpoint."""
    file = path / "metrics.jsonl"
    lines = file.read_bytes().count(b"\n") if file.exists() else 0
    return lines, int(manifests(path)[-1].stem.split("-")[1]) if manifests(path) else 0


def run_here(arguments: list[str]) -> tuple[int, str]:
    """Run the command line in this process; return its exit code and what it said."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = execute(arguments)
    return code, said.getvalue()


def finish(path: Path, whole: Left) -> str:
    """Resume a run to its end, and hold it against the unbroken one."""
    code, said = run_here(["resume", str(path)])
    assert code == 0, said
    left = Left.by(path)
    assert left.metrics == whole.metrics, path
    assert left.model == whole.model, path
    assert left.state == whole.state, path
    assert not list(path.rglob("*.part")), path
    return said


# Processes that are killed. A clean server process forks them, so that they start at once.


def _child(arguments: list[str]) -> None:
    quiet = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(quiet, stream)
    torch.set_num_threads(1)
    os._exit(execute(arguments))


def signalled(arguments: list[str], number: int, delay: float, begun: Path | None = None) -> int:
    """Run the command line in a process of its own and send it a signal; return its exit code.

    The delay counts from the moment on when the file ``begun`` is replaced: the rounds then begin.
    """
    before = begun.stat().st_mtime_ns if begun is not None and begun.exists() else 0
    process = _PROCESSES.Process(target=_child, args=(arguments,))
    process.start()
    while begun is not None and process.is_alive() and not (begun.exists() and begun.stat().st_mtime_ns > before):
        time.sleep(0.001)
    process.join(delay)
    if process.is_alive():
        os.kill(process.pid, number)
    process.join(120)
    assert process.exitcode is not None, "it does not end"
    return process.exitcode


_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["tests.warm"])


def kill(work: Path, count: int, algorithms: list[str], number: int, codes: set[int], dice: random.Random) -> Fault:
    """Send a signal at random moments until ``count`` have struck, resuming after each."""
    fault, struck = Fault(f"{signal.Signals(number).name} at a random moment"), dict.fromkeys(algorithms, 0)
    wholes, seconds = {}, {}
    for name in algorithms:
        path = work / name / "whole"
        assert signalled(command(name, LONGER, path), number, 120) == 0
        wholes[name] = Left.by(path)
        seconds[name] = json.loads((path / "summary.json").read_text())["seconds"]
    turn = 0
    while fault.hit < count:
        name = algorithms[turn % len(algorithms)]
        path = work / name / f"{number}-{turn}"
        turn += 1
        span, before = 0.5 * seconds[name], 0
        while not (path / "summary.json").exists():
            resumable = (path / "config.toml").exists()
            arguments = ["resume", str(path)] if resumable else command(name, LONGER, path)
            # Mostly while rounds are played, sometimes while all is being prepared.
            begun = path / "config.toml" if dice.random() < 0.85 else None
            if fault.hit >= count:
                break
            code = signalled(arguments, number, dice.uniform(0, span), begun)
            fault.tried += 1
            assert code in codes | {0}, code
            if code:
                fault.hit += 1
                struck[name] += 1
                fault.within += any(path.rglob("*.part"))
                played, saved = progress(path)
                # A machine that has become slower must not be killed before its first checkpoint for ever.
                span, before = (span if saved > before else 1.3 * span), saved
                if number == signal.SIGKILL:
                    fault.lost.append(max(0, played - saved))
                elif code > 0 and saved:
                    assert played == saved, "a checkpoint of the last round"
                    fault.lost.append(0)
        if (path / "config.toml").exists():
            finish(path, wholes[name])
            shutil.rmtree(path)
    print(f"{fault.name}: {', '.join(f'{name} {times}' for name, times in struck.items())}\n")
    return fault


# Calls of the system that fail.


class FailingOs:
    """`os`, of which the n-th of the calls that change files fails."""

    CALLS = ("makedirs", "mkdir", "open", "write", "fsync", "replace", "unlink", "ftruncate")

    def __init__(self, fails: int = 0, code: int = errno.ENOSPC, torn: bool = False) -> None:
        self.count, self._fails, self._code, self._torn = 0, fails, code, torn
        self.failed = ""

    def __getattr__(self, name: str):
        real = getattr(os, name)
        if name not in self.CALLS:
            return real

        def call(*arguments, **options):
            if name == "open" and arguments[1] & os.O_NONBLOCK:  # to read
                return real(*arguments, **options)
            self.count += 1
            if self.count != self._fails:
                return real(*arguments, **options)
            self.failed = name
            if name == "write" and self._torn:
                real(arguments[0], arguments[1][: len(arguments[1]) // 2])
            raise OSError(self._code, os.strerror(self._code))

        return call


@contextlib.contextmanager
def failing(system: FailingOs) -> Iterator[FailingOs]:
    real, kedge.files.os = kedge.files.os, system
    try:
        yield system
    finally:
        kedge.files.os = real


def fail_writes(work: Path, torn: Callable[[int], bool]) -> list[Fault]:
    """Make every call that changes a file fail, one a run: of a new run, and of a resumed one with a torn row."""
    whole_path = work / "whole"
    with failing(FailingOs()) as system:
        assert run_here(command("scaffold-m", QUICK, whole_path))[0] == 0
    whole, faults = Left.by(whole_path), []

    def fresh(path: Path) -> list[str]:
        return command("scaffold-m", QUICK, path)

    def stopped(path: Path) -> list[str]:
        shutil.copytree(whole_path, path)
        (path / "model.safetensors").unlink()
        (path / "summary.json").unlink()
        for file in (path / "checkpoint").glob(f"*-{ROUNDS:08d}*"):
            file.unlink()
        content = (path / "metrics.jsonl").read_bytes()
        (path / "metrics.jsonl").write_bytes(content[:-20])
        return ["resume", str(path)]

    for title, prepare in (("a new run", fresh), ("a resumed run", stopped)):
        fault = Fault(f"every call that changes a file fails in turn, {title}")
        number = 0
        while True:
            number += 1
            path = work / f"{title.split()[1]}-{number}"
            arguments = prepare(path)
            code = (errno.ENOSPC, errno.EROFS, errno.EIO)[number % 3]
            with failing(FailingOs(number, code, torn(number))) as system:
                ended, said = run_here(arguments)
            if not system.failed:
                break
            fault.tried += 1
            fault.hit += 1
            assert ended == 1, (system.failed, ended, said)
            assert str(path) in said, said
            assert os.strerror(code) in said, said
            assert said.count("\n") == 1, said
            played, saved = progress(path)
            fault.lost.append(played - saved)
            resume_or_run(path, whole)
            shutil.rmtree(path)
        faults.append(fault)
    return faults


def resume_or_run(path: Path, whole: Left) -> str:
    """Finish a broken run as a user would."""
    if (path / "config.toml").exists():
        return finish(path, whole)
    code, said = run_here(command("scaffold-m", QUICK, path))
    assert code == 0, said
    assert Left.by(path) == whole
    return said


# Files that are damaged while nothing runs.


def damage(work: Path, dice: random.Random) -> list[Fault]:
    """Flip a byte of, cut, and remove every file of a checkpoint; then of all checkpoints; then cut the metrics."""
    stopped = work / "damaged"
    whole_path = work / "undamaged"
    assert run_here(command("scaffold-m", QUICK, whole_path))[0] == 0
    whole = Left.by(whole_path)
    faults = []

    def flip(file: Path) -> None:
        content = bytearray(file.read_bytes())
        content[dice.randrange(len(content))] ^= dice.randrange(1, 256)
        file.write_bytes(content)

    def shorten(file: Path) -> None:
        os.truncate(file, dice.randrange(file.stat().st_size))

    def again(fault: Fault, spoil: Callable[[], None]) -> None:
        shutil.copytree(whole_path, stopped)
        (stopped / "summary.json").unlink()
        spoil()
        fault.tried += 1
        said = finish(stopped, whole)
        start = re.search(r"the run (?:goes on|starts again) from round (\d)\n", said)
        fault.hit += start is not None
        fault.lost.append(ROUNDS - int(start[1]) if start else 0)
        shutil.rmtree(stopped)

    names = [file["name"] for file in json.loads(manifests(whole_path)[-1].read_text())["files"]]
    for title, spoil in (("a changed byte", flip), ("a cut file", shorten), ("a missing file", Path.unlink)):
        fault = Fault(f"{title} in the last checkpoint")
        for name in [*names, manifests(whole_path)[-1].name]:
            again(fault, lambda name=name, spoil=spoil: spoil(stopped / "checkpoint" / name))
        faults.append(fault)
    fault = Fault("a changed byte in every file of both checkpoints")
    again(fault, lambda: [flip(file) for file in (stopped / "checkpoint").iterdir()])
    faults.append(fault)
    fault = Fault("metrics.jsonl cut at a random byte")
    for _ in range(10):
        again(fault, lambda: shorten(stopped / "metrics.jsonl"))
    faults.append(fault)
    return faults


# A disk that is full, really.


def fill_disk(work: Path) -> list[Fault]:
    """Run in a memory disk of which less and less is free. Only root can make one."""
    disk = work / "disk"
    disk.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=False).returncode:
        return []
    fault, readonly = Fault("a full disk (tmpfs)"), Fault("a disk that became read-only (tmpfs)")
    path, ballast = disk / "run", disk / "ballast"
    try:
        assert run_here(command("scaffold-m", QUICK, path))[0] == 0
        whole = Left.by(path)
        shutil.rmtree(path)
        for free in range(0, 100, 4):
            total = os.statvfs(disk)
            ballast.write_bytes(bytes(total.f_bavail * total.f_frsize - 1024 * free))
            code, said = run_here(command("scaffold-m", QUICK, path))
            fault.tried += 1
            if code:
                fault.hit += 1
                assert code == 1, said
                assert str(path) in said, said
                assert os.strerror(errno.ENOSPC) in said, said
                played, saved = progress(path)
                fault.lost.append(max(0, played - saved))
            ballast.unlink()
            resume_or_run(path, whole)
            if not code:
                (path / "summary.json").unlink()
                subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
                code, said = run_here(["resume", str(path)])
                subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
                readonly.tried += 1
                readonly.hit += 1
                assert code in (1, 2), said
                assert f"{path} cannot be written" in said, said
                readonly.lost.append(0)
                finish(path, whole)
            shutil.rmtree(path)
    finally:
        subprocess.run(["umount", disk], check=True)
    return [fault, readonly]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=60, help="how often SIGKILL must strike")
    parser.add_argument("--signals", type=int, default=10, help="how often SIGTERM and Ctrl-C must strike, each")
    parser.add_argument("--algorithms", default=",".join(STATEFUL), help="to kill; by default all with client state")
    parser.add_argument("--short", action="store_true", help="every failing call only once, and mount no disk")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dice, algorithms = random.Random(options.seed), options.algorithms.split(",")
    memory = Path("/dev/shm")  # where to flush takes no time
    with tempfile.TemporaryDirectory(dir=memory if options.short and memory.is_dir() else None) as name:
        work = Path(name)
        faults = [kill(work / "kill", options.kills, algorithms, signal.SIGKILL, {-signal.SIGKILL}, dice)]
        if options.signals:
            term, interrupt = {128 + signal.SIGTERM, -signal.SIGTERM}, {128 + signal.SIGINT}
            faults.append(kill(work / "term", options.signals, algorithms[:1], signal.SIGTERM, term, dice))
            faults.append(kill(work / "int", options.signals, algorithms[:1], signal.SIGINT, interrupt, dice))
        failed = fail_writes(work / "writes", lambda number: number % 2 == 0)
        if not options.short:
            more = fail_writes(work / "writes-torn", lambda number: number % 2 == 1)
            failed = [one.and_(other) for one, other in zip(failed, more, strict=True)]
        faults += failed
        faults += damage(work, dice)
        faults += [] if options.short else fill_disk(work)
    print("| fault | tried | struck | rounds played again, most (mean) | difference in the end |")
    print("|---|---|---|---|---|")
    print("\n".join(fault.row() for fault in faults))


if __name__ == "__main__":
    sys.exit(main())
