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
from dataclasses import asdict, dataclass, field
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


@dataclass
class Struck:
    """What kills have done to the runs of one algorithm; only runs that were compared in the end count."""

    hit: int = 0
    late: int = 0  # the run was over before
    within: int = 0  # a file was being written
    preparing: int = 0  # no round was played yet
    runs: int = 0
    lost: list[int] = field(default_factory=list)  # rounds that had to be played again

    def add(self, other: "Struck") -> None:
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)

    def row(self, name: str) -> str:
        lost = f"{max(self.lost)} ({sum(self.lost) / len(self.lost):.1f})" if self.lost else "-"
        return f"| {name} | {self.hit} | {self.preparing} | {self.within} | {self.runs} | {lost} | none |"


class Kills:
    """Signals at random moments, as many for every algorithm, resuming after each.

    The n-th signal of an algorithm comes in the n-th of as many equal parts of the time, in random order: so they are
    spread evenly over algorithms and moments, whatever the clock does. ``table`` keeps what was done, after every run
    that was compared: the same command goes on from there.
    """

    def __init__(self, work: Path, count: int, algorithms: list[str], number: int, codes: set[int], seed: int) -> None:
        self.work, self.number, self.codes, self.seed = work, number, codes, seed
        each, more = divmod(count, len(algorithms))
        self.quota = {name: each + (place < more) for place, name in enumerate(algorithms)}
        self.struck = {name: Struck() for name in algorithms}
        self.table: Path | None = None
        self._wholes: dict[str, tuple[Left, float]] = {}

    def run(self, table: Path | None = None) -> Fault:
        """Strike until every algorithm has had its share."""
        self.table = table
        if table is not None and table.exists():
            for name, done in json.loads(table.read_text()).items():
                if name in self.struck:
                    self.struck[name] = Struck(**done)
        while waiting := [name for name in self.quota if self.struck[name].hit < self.quota[name]]:
            name = min(waiting, key=lambda name: self.struck[name].hit / self.quota[name])
            self.struck[name].add(self._one(name))
            if table is not None:
                content = json.dumps({name: asdict(struck) for name, struck in self.struck.items()})
                kedge.files.write_atomically(table.absolute(), content.encode())
        total = Struck()
        for struck in self.struck.values():
            total.add(struck)
        title = f"{signal.Signals(self.number).name} at a random moment"
        return Fault(title, total.hit + total.late, total.hit, total.lost, total.within)

    def _whole(self, name: str) -> tuple[Left, float]:
        """Return what an unbroken run leaves, and the seconds that it takes."""
        if name not in self._wholes:
            path = self.work / name / "whole"
            assert signalled(command(name, LONGER, path), self.number, 600) == 0
            seconds = json.loads((path / "summary.json").read_text())["seconds"]
            self._wholes[name] = Left.by(path), seconds
        return self._wholes[name]

    def _moment(self, name: str, turn: int) -> tuple[float, bool]:
        """Return when the signal comes, as a share of the time of a run, and whether while all is being prepared."""
        dice = random.Random(f"{self.seed} {name} {self.number}")
        parts = list(range(self.quota[name]))
        dice.shuffle(parts)
        own = random.Random(f"{self.seed} {name} {self.number} {turn}")
        return (parts[turn] + own.random()) / self.quota[name], own.random() < 0.15

    def _one(self, name: str) -> Struck:
        """Strike one run until it is over or the algorithm has had its share, and compare it."""
        whole, seconds = self._whole(name)
        struck, first = Struck(runs=1), self.struck[name].hit
        path = self.work / name / f"{self.number}-{first}"
        # So much of it, that a run is struck about twice, and gets on in between.
        span, before, patience = 0.5 * seconds, 0, 1.0
        while not (path / "summary.json").exists() and first + struck.hit < self.quota[name]:
            share, early = self._moment(name, first + struck.hit)
            resumable = (path / "config.toml").exists()
            arguments = ["resume", str(path)] if resumable else command(name, LONGER, path)
            begun = None if early else path / "config.toml"
            code = signalled(arguments, self.number, patience * share * span, begun)
            assert code in self.codes | {0}, code
            if not code:
                struck.late += 1
                continue
            struck.hit += 1
            struck.within += any(path.rglob("*.part"))
            played, saved = progress(path)
            struck.preparing += not played
            # A machine that has become slower must not be struck before its first checkpoint for ever.
            patience, before = (patience if saved > before else 1.3 * patience), saved
            if self.number == signal.SIGKILL:
                struck.lost.append(max(0, played - saved))
            elif code > 0 and saved:
                assert played == saved, "a checkpoint of the last round"
                struck.lost.append(0)
        if (path / "config.toml").exists():
            finish(path, whole)
        else:  # it was struck before it had begun
            assert signalled(command(name, LONGER, path), self.number, 600) == 0
            assert Left.by(path) == whole
        shutil.rmtree(path)
        return struck

    def rows(self) -> str:
        """Return a table of all algorithms."""
        head = "| algorithm | struck | before the first round | within a write | runs | played again, most (mean) | difference |"
        return "\n".join([head, "|---" * 7 + "|", *(struck.row(name) for name, struck in self.struck.items())])


# Calls of the system that fail.


class FailingOs:
    """`os`, of which the n-th of the calls that change files fails."""

    CALLS = ("makedirs", "open", "write", "fsync", "replace", "unlink", "truncate")

    def __init__(self, fails: int = 0, code: int = errno.ENOSPC, torn: bool = False) -> None:
        self.count, self._fails, self._code, self._torn = 0, fails, code, torn
        self.failed = ""

    def __getattr__(self, name: str):
        real = getattr(os, name)
        if name not in self.CALLS:
            return real

        def call(*arguments, **options):
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
    parser.add_argument("--kills", type=int, default=60, help="how often SIGKILL must strike, over all algorithms")
    parser.add_argument("--signals", type=int, default=10, help="how often SIGTERM, SIGHUP and Ctrl-C must, each")
    parser.add_argument("--algorithms", default=",".join(STATEFUL), help="to kill; by default all with client state")
    parser.add_argument("--out", type=Path, help="a JSON file for the kills done so far, to go on with another time")
    parser.add_argument("--short", action="store_true", help="every failing call only once, and mount no disk")
    parser.add_argument("--only-kills", action="store_true", help="nothing but SIGKILL")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dice, algorithms = random.Random(options.seed), options.algorithms.split(",")
    memory = Path("/dev/shm")  # where to flush takes no time
    with tempfile.TemporaryDirectory(dir=memory if options.short and memory.is_dir() else None) as name:
        work = Path(name)
        kills = Kills(work / "kill", options.kills, algorithms, signal.SIGKILL, {-signal.SIGKILL}, options.seed)
        faults = [kills.run(options.out)]
        print(f"{kills.rows()}\n")
        if options.signals and not options.only_kills:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                codes = {128 + number} | ({-number} if number != signal.SIGINT else set())
                place = work / f"signal-{number}"
                faults.append(Kills(place, options.signals, algorithms[:1], number, codes, options.seed).run())
        faults += [] if options.only_kills else others(work, dice, short=options.short)
    print("| fault | tried | struck | rounds played again, most (mean) | difference in the end |")
    print("|---|---|---|---|---|")
    print("\n".join(fault.row() for fault in faults))


def others(work: Path, dice: random.Random, *, short: bool) -> list[Fault]:
    """Break calls and files instead of processes."""
    faults = fail_writes(work / "writes", lambda number: number % 2 == 0)
    if not short:
        more = fail_writes(work / "writes-torn", lambda number: number % 2 == 1)
        faults = [one.and_(other) for one, other in zip(faults, more, strict=True)]
    return [*faults, *damage(work, dice), *([] if short else fill_disk(work))]


if __name__ == "__main__":
    sys.exit(main())
