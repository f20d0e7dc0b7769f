"""Processes that a signal strikes at random moments. A clean server process forks them, so that they start at once."""

import json
import multiprocessing
import os
import random
import shutil
import signal
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

import kedge.files
from kedge.cli.program import execute
from tests.broken import LONGER, Fault, Left, command, finish, progress


def _child(arguments: list[str]) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever started this may ignore them, as nohup does
    signal.signal(signal.SIGINT, signal.default_int_handler)
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
    that was compared: the same command continues from there.
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
        head = "| algorithm | struck | before round 1 | within a write | runs | played again, most (mean) | changed |"
        return "\n".join([head, "|---" * 7 + "|", *(struck.row(name) for name, struck in self.struck.items())])
