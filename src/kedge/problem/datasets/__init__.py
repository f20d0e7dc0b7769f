"""The data sets by name."""

import os
from functools import partial
from pathlib import Path
from typing import Any

from kedge.checks import check_options, expanded, whole_seed
from kedge.errors import UsageError, unknown
from kedge.problem.datasets import cifar, digits, mnist, npz, synthetic
from kedge.problem.datasets.base import DataSet, Entry, Progress, Source
from kedge.problem.quadratic import quadratics

__all__ = ["DATASETS", "DataSet", "Entry", "Progress", "is_archive", "load_dataset"]

DATASETS: dict[str, Entry] = {
    "digits": Entry(digits.load, shape=(64,), train=1442, test=355, classes=10),
    "synthetic": Entry(synthetic.load, shape=(60,), classes=10, model="logistic", partition="by-user"),
    "mnist": Entry(partial(mnist.load, "mnist"), shape=(1, 28, 28), train=60_000, test=10_000, classes=10),
    "fashion-mnist": Entry(
        partial(mnist.load, "fashion-mnist"), shape=(1, 28, 28), train=60_000, test=10_000, classes=10
    ),
    "cifar10": Entry(partial(cifar.load, "cifar10"), shape=(3, 32, 32), train=50_000, test=10_000, classes=10),
    "cifar100": Entry(partial(cifar.load, "cifar100"), shape=(3, 32, 32), train=50_000, test=10_000, classes=100),
    "quadratics": Entry(make=quadratics, differ_by="heterogeneity"),
}


def is_archive(name: str) -> bool:
    """Whether a data set is a file of the user's own."""
    return name.endswith(".npz")


def load_dataset(
    name: str,
    data_dir: str | Path | None = None,
    download: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
    **options: Any,
) -> DataSet:
    """Load a data set by name, with files from ``data_dir``, $KEDGE_DATA or ~/.cache/kedge; or `data.npz`, your own.

    ``download`` allows missing files to be downloaded, ``progress`` is called as that advances (by default, a bar on
    a terminal), and ``seed`` matters only to generated data. Options: ``users``, ``synthetic_alpha`` and
    ``synthetic_beta`` of synthetic.
    """
    if is_archive(name):
        return npz.load(expanded(name))
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    load = DATASETS[name].load
    if load is None:
        raise UsageError(f"{name} brings its own clients, model and loss: use kedge.{name}() instead")
    check_options(f"data set {name!r}", load, options)
    return load(Source(_root(data_dir), download, whole_seed(seed), progress, data_dir is not None), **options)


def _root(data_dir: str | Path | None) -> Path:
    if given := data_dir or os.environ.get("KEDGE_DATA"):
        return expanded(given)
    try:
        return Path("~/.cache/kedge").expanduser()
    except RuntimeError:  # neither HOME nor an entry in the table of users
        raise UsageError("there is no home directory to look for data in; set --data-dir or KEDGE_DATA") from None
