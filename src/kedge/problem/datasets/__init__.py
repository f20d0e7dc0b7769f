"""The data sets by name."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from kedge.errors import unknown
from kedge.problem.checks import check_options, whole_seed
from kedge.problem.datasets import cifar, digits, mnist, synthetic
from kedge.problem.datasets.base import DataSet, Progress, Source

__all__ = ["DATASETS", "DataSet", "Progress", "load_dataset"]

DATASETS: dict[str, Callable[..., DataSet]] = {
    "digits": digits.load,
    "synthetic": synthetic.load,
    "mnist": partial(mnist.load, "mnist"),
    "fashion-mnist": partial(mnist.load, "fashion-mnist"),
    "cifar10": cifar.load,
}


def load_dataset(
    name: str,
    data_dir: str | Path | None = None,
    download: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
    **options: Any,
) -> DataSet:
    """Load a data set by name; files are looked for in ``data_dir``, or $KEDGE_DATA, or ~/.cache/kedge.

    ``download`` allows to fetch missing files, ``progress`` is told how far that is (default: a bar on a
    terminal), and ``seed`` matters to drawn data only. Options: ``users``, ``synthetic_alpha`` and
    ``synthetic_beta`` of synthetic.
    """
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    check_options(f"data set {name!r}", DATASETS[name], options)
    root = Path(data_dir or os.environ.get("KEDGE_DATA") or "~/.cache/kedge")
    try:
        root = root.expanduser()
    except RuntimeError:  # a user without a home: nothing is to be put into a folder named ~
        download = False
    return DATASETS[name](Source(root, download, whole_seed(seed), progress), **options)
