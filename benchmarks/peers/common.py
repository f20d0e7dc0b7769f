"""What the peers' scripts share: the workload from the command line, its data, its network, and the result's line.

It runs in the peers' environments, so it imports numpy, and torch where a peer has it, but never kedge.
"""

import functools
import itertools
import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np


def read_workload() -> SimpleNamespace:
    """Return the workload that the command line gives as JSON: what `__main__.describe` returns."""
    return SimpleNamespace(**{"launched": time.time(), **json.loads(sys.argv[1])})


@functools.cache
def load(folder: str, mmap_mode: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Return features (clients, samples, inputs) and labels (clients, samples), once per process."""
    features, labels = (np.load(Path(folder) / f"{name}.npy", mmap_mode=mmap_mode) for name in ("features", "labels"))
    return features, labels


def tensors(folder: str, mmap_mode: Any = None) -> tuple[Any, Any]:
    import torch

    features, labels = load(folder, mmap_mode)
    return torch.from_numpy(features), torch.from_numpy(labels)


def network(sizes: list[int]) -> Any:
    from torch import nn

    layers = [layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def report(work: SimpleNamespace, marks: list[float], *packages: str) -> None:
    """Print the result: ``marks`` are the perf_counter at the begin of the first round and at the end of every one."""
    first = time.time() - (time.perf_counter() - marks[1]) - work.launched
    seconds = [end - begin for begin, end in itertools.pairwise(marks)]
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    print(json.dumps({"versions": versions, "first_round": first, "seconds": seconds}), flush=True)
