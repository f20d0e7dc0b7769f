"""The algorithms, one file per family, and the table in which everything else looks them up."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from kedge.algorithm import Algorithm, is_whole
from kedge.algorithms.dual import FedDyn, FedPD
from kedge.algorithms.fedavg import FedAvg, FedAvgM, FedAvgMVR
from kedge.algorithms.mime import Mime, MimeLite, MimeLiteMVR, MimeMVR
from kedge.algorithms.proximal import FedNova, FedProx
from kedge.algorithms.scaffold import Scaffold, ScaffoldM, ScaffoldMVR
from kedge.algorithms.server_optimizers import FedAdagrad, FedAdam, FedYogi, ServerMomentum, SlowMo
from kedge.algorithms.stem import Stem
from kedge.algorithms.storm import BVRLSGD, CELSGD, MBStorm
from kedge.algorithms.tracking import LED, VRLSGD, FedGATE
from kedge.errors import UsageError, unknown
from kedge.own_code import CodePlace

ALGORITHMS: dict[str, type[Algorithm[Any, Any]]] = {
    "fedavg": FedAvg,
    "fedavg-m": FedAvgM,
    "fedavg-m-vr": FedAvgMVR,
    "scaffold": Scaffold,
    "scaffold-m": ScaffoldM,
    "scaffold-m-vr": ScaffoldMVR,
    "mb-storm": MBStorm,
    "ce-lsgd": CELSGD,
    "bvr-l-sgd": BVRLSGD,
    "stem": Stem,
    "mimelite": MimeLite,
    "mime": Mime,
    "mimelite-mvr": MimeLiteMVR,
    "mime-mvr": MimeMVR,
    "fedprox": FedProx,
    "fednova": FedNova,
    "feddyn": FedDyn,
    "fedpd": FedPD,
    "vrl-sgd": VRLSGD,
    "fedgate": FedGATE,
    "led": LED,
    "slowmo": SlowMo,
    "server-momentum": ServerMomentum,
    "fedadagrad": FedAdagrad,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
}

ALIASES = {"fedcm": "fedavg-m"}

for _kind in ALGORITHMS.values():  # `help` shows only docstrings, and what `hyper` says belongs there
    _kind.__doc__ = _kind.explained()


def find_algorithm(name: str) -> type[Algorithm[Any, Any]]:
    """Return the class of an algorithm by its id, an alias, or a place: ``my_file.py:MyAlgorithm``.

    The file runs: whoever calls this has named it.
    """
    place = CodePlace.parse(name)
    if place is not None:
        place.trust()
    return algorithm_class(name)


def algorithm_class(name: str) -> type[Algorithm[Any, Any]]:
    """Return the class of an algorithm; a user's own file runs only if it is trusted."""
    place = CodePlace.parse(name)
    if place is not None:
        kind = place.load()
        if not (isinstance(kind, type) and issubclass(kind, Algorithm)):
            raise UsageError(f"{name} is not a kedge.Algorithm")
        return kind
    name = ALIASES.get(name, name)
    if name not in ALGORITHMS:
        raise unknown("algorithm", name, [*ALGORITHMS, *ALIASES])
    return ALGORITHMS[name]


def make_algorithm(name: str, hyper: Mapping[str, Any]) -> Algorithm[Any, Any]:
    """Return the algorithm with these hyper-parameters, as a configuration or a command line writes them."""
    kind = algorithm_class(name)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    values = dict(hyper)
    for key, value in values.items():
        if key not in fields:
            raise UsageError(f"{name} has no hyper-parameter {key!r}; it has {', '.join(fields)}")
        # TOML and the command line write 1 for 1.0; a whole number stays one only where one is asked for.
        if isinstance(value, int) and not isinstance(value, bool) and not is_whole(fields[key]):
            values[key] = float(value)
    return kind(**values)


__all__ = [
    "ALGORITHMS",
    "ALIASES",
    "BVRLSGD",
    "CELSGD",
    "LED",
    "VRLSGD",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedAvgMVR",
    "FedDyn",
    "FedGATE",
    "FedNova",
    "FedPD",
    "FedProx",
    "FedYogi",
    "MBStorm",
    "Mime",
    "MimeLite",
    "MimeLiteMVR",
    "MimeMVR",
    "Scaffold",
    "ScaffoldM",
    "ScaffoldMVR",
    "ServerMomentum",
    "SlowMo",
    "Stem",
    "find_algorithm",
]
