"""kedge: federated learning that does not drift.

The algorithms of *Momentum Benefits Non-IID Federated Learning Simply and Provably* (Cheng, Huang, Wu and Yuan, ICLR
2024) and the systems it compares with, in a simulator for PyTorch models::

    import kedge

    federation = kedge.load_federation("digits", clients=50, partition="dirichlet", alpha=0.1)
    model = kedge.build_model("mlp", (64,), 10)
    result = kedge.simulate(model, federation, kedge.ScaffoldM(eta=0.5, beta=0.2), rounds=100, cohort=5, batch_size=16)
    print(result.history[-1])
"""

from importlib.metadata import version

from kedge.algorithm import Algorithm, SingleExchange, hyper
from kedge.algorithms import *  # noqa: F403
from kedge.algorithms import __all__ as _algorithms
from kedge.cost import Cost, cost
from kedge.direction import DISPLACEMENT, GRAD, LAST_GRAD, Direction, Vector, grad_at, last_direction, last_grad
from kedge.errors import UsageError
from kedge.exchange import Effort, Exchange, Local, Nothing, Round
from kedge.problem import ClientIndices, Federation, build_model, load_federation, quadratics
from kedge.questions import FullGradient
from kedge.round import Settings
from kedge.runs.live import CallbackError, LiveRun
from kedge.runs.reader import StoredRun, read_run, read_runs
from kedge.runs.simulate import DivergedError, Result, simulate
from kedge.simulator import Answer, Simulation

__version__ = version("kedge")

__all__ = [
    *_algorithms,
    "DISPLACEMENT",
    "GRAD",
    "LAST_GRAD",
    "Algorithm",
    "Answer",
    "CallbackError",
    "ClientIndices",
    "Cost",
    "Direction",
    "DivergedError",
    "Effort",
    "Exchange",
    "Federation",
    "FullGradient",
    "LiveRun",
    "Local",
    "Nothing",
    "Result",
    "Round",
    "Settings",
    "Simulation",
    "SingleExchange",
    "StoredRun",
    "UsageError",
    "Vector",
    "build_model",
    "cost",
    "grad_at",
    "hyper",
    "last_direction",
    "last_grad",
    "load_federation",
    "quadratics",
    "read_run",
    "read_runs",
    "simulate",
]
