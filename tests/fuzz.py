"""Feed all that kedge reads with what nobody meant: no traceback, no hang, nothing written elsewhere, no code run.

`python -m tests.fuzz` is the long form: 100,000 inputs. The test suite runs a short one. An input is its target, its
number and the seed: `--only manifest --first 123 --inputs 1` repeats one. `--state FILE` continues a fuzz that was
stopped.
"""

import argparse
import builtins
import contextlib
import io
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from kedge.cli.program import execute
from kedge.errors import UsageError
from kedge.problem.datasets.cifar import read_binary, read_pickled
from kedge.problem.datasets.mnist import read_idx
from kedge.problem.datasets.npz import load as load_npz
from kedge.reproduce.experiment import read_own
from kedge.reproduce.plan import Plan, name_of
from kedge.reproduce.rehearsal import check_plan
from kedge.runs.config import check, resolved
from kedge.runs.grid import Choices, parse_grid, point_name
from kedge.runs.sweep import SweepPlan, read_plan
from kedge.runs.toml import load_toml
from tests import forge

PATIENCE = 5
"""Seconds of computing that an input may take."""

SAVED = 200
"""After so many inputs the state is saved."""

Feed = Callable[[random.Random, Path], bool]
"""Feeds one input, made by these dice, within this folder; returns whether it was taken."""


class HangError(BaseException):
    """An input has taken too long."""


class Guard:
    """Sees what this process does to files, and that it starts nothing and calls nobody."""

    WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.symlink", "os.link", "os.chmod")
    STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork")

    def __init__(self) -> None:
        self.inside: Path | None = None
        self.seen: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.inside is None:
            return
        if event in self.STARTS:
            self.seen.append(f"{event} {arguments[:2]}")
        elif event in ("socket.connect", "socket.getaddrinfo"):
            raise OSError("there is no network here")
        elif event == "open" and isinstance(arguments[2], int) and arguments[2] & self.WRITES:
            self._look(event, arguments[0])
        elif event in self.CHANGES:
            for path in arguments[: 2 if event in ("os.rename", "os.link") else 1]:
                self._look(event, path)

    def _look(self, event: str, path: Any) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return  # a file that is open already
        # The folder of a file may be a link, the file itself is meant as it is.
        meant = Path(os.fsdecode(path))
        place = meant.parent.resolve() / meant.name
        if str(place) != os.devnull and self.inside not in place.parents:
            self.seen.append(f"{event} {place}")


GUARD = Guard()


def said_by(arguments: list[str]) -> int:
    """Run the command line; return its exit code. What it says are sentences, and it says why it refuses."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = execute(arguments)
    sentences = said.getvalue().splitlines()
    assert code in (0, 1, 2), (code, sentences)
    assert code == 0 or sentences, "it refuses without a word"
    assert not any("Traceback" in line for line in sentences), sentences
    assert code != 2 or len([line for line in sentences if line.startswith("kedge: ")]) >= 1, sentences
    return code


def _toml(dice: random.Random, folder: Path) -> bool:
    file = folder / "config.toml"
    file.write_bytes(forge.toml(dice))
    resolved(check(load_toml(file)))
    return True


def _refusing(folder: Path) -> Path:
    """Return a directory that no command takes: what precedes is checked, and nothing is run."""
    (folder / "used").mkdir(exist_ok=True)
    (folder / "used" / "file").touch()
    return folder / "used"


def _set(dice: random.Random, folder: Path) -> bool:
    settings = [part for _ in range(dice.randrange(1, 3)) for part in ("--set", forge.setting(dice))]
    return said_by(["run", *settings, "--out", str(_refusing(folder))]) == 0


def _options(dice: random.Random, folder: Path) -> bool:
    command = dice.choice(["run", "compare", "sweep", "partition", "resume", "algorithms"])
    # Options that end a command, or let it run, stand last: the last one counts.
    end = {"partition": ["--out", "."], "algorithms": ["--detail", "none"], "resume": [str(folder / "none")]}
    return said_by([command, *forge.arguments(dice), *end.get(command, ["--out", str(_refusing(folder))])]) == 0


def _grid(dice: random.Random, folder: Path) -> bool:
    axes = parse_grid(forge.grid(dice))
    plan = SweepPlan({}, axes)
    for key, axis in axes.items():
        assert repr(parse_grid([f"{key}={axis}"])) == repr({key: axis}), "what is written is read"
    plan.check()
    first = {key: axis.values[0] for key, axis in axes.items() if isinstance(axis, Choices)}
    assert "/" not in point_name(first)
    plan.config(first)
    return True


def _sweep(dice: random.Random, folder: Path) -> bool:
    grids = ", ".join(forge.text_of(text) for text in forge.grid(dice))
    about = f"[sweep]\ngrid = [{grids}]\nseeds = {forge.value(dice)}\n".encode("utf-8", "surrogatepass")
    (folder / "sweep.toml").write_bytes(forge.mutated(about, dice) if dice.random() < 0.5 else about + forge.toml(dice))
    read_plan(folder).check()
    return True


def _study(dice: random.Random, folder: Path) -> bool:
    file = folder / "study.toml"
    file.write_bytes(forge.study(dice))
    experiment = read_own(file)
    assert re.fullmatch(r"[\w.-]+", experiment.name)
    for scale in experiment.scales:
        plan = Plan(experiment, scale, own=True)
        check_plan(plan)
        for case in plan.cases():
            config = plan.final(case, plan.grid(case)[0], 0)
            assert "/" not in name_of("run", case, plan.grid(case)[0], 0)
            plan.search(case, plan.grid(case)[0], 0)
            resolved(config)
    return True


def _idx(dice: random.Random, folder: Path) -> bool:
    name, content = forge.idx(dice)
    (folder / name).write_bytes(content)
    read_idx(folder / name)
    return True


def _cifar(dice: random.Random, folder: Path) -> bool:
    pickled, content = forge.cifar(dice)
    (folder / "batch").write_bytes(content)
    (read_pickled if pickled else read_binary)(folder / "batch")
    return True


def _npz(dice: random.Random, folder: Path) -> bool:
    (folder / "data.npz").write_bytes(forge.npz(dice))
    load_npz(folder / "data.npz")
    return True


def _run(dice: random.Random, folder: Path) -> bool:
    (folder / "config.toml").write_text(forge.run_config(dice))
    return said_by(["run", str(folder / "config.toml"), "--out", str(folder / "out")]) == 0


# Directories of runs that somebody sent.

TINY = ["--dataset", "quadratics", "--clients", "4", "--cohort", "2", "--local-steps", "1", "--batch-size", "full",
        "--eta", "0.01", "--threads", "1", "--eval-every", "1", "--checkpoint-every", "1", "--set",
        "data.dim=3"]  # fmt: skip

_BASES: dict[bool, forge.Files] = {}


def base(finished: bool) -> forge.Files:
    """Return the files of a run of three rounds, finished or not."""
    if finished not in _BASES:
        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / "run"
            assert said_by(["run", *TINY, "--rounds", "3", "--out", str(path)]) == 0
            files = {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
        if not finished:
            files = {name: content for name, content in files.items() if "summary" not in name and "model" not in name}
            files["config.toml"] = files["config.toml"].replace(b"rounds = 3", b"rounds = 4")
        _BASES[finished] = files
    return _BASES[finished]


def _resume(make: Callable[[forge.Files, random.Random], forge.Files], finished: bool | None = None) -> Feed:
    def feed(dice: random.Random, folder: Path) -> bool:
        ended = dice.random() < 0.3 if finished is None else finished
        files = make(base(ended), dice)
        for name, content in files.items():
            path = folder / "run" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        more = ["--rounds", "5"] if dice.random() < 0.3 else []
        return said_by(["resume", str(folder / "run"), *more]) == 0

    return feed


CANARY = "import builtins\nbuiltins.kedge_canary = True\nfrom kedge import FedAvg as X\n"


def _configuration(files: forge.Files, dice: random.Random) -> forge.Files:
    """Forge `config.toml`, sometimes so that it names a file of the directory as code."""
    own = dice.choice(["code.py", "notes.txt", "model.safetensors"])
    here = os.environ["KEDGE_FUZZ"]
    content = files["config.toml"]
    if dice.random() < 0.3:
        content = content.replace(b'name = "scaffold-m"', f'name = "{here}/run/{own}:X"'.encode())
        return files | {"config.toml": content, own: CANARY.encode()}
    changed = forge.mutated(content, dice)
    # Some numbers are merely expensive.
    costly = any(100 < int(digits) < 2**53 for digits in re.findall(rb"\d{1,19}", changed))
    return files | {"config.toml": content if costly else changed}


@dataclass(frozen=True)
class Target:
    """Something that kedge reads, and how many of 38 inputs it gets: those that run something take longer."""

    feed: Feed
    share: int = 4


TARGETS = {
    "toml": Target(_toml), "set": Target(_set), "options": Target(_options), "grid": Target(_grid),
    "sweep": Target(_sweep), "study": Target(_study), "idx": Target(_idx), "cifar": Target(_cifar),
    "npz": Target(_npz), "run": Target(_run, 1),
    "config": Target(_resume(_configuration), 1),
    "manifest": Target(_resume(forge.manifest), 1), "state": Target(_resume(forge.state, False), 1),
    "metrics": Target(_resume(forge.lines), 1), "summary": Target(_resume(forge.summary, True), 1),
}  # fmt: skip


@dataclass
class Score:
    """A row of the table."""

    inputs: int = 0
    taken: int = 0
    slowest: float = 0.0
    tracebacks: int = 0
    hangs: int = 0
    elsewhere: int = 0
    failures: list[str] = field(default_factory=list)

    def row(self, name: str) -> str:
        bad = f"{self.tracebacks} | {self.hangs} | {self.elsewhere}"
        return f"| {name} | {self.inputs} | {self.inputs - self.taken} | {self.slowest:.2f} | {bad} |"


def feed(name: str, number: int, seed: int, folder: Path, score: Score) -> None:
    """Feed one input, and note what it does."""
    dice = random.Random(f"{seed} {name} {number}")
    score.inputs += 1
    place, why = folder / "in", ""
    place.mkdir()
    os.environ["KEDGE_FUZZ"] = str(place)
    GUARD.inside, GUARD.seen = folder, []
    began = time.process_time()
    try:
        with _patience():
            score.taken += TARGETS[name].feed(dice, place)
    except UsageError:
        pass
    except HangError:
        score.hangs += 1
        why = "it takes longer than it may"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        score.tracebacks += 1
        why = "".join(traceback.format_exception(error, limit=-6)).strip()
    finally:
        GUARD.inside = None
    score.slowest = max(score.slowest, time.process_time() - began)
    if builtins.__dict__.pop("kedge_canary", False):
        GUARD.seen.append("code of a received directory was run")
    if GUARD.seen:
        score.elsewhere += 1
        why += "\n".join(GUARD.seen[:3])
    if why:
        score.failures.append(f"--only {name} --first {number} --inputs 1 --seed {seed}: {why}")
    shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def _patience() -> Iterator[None]:
    def end(*_: object) -> None:
        raise HangError

    # Of the processor's time, which others do not take, and of the clock's, in which nothing may be waited for.
    before = {number: signal.signal(number, end) for number in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, PATIENCE)
    signal.setitimer(signal.ITIMER_REAL, 6 * PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def fuzz(
    names: list[str], inputs: int, seconds: float, seed: int, first: int = 0, state: Path | None = None
) -> dict[str, Score]:
    """Feed the targets in turn, each by its share, until all inputs are used or the time is."""
    known = json.loads(state.read_text()) if state is not None and state.exists() else {}
    scores = {name: Score(**known.get(name, {})) for name in names}
    turns = [name for name in names for _ in range(TARGETS[name].share)]
    # Of the share of a target, equal parts come between those of the others.
    turns.sort(key=lambda name: (names.index(name) + 1) * 0.618 % 1)
    memory, here = Path("/dev/shm"), Path.cwd()
    base(True), base(False)
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        folder = Path(name).resolve()
        (folder / "cwd").mkdir()
        os.chdir(folder / "cwd")
        try:
            for number in range(sum(score.inputs for score in scores.values()), inputs):
                if time.monotonic() > end:
                    break
                if state is not None and number % SAVED == 0:
                    _save(state, scores)
                target = turns[number % len(turns)]
                feed(target, first + scores[target].inputs, seed, folder, scores[target])
                if left := list((folder / "cwd").iterdir()):
                    scores[target].elsewhere += 1
                    scores[target].failures.append(f"{target} {first + scores[target].inputs - 1} has left {left}")
                    shutil.rmtree(folder / "cwd")
                    (folder / "cwd").mkdir()
                    os.chdir(folder / "cwd")
        finally:
            os.chdir(here)
    if state is not None:
        _save(state, scores)
    return scores


def _save(state: Path, scores: dict[str, Score]) -> None:
    part = state.with_name(state.name + ".part")
    part.write_text(json.dumps({name: asdict(score) for name, score in scores.items()}))
    part.replace(state)


def main() -> int:
    """Feed, print the table and what failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--only", default=",".join(TARGETS), help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--first", type=int, default=0, help="the number of the first input of each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--state", type=Path, help="a file that keeps the scores; the same command continues from it")
    options = parser.parse_args()
    torch.set_num_threads(1)
    state = None if options.state is None else options.state.absolute()
    scores = fuzz(options.only.split(","), options.inputs, options.seconds, options.seed, options.first, state)
    print("| target | inputs | refused | slowest, s | tracebacks | hangs | written or run elsewhere |")
    print("|---|---|---|---|---|---|---|")
    for name, score in scores.items():
        print(score.row(name))
    failures = [failure for score in scores.values() for failure in score.failures]
    print(f"\n{sum(score.inputs for score in scores.values())} inputs, {len(failures)} failures")
    for score in scores.values():
        print("\n\n".join(score.failures[:4]))
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
