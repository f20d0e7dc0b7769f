"""Fault injection: break runs in every way we could think of, resume them, and compare with an unbroken run to the bit.

`python -m tests.faults --kills 70` is the long form (some minutes; as root also on a real disk that is full); the test
suite runs a short one. It prints a table of what was tried, how often, and what was lost.
"""

import argparse
import contextlib
import errno
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

import kedge.files
from tests.broken import QUICK, ROUNDS, STATEFUL, Fault, Left, command, finish, manifests, progress, run_here
from tests.kills import Kills

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
        start = re.search(r"the run (?:resumes|starts again) from round (\d)\n", said)
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
    parser.add_argument("--out", type=Path, help="a JSON file for the kills done so far, to continue another time")
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
