"""kedge: federated learning that does not drift.

The algorithms of *Momentum Benefits Non-IID Federated Learning Simply and Provably* (Cheng, Huang, Wu and Yuan, ICLR
2024) and the algorithms it compares with, in a simulator for PyTorch models::

    import kedge

    federation = kedge.load_federation("digits", clients=50, partition="dirichlet", alpha=0.1)
    model = kedge.build_model("mlp", (64,), 10)
    result = kedge.simulate(model, federation, kedge.ScaffoldM(eta=0.5, beta=0.2), rounds=100, cohort=5, batch_size=16)
    print(result.history[-1])
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what `__getattr__` finds, for type checkers
    from kedge import callbacks, schedules, theory
    from kedge.algorithm import Algorithm, SingleExchange, hyper
    from kedge.algorithms import (
        ALGORITHMS,
        ALIASES,
        BVRLSGD,
        CELSGD,
        LED,
        VRLSGD,
        FedAdagrad,
        FedAdam,
        FedAvg,
        FedAvgM,
        FedAvgMVR,
        FedDyn,
        FedGATE,
        FedNova,
        FedPD,
        FedProx,
        FedYogi,
        MBStorm,
        Mime,
        MimeLite,
        MimeLiteMVR,
        MimeMVR,
        Scaffold,
        ScaffoldM,
        ScaffoldMVR,
        ServerMomentum,
        SlowMo,
        Stem,
        find_algorithm,
    )
    from kedge.costs import Cost, cost
    from kedge.direction import DISPLACEMENT, GRAD, LAST_GRAD, Direction, Vector, grad_at, last_direction, last_grad
    from kedge.errors import UsageError
    from kedge.exchange import Effort, Exchange, Heard, Local, Nothing
    from kedge.local_update import LocalUpdate, norms
    from kedge.local_updates import SAM, Adam, AdamW, ClientRates, Clip, HeavyBall, Personal
    from kedge.problem import ClientIndices, Federation, build_model, load_federation, quadratics
    from kedge.questions import FullGradient
    from kedge.runs.live import CallbackError, LiveRun
    from kedge.runs.objects import Comparison, SweepResult, compare, sweep
    from kedge.runs.reader import StoredRun, read_run, read_runs
    from kedge.runs.result import DivergedError, Result
    from kedge.runs.simulate import simulate
    from kedge.settings import Settings
    from kedge.simulator import Answer, Simulation
    from kedge.transforms import Privacy, ReplyTransform, TopK

    __version__: str

_HOMES = (
    "errors",
    "algorithms",
    "algorithm",
    "costs",
    "direction",
    "exchange",
    "local_update",
    "local_updates",
    "problem",
    "questions",
    "runs.live",
    "runs.objects",
    "runs.reader",
    "runs.result",
    "runs.simulate",
    "settings",
    "simulator",
    "transforms",
)
"""The modules that define the public names. Each name is imported on first use: torch takes seconds to load, and the
command line answers `--help` without it."""

_ROOMS = ("callbacks", "flower", "schedules", "theory")
"""Packages that are used by their own name, as in kedge.theory.measure. `flower` needs an extra and is not in `*`."""

__all__ = [
    "ALGORITHMS",
    "ALIASES",
    "BVRLSGD",
    "CELSGD",
    "DISPLACEMENT",
    "GRAD",
    "LAST_GRAD",
    "LED",
    "SAM",
    "VRLSGD",
    "Adam",
    "AdamW",
    "Algorithm",
    "Answer",
    "CallbackError",
    "ClientIndices",
    "ClientRates",
    "Clip",
    "Comparison",
    "Cost",
    "Direction",
    "DivergedError",
    "Effort",
    "Exchange",
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
    "Federation",
    "FullGradient",
    "Heard",
    "HeavyBall",
    "LiveRun",
    "Local",
    "LocalUpdate",
    "MBStorm",
    "Mime",
    "MimeLite",
    "MimeLiteMVR",
    "MimeMVR",
    "Nothing",
    "Personal",
    "Privacy",
    "ReplyTransform",
    "Result",
    "Scaffold",
    "ScaffoldM",
    "ScaffoldMVR",
    "ServerMomentum",
    "Settings",
    "Simulation",
    "SingleExchange",
    "SlowMo",
    "Stem",
    "StoredRun",
    "SweepResult",
    "TopK",
    "UsageError",
    "Vector",
    "build_model",
    "callbacks",
    "compare",
    "cost",
    "find_algorithm",
    "grad_at",
    "hyper",
    "last_direction",
    "last_grad",
    "load_federation",
    "norms",
    "quadratics",
    "read_run",
    "read_runs",
    "schedules",
    "simulate",
    "sweep",
    "theory",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        found: Any = version("kedge")
    elif name in _ROOMS:
        found = import_module(f"kedge.{name}")
    elif name in __all__:
        homes = (import_module(f"kedge.{home}") for home in _HOMES)
        found = next(getattr(home, name) for home in homes if hasattr(home, name))
    else:
        raise AttributeError(f"module 'kedge' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
