"""A federation of a named data set, divided by a named partition."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kedge.checks import expanded, real, whole, whole_seed
from kedge.errors import UsageError
from kedge.keyed import HOLDOUT, SUBSET, keyed
from kedge.problem.datasets import DATASETS, is_archive, load_dataset
from kedge.problem.federation import Federation
from kedge.problem.partition import split


def load_federation(
    name: str,
    clients: int = 100,
    partition: str | None = None,
    alpha: float = 0.5,
    seed: int = 0,
    data_dir: str | Path | None = None,
    *,
    holdout: float = 0.0,
    test_samples: int | None = None,
    client_tests: float | None = None,
    **options: Any,
) -> Federation:
    """Load the data set ``name``, or your own `data.npz`, and divide its training samples between ``clients``.

    ``holdout`` withholds that share of the training samples from the clients, drawn by the seed before the division,
    and uses it instead of the test set, so that tuning never sees the test set. With ``client_tests`` it is that share
    of every client's samples, also instead of the client's own test set. ``test_samples`` draws that many of the test
    samples, for faster evaluation.

    ``partition`` is one of ``PARTITIONS``; None means "by-user" if the data set has users, else "dirichlet", or "iid"
    if its labels are not classes. ``client_tests`` splits that share off every client's samples, as its own test set.
    Options: ``shards_per_client`` of the partition "shards", ``download`` and ``progress`` of
    ``load_dataset``, and the data set's own options.
    """
    origin = {
        "dataset": str(expanded(name).absolute()) if is_archive(name) else name,
        "clients": clients, "partition": partition, "alpha": alpha, "seed": seed,
        "data_dir": None if data_dir is None else str(expanded(data_dir).absolute()),
        "holdout": holdout, "test_samples": test_samples, "client_tests": client_tests,
    } | {key: value for key, value in options.items() if key not in ("download", "progress")}  # fmt: skip
    shards = {key: options.pop(key) for key in ("shards_per_client",) if key in options}
    clients, seed = whole("clients", clients, 1), whole_seed(seed)
    entry = DATASETS.get(name)
    if entry is not None and entry.train is not None and clients > entry.train:  # before it is loaded
        raise UsageError(f"clients is {clients}, but the data set has only {entry.train} samples")
    if entry is not None and "users" in entry.options:
        options.setdefault("users", clients)
    data = load_dataset(name, data_dir, seed=seed, **options)
    features, labels = data.train
    are_classes = labels.ndim == 1 and not labels.is_floating_point()
    if partition is None:
        partition = ("dirichlet" if are_classes else "iid") if data.users is None else "by-user"
    if partition == "by-user" and is_archive(name) and data.users is not None:
        clients = min(clients, len(np.unique(data.users)))
    kept, held = _held_out(len(labels), 0.0 if client_tests else holdout, seed)
    users = None if data.users is None else data.users[kept]
    codes = labels.numpy()[kept] if are_classes else np.zeros(len(kept), np.int64)
    parts = split(partition, codes, clients, seed=seed, alpha=alpha, users=users, **shards)
    test = data.test if held is None else (features[held], labels[held])
    if held is not None:
        parts = [kept[part] for part in parts]
    made = Federation.from_indices(features, labels, parts, test, client_tests=client_tests)
    if client_tests and holdout:
        made = made.held_out(holdout)
    made.test = None if made.test is None else _some(made.test, test_samples, seed)
    return made.loaded_from({key: value for key, value in origin.items() if value is not None})


def _held_out(samples: int, share: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """Return the training samples to keep and, if there are any, those held out, both in ascending order."""
    if not 0 <= real("holdout", share, positive=False) < 1:
        raise UsageError(f"holdout is {share:g}, but must be at least 0 and below 1")
    if share == 0:
        return np.arange(samples), None
    out = round(share * samples)
    if not 0 < out < samples:
        raise UsageError(f"holdout is {share:g}, but of {samples} samples that is {out}")
    order = keyed(seed, HOLDOUT, 0).permutation(samples)
    return np.sort(order[out:]), np.sort(order[:out])


def _some(test: tuple[Tensor, Tensor], count: int | None, seed: int) -> tuple[Tensor, Tensor]:
    """Return ``count`` of the test samples, or all."""
    if count is None:
        return test
    if whole("test_samples", count, 1) > len(test[1]):
        raise UsageError(f"test_samples is {count}, but there are only {len(test[1])}")
    chosen = np.sort(keyed(seed, SUBSET, 0).choice(len(test[1]), count, replace=False))
    return test[0][chosen], test[1][chosen]
