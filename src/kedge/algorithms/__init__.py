"""The algorithms, one file a family, and the table by which everything else finds them."""

import runpy
from pathlib import Path
from typing import Any

from kedge.algorithm import Algorithm
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

for _kind in ALGORITHMS.values():  # `help` shows docstrings alone, and what `hyper` says belongs to them
    _kind.__doc__ = _kind.explained()


def find_algorithm(name: str) -> type[Algorithm[Any, Any]]:
    """Return the class of an algorithm by its id, an alias, or a place: ``my_file.py:MyAlgorithm``."""
    if ":" in name:
        return _from_file(*name.rsplit(":", 1))
    name = ALIASES.get(name, name)
    if name not in ALGORITHMS:
        raise unknown("algorithm", name, [*ALGORITHMS, *ALIASES])
    return ALGORITHMS[name]


def _from_file(path: str, name: str) -> type[Algorithm[Any, Any]]:
    if not Path(path).is_file():
        raise UsageError(f"the algorithm {path}:{name} names the file {path}, which does not exist")
    try:
        found = runpy.run_path(path)
    except Exception as error:
        raise UsageError(f"the file {path} cannot be run: {type(error).__name__}: {error}") from error
    if name not in found:
        raise UsageError(f"the file {path} has no {name}")
    kind = found[name]
    if not (isinstance(kind, type) and issubclass(kind, Algorithm)):
        raise UsageError(f"{path}:{name} is not a kedge.Algorithm")
    return kind


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
