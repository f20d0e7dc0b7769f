"""The algorithms, one file a family, and the table by which everything else finds them."""

from typing import Any

from kedge.algorithm import Algorithm
from kedge.algorithms.fedavg import FedAvg, FedAvgM, FedAvgMVR
from kedge.algorithms.scaffold import Scaffold, ScaffoldM, ScaffoldMVR
from kedge.algorithms.storm import CELSGD, MBStorm
from kedge.errors import unknown

ALGORITHMS: dict[str, type[Algorithm[Any, Any]]] = {
    "fedavg": FedAvg,
    "fedavg-m": FedAvgM,
    "fedavg-m-vr": FedAvgMVR,
    "scaffold": Scaffold,
    "scaffold-m": ScaffoldM,
    "scaffold-m-vr": ScaffoldMVR,
    "mb-storm": MBStorm,
    "ce-lsgd": CELSGD,
}

ALIASES = {"fedcm": "fedavg-m"}


def find_algorithm(name: str) -> type[Algorithm[Any, Any]]:
    """Return the class of an algorithm by its id or an alias."""
    name = ALIASES.get(name, name)
    if name not in ALGORITHMS:
        raise unknown("algorithm", name, [*ALGORITHMS, *ALIASES])
    return ALGORITHMS[name]


__all__ = [
    "ALGORITHMS",
    "ALIASES",
    "CELSGD",
    "FedAvg",
    "FedAvgM",
    "FedAvgMVR",
    "MBStorm",
    "Scaffold",
    "ScaffoldM",
    "ScaffoldMVR",
    "find_algorithm",
]
