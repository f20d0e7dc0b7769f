"""Runs to break, and what they must leave in the end: shared by `tests.faults` and `tests.kills`."""

import contextlib
import io
import json
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file

import kedge
from kedge.cli.program import execute

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
