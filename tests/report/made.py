"""Run directories written by hand: as many and as odd as a test needs, without a simulation."""

import json
import math
from pathlib import Path

from kedge.runs.directory import to_toml


def rows_of(count, *, seed=0, speed=10.0, **columns):
    """Return rows whose accuracy rises to 0.9, with a little that depends on the seed."""
    return [
        {
            "round": at, "test_loss": 2.3 * math.exp(-at / speed) + 0.01 * seed,
            "test_accuracy": 0.9 * (1 - math.exp(-at / speed)) + 0.001 * seed, "step_norm": 1 / at,
            "bytes_down": 1000 * at, "bytes_up": 500 * at, "gradients": 64.0 * at, "seconds": 0.1 * at, **columns,
        }
        for at in range(1, count + 1)
    ]  # fmt: skip


def write_run(path, name="scaffold-m", *, seed=0, rows=None, ended=True, settings=None, config=True, **more):
    """Write a run directory."""
    path = Path(path)
    path.mkdir(parents=True)
    rows = rows_of(20, seed=seed) if rows is None else rows
    if config:
        sections = {
            "data": {"dataset": "digits", "clients": 8, "partition": "dirichlet", "alpha": 0.1},
            "model": {"name": "mlp"}, "algorithm": {"name": name, "eta": 0.1}, "run": {"rounds": 20, "seed": seed},
        }  # fmt: skip
        for key, value in (settings or {}).items():
            section, _, setting = key.partition(".")
            sections.setdefault(section, {})[setting if setting.isidentifier() else json.dumps(setting)] = value
        (path / "config.toml").write_text(to_toml(sections))
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if ended:
        summary = {"algorithm": "ScaffoldM(eta=0.1)", "engine": "fused", "versions": {"kedge": "0.1.0", "torch": "2"}}
        summary |= {key: rows[-1][key] for key in ("round", "bytes_down", "bytes_up", "gradients", "seconds")}
        (path / "summary.json").write_text(json.dumps(summary | more))
        (path / "model.safetensors").write_bytes(b"")
    return path


def write_comparison(folder, names=("fedavg", "scaffold-m", "mb-storm"), seeds=2):
    """Write the runs of several algorithms and seeds; the later an algorithm is named, the faster it learns."""
    for place, name in enumerate(names):
        for seed in range(seeds):
            write_run(folder / f"{name}-{seed}", name, seed=seed, rows=rows_of(20, seed=seed, speed=10.0 - 3 * place,
                      clients_accuracy=0.8, clients_accuracy_worst_decile=0.5 + 0.1 * place))  # fmt: skip
    return folder
