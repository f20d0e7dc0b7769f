"""The same bits whatever computes them: threads x OMP_NUM_THREADS x ranks, for random models, engines and dtypes.

`python -m tests.determinism` is the long form; the test suite runs a short one. Every setting is a group of processes
of its own, which plays all models; what they leave is compared with what one process with one thread leaves.
"""

import argparse
import hashlib
import itertools
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

import kedge
from kedge.simulator.ranks import current_processes
from tests.ranks import joined

ROOT = Path(__file__).parents[1]
DTYPES = {"float32": torch.float32, "float64": torch.float64}
ENGINES = ("module", "auto")
ROUNDS, CLIENTS, CLASSES = 3, 9, 3


class Residual(nn.Module):
    """A layer that adds to its input: no engine but `module` runs it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.inner(x))


def make_model(dice: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    """Return a random model and the shape of its samples."""
    torch.manual_seed(dice.randrange(2**31))
    activation = dice.choice([nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU])
    if dice.random() < 0.4:
        channels = dice.choice([1, 2, 5])
        layers = [nn.Conv2d(1, channels, 3, padding=1), activation()]
        if dice.random() < 0.3:
            layers.append(dice.choice([nn.BatchNorm2d, nn.InstanceNorm2d])(channels))
        layers += [nn.MaxPool2d(2), nn.Flatten()] if dice.random() < 0.5 else [nn.Flatten()]
        width = channels * (16 if isinstance(layers[-2], nn.MaxPool2d) else 64)
        return nn.Sequential(*layers, nn.Linear(width, CLASSES)), (1, 8, 8)
    width, layers = 16, []
    for _ in range(dice.randrange(4)):
        after = dice.choice([5, 16, 40])
        layers += [nn.Linear(width, after), activation()]
        extra = dice.randrange(6)
        if extra < 4:
            layers.append([nn.Dropout(0.3), nn.BatchNorm1d(after), nn.LayerNorm(after), Residual(after)][extra])
        width = after
    return nn.Sequential(*layers, nn.Linear(width, CLASSES)), (16,)


def play(number: int, engine: str, dtype: str, threads: int) -> str:
    """Play a random run; return a digest of all that it leaves."""
    dice = random.Random(number)
    model, shape = make_model(dice)
    kind = dice.choice([*kedge.ALGORITHMS.values()])
    cohort = None if kind.full_participation else dice.choice([None, 3, 5, 8])
    generator = torch.Generator().manual_seed(number)
    sizes = [dice.randrange(5, 13) for _ in range(CLIENTS)]
    data = [(torch.randn(n, *shape, generator=generator), torch.arange(n) % CLASSES) for n in sizes]
    federation = kedge.Federation(data, test=(torch.randn(30, *shape, generator=generator), torch.arange(30) % CLASSES))
    result = kedge.simulate(
        model.to(DTYPES[dtype]), federation, kind(eta=0.05), ROUNDS, cohort,
        local_steps=dice.choice([1, 2, 5]), batch_size=dice.choice([None, 3, 4]),
        weights=dice.choice(["uniform", "size"]), weight_decay=dice.choice([0.0, 0.01]), seed=number,
        engine=engine, threads=threads,
    )  # fmt: skip
    digest = hashlib.sha256()
    for vector in (*result.server.values(), *result.model.state_dict().values()):
        digest.update(vector.detach().contiguous().numpy().tobytes())
    rows = [{key: value for key, value in row.items() if key != "seconds"} for row in result.history]
    digest.update(json.dumps(rows if current_processes().leads else []).encode())
    return digest.hexdigest()


def settings(models: int) -> Iterator[tuple[int, str, str]]:
    """Return all that differs in its bits."""
    return itertools.product(range(models), ENGINES, DTYPES)


def work(models: int, threads: list[int], out: Path) -> None:
    """Be one of the processes; the first one writes the digests."""
    with joined():
        found = {
            f"{number} {engine} {dtype} {count}": play(number, engine, dtype, count)
            for number, engine, dtype in settings(models) for count in threads
        }  # fmt: skip
        if current_processes().leads:
            out.write_text(json.dumps(found))


def group(models: int, threads: list[int], openmp: int, ranks: int) -> dict[str, str]:
    """Start a group of processes; return what the first one found."""
    with socket.socket() as free, tempfile.TemporaryDirectory() as name:
        free.bind(("localhost", 0))
        out, port = Path(name) / "digests.json", free.getsockname()[1]
        free.close()
        places = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = os.environ | {"OMP_NUM_THREADS": str(openmp), "PYTHONPATH": places}
        command = [sys.executable, "-m", "tests.determinism", "--models", str(models), "--work", str(out)]
        command += ["--threads", ",".join(map(str, threads))]
        together = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)} if ranks > 1 else {}
        processes = [
            subprocess.Popen(command, env=environment | together | ({"RANK": str(rank)} if ranks > 1 else {}))
            for rank in range(ranks)
        ]
        assert [process.wait() for process in processes] == [0] * ranks, "a process failed"
        found: dict[str, str] = json.loads(out.read_text())
    return found


def main() -> int:
    """Compare all settings, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--threads", default="1,2,3,4,5,6,7,8")
    parser.add_argument("--openmp", default="1,2,4", help="values of OMP_NUM_THREADS")
    parser.add_argument("--ranks", default="1,2,3,4")
    parser.add_argument("--state", type=Path, help="a file that keeps what was found; the same command continues")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    threads, openmp, ranks = (
        [int(n) for n in text.split(",")] for text in (options.threads, options.openmp, options.ranks)
    )
    if options.work is not None:
        work(options.models, threads, options.work)
        return 0
    known: dict[str, dict[str, str]] = {}
    if options.state is not None and options.state.exists():
        known = json.loads(options.state.read_text())

    def digests(threads: list[int], omp: int, count: int) -> dict[str, str]:
        key = f"{options.models} models, {threads} threads, OMP {omp}, {count} ranks"
        if key not in known:
            known[key] = group(options.models, threads, omp, count)
            if options.state is not None:
                options.state.write_text(json.dumps(known))
        return known[key]

    whole = {key.rpartition(" ")[0]: digest for key, digest in digests([1], 1, 1).items()}
    print("| OMP_NUM_THREADS | ranks | threads | models | engines x dtypes | runs | other bits |")
    print("|---|---|---|---|---|---|---|", flush=True)
    different = []
    for omp, count in itertools.product(openmp, ranks):
        found = digests(threads, omp, count)
        bad = [key for key, digest in found.items() if digest != whole[key.rpartition(" ")[0]]]
        different += [f"OMP {omp}, {count} ranks: model, engine, dtype, threads {key}" for key in bad]
        kinds = len(ENGINES) * len(DTYPES)
        span = f"{min(threads)} to {max(threads)}"
        print(f"| {omp} | {count} | {span} | {options.models} | {kinds} | {len(found)} | {len(bad)} |", flush=True)
    print("\n".join(["", *different[:20]]))
    return bool(different)


if __name__ == "__main__":
    sys.exit(main())
