"""A federation of a named data set, divided by a named partition."""

from pathlib import Path
from typing import Any

from kedge.problem.checks import whole
from kedge.problem.datasets import load_dataset
from kedge.problem.federation import Federation
from kedge.problem.partition import split


def load_federation(
    name: str,
    clients: int = 100,
    partition: str | None = None,
    alpha: float = 0.5,
    seed: int = 0,
    data_dir: str | Path | None = None,
    **options: Any,
) -> Federation:
    """Load the data set ``name`` and divide its training samples between ``clients``.

    ``partition`` is one of ``PARTITIONS``; None means "by-user" if the data set has users, else "dirichlet".
    Options: ``shards_per_client`` of the partition "shards", ``download`` and ``progress`` of
    ``load_dataset``, and those of the data set itself.
    """
    shards = {key: options.pop(key) for key in ("shards_per_client",) if key in options}
    clients = whole("clients", clients, 1)
    if name == "synthetic":
        options.setdefault("users", clients)
    data = load_dataset(name, data_dir, seed=seed, **options)
    if partition is None:
        partition = "dirichlet" if data.users is None else "by-user"
    features, labels = data.train
    parts = split(partition, labels.numpy(), clients, seed=seed, alpha=alpha, users=data.users, **shards)
    return Federation.from_indices(features, labels, parts, data.test)
