"""What measured constants say to a practitioner: what the problem is, which algorithm fits, and where to start.

The errors are those that one round of FedAvg makes in its direction, in the leading order of the paper's lemmas:

    noise     σ²/(SK)                   of the minibatches
    sampling  (N-S)/(S(N-1)) ζ²         of the clients: they differ, and few take part
    drift     min(ηKδ/2, 1)² ζ²         of the local steps: clients differ in gradient (ζ) and in curvature (δ)

The rules that follow from them, and the factors of the start values, were chosen on seven federations (docs/theory.md);
`python -m benchmarks.recommendation` tries them on twelve others.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from torch import nn
from torch.nn.functional import cross_entropy

from kedge.algorithm import Algorithm
from kedge.algorithms import FedAvg, FedAvgM, Scaffold, ScaffoldM
from kedge.checks import whole
from kedge.client import Loss
from kedge.problem import Federation
from kedge.settings import Settings
from kedge.simulator import Simulation
from kedge.theory.measuring import Measured, unwarned
from kedge.theory.oracle import Oracle, Part

SEPARATE = 40.0
"""From this ζ²K/σ² on, clients differ so much more than their minibatches that control variables pay."""
RETURNS = 2.0
"""How often a client must take part, on average, for its control variable to be of use."""
STEPS: dict[type[Algorithm[Any, Any]], tuple[str, float]] = {
    FedAvg: ("L_mean", 1.2), FedAvgM: ("L_mean", 4.0), Scaffold: ("L", 3.0), ScaffoldM: ("L", 3.0),
}  # fmt: skip
"""eta is this factor divided by this curvature."""
BETAS = {FedAvgM: 0.2, ScaffoldM: 0.5}
FACTORS = (1 / 3, 1.0, 3.0)
"""Multiples of eta that a trial compares first."""
EXTENSIONS = 2
"""How often the trial may move past the edge on which its best rate lies."""


@dataclass(frozen=True)
class Advice:
    """What to do about a problem, and why."""

    errors: dict[str, float]
    """Squared errors of one round of FedAvg: drift, noise and client sampling."""
    signal: float
    """|∇f|² at the last measured point: errors below it do little harm."""
    problem: str
    """The largest error, or "none" if all of them are below a quarter of the signal."""
    algorithm: type[Algorithm[Any, Any]]
    settings: dict[type[Algorithm[Any, Any]], dict[str, float]]
    """Start values of eta and beta, for the recommended algorithm and for those that it should be compared with."""
    reasons: tuple[str, ...]
    """Sentences."""

    def make(self) -> Algorithm[Any, Any]:
        """Build the recommended algorithm at its start values."""
        return self.algorithm(**self.settings[self.algorithm])


def advise(measured: Measured, rounds: int = 100) -> Advice:
    """Say what measured constants mean for a run of this many rounds.

    >>> import kedge
    >>> model, federation = kedge.build_model("logistic", (64,), 10), kedge.load_federation("digits", clients=10)
    >>> kedge.theory.advise(kedge.theory.measure(model, federation, batch_size=16)).problem
    'drift'
    """
    rounds = whole("rounds", rounds, 1)
    N, K = measured.clients, measured.local_steps
    S = measured.cohort or N
    settings = {kind: _start(kind, measured) for kind in STEPS}
    h = 0.0 if N == 1 else (N - S) / (S * (N - 1))
    eta = settings[FedAvg]["eta"]
    errors = {
        "drift": min(eta * K / 2 * measured.hessian_dissimilarity, 1.0) ** 2 * measured.zeta**2,
        "noise": measured.sigma**2 / (S * K),
        "client sampling": h * measured.zeta**2,
    }
    signal = measured.points[-1].gradient_norm2
    largest = max(errors, key=lambda name: errors[name])
    problem = largest if errors[largest] > signal / 4 else "none"
    apart = measured.zeta**2 * K / measured.sigma**2 if measured.sigma else math.inf if measured.zeta else 0.0
    returns = S * rounds / N
    controls = apart > SEPARATE and returns >= RETURNS
    return Advice(
        errors, signal, problem, ScaffoldM if controls else FedAvgM, settings, _reasons(problem, apart, returns)
    )


def _start(kind: type[Algorithm[Any, Any]], measured: Measured) -> dict[str, float]:
    curvature, factor = STEPS[kind]
    eta = _round(factor / max(getattr(measured, curvature), 1e-12))
    return {"eta": eta} | ({"beta": BETAS[kind]} if kind in BETAS else {})


def _round(value: float) -> float:
    """Return a number of two digits."""
    return float(f"{value:.2g}")


def _reasons(problem: str, apart: float, returns: float) -> tuple[str, ...]:
    found = {
        "drift": "Client drift is the largest error: local steps pull the clients apart, because their losses differ "
        "in gradient and in curvature.",
        "noise": "Minibatch noise is the largest error: larger minibatches, more clients per round or more local steps "
        "would lower it, other algorithms hardly.",
        "client sampling": "Client sampling is the largest error: the clients differ, and only some take part in a "
        "round.",
        "none": "No error of FedAvg is large compared with the gradient so far: any algorithm will make progress here.",
    }[problem]
    if apart <= SEPARATE:
        why = (
            f"The clients' gradients differ little more than their minibatches do (ζ²K/σ² is {apart:.3g}), so control "
            "variables would bring as much error as they remove: momentum alone, FedAvg-M, fits."
        )
    elif returns < RETURNS:
        why = (
            f"A client takes part in only {returns:.2g} rounds on average, so its control variable would be outdated: "
            "momentum alone, FedAvg-M, fits."
        )
    else:
        why = (
            f"The clients differ much more than their minibatches do (ζ²K/σ² is {apart:.3g}), and each takes part in "
            f"{returns:.3g} rounds on average: control variables with momentum, SCAFFOLD-M, fit."
        )
    return found, why


@dataclass(frozen=True)
class Trial:
    """Short runs of one algorithm with several eta."""

    losses: dict[float, float]
    """f after the trial, by eta; inf if the run diverged."""
    rounds: int
    gradients: float
    """What it cost."""

    @property
    def eta(self) -> float:
        """The best one."""
        return min(self.losses, key=lambda eta: self.losses[eta])


def try_rates(
    model: nn.Module,
    federation: Federation,
    algorithm: Algorithm[Any, Any],
    settings: Settings,
    rounds: int = 15,
    loss: Loss | None = None,
) -> Trial:
    """Run an algorithm for a few rounds with a third, once and three times its eta, and look at f.

    Where the best lies at an edge, the next one is tried too, twice at most. f is the mean over the clients of their
    training loss, each on at most 200 samples. If eta is a schedule, it is that of the first round.
    """
    eta = algorithm.at(0).eta
    rounds, loss = whole("rounds", rounds, 1), loss or cross_entropy
    oracle = Oracle(model, federation, loss, 0.0, settings.seed)
    parts = [Part(rows[:200], 1 / len(federation)) for rows in oracle.federation.indices]
    losses: dict[float, float] = {}
    gradients = 0.0

    def attempt(factor: float) -> None:
        nonlocal gradients
        tried = replace(algorithm, eta=_round(factor * eta))
        with unwarned():
            run = Simulation(model, federation, tried, settings, loss)
        try:
            while run.round < rounds and bool(run.moment.state.x.isfinite().all()):
                run.advance()
        finally:
            run.close()
        with oracle.on_one_thread():
            found = oracle.loss(run.moment.state.x, parts)
        losses[factor] = found if math.isfinite(found) else math.inf
        gradients += run.moment.gradients

    for factor in FACTORS:
        attempt(factor)
    for _ in range(EXTENSIONS):
        best = min(losses, key=lambda factor: losses[factor])
        if min(losses) < best < max(losses):
            break
        attempt(best * FACTORS[-1] if best == max(losses) else best / FACTORS[-1])
    return Trial({_round(factor * eta): losses[factor] for factor in sorted(losses)}, rounds, gradients)
