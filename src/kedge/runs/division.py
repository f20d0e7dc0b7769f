"""Who has which labels: found from a run's configuration alone, without a download, a file it names or its own code."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from kedge.errors import UsageError
from kedge.problem import DATASETS, load_federation
from kedge.runs.settings import Config

CLIENTS = 60
"""The most clients that are counted one by one."""

DIVIDED = 100_000
"""The most clients of a federation that is divided only to be counted."""

LABELS = 100


class Division(NamedTuple):
    """How many samples of which label the first clients have."""

    title: str
    clients: int  # all of them
    labels: list[int]
    counts: list[list[int]]  # of the first clients
    largest: int


def division_of(sections: Mapping[str, Any]) -> Division | None:
    """Return the division that a configuration describes; None if its data has no labels."""
    try:
        asked = json.dumps([sections.get("data", {}), sections.get("run", {}).get("seed", 0)], sort_keys=True)
    except TypeError as error:  # a date is TOML
        raise UsageError(f"the configuration cannot be read: {error}") from None
    return _divided(asked)


@lru_cache(maxsize=64)
def _divided(asked: str) -> Division | None:
    """Divide the data; a live page asks again and again."""
    section, seed = json.loads(asked)
    config = Config.read({"data": section, "run": {"seed": seed}})
    data = config.data
    entry = DATASETS.get(data.dataset)
    if entry is None or entry.load is None or entry.classes is None:
        return None
    if data.clients > DIVIDED:
        raise UsageError(f"clients is {data.clients}, but at most {DIVIDED} are divided for a picture")
    federation = load_federation(
        data.dataset, data.clients, data.partition or entry.partition, data.alpha, config.run.seed,
        holdout=data.holdout, test_samples=data.test_samples, shards_per_client=data.shards_per_client,
        client_tests=data.client_tests, download=False,
    )  # fmt: skip
    labels = federation.labels.numpy()
    names = np.unique(labels)[:LABELS]
    shown = [labels[index.numpy()] for index in list(federation.indices)[:CLIENTS]]
    counts = [[int((own == name).sum()) for name in names] for own in shown]
    title = f"{data.dataset}, {data.partition or entry.partition}, {data.clients} clients, seed {config.run.seed}"
    return Division(title, data.clients, [int(name) for name in names], counts, max(map(max, counts)))
