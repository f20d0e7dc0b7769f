"""The hyper-parameters of the paper's four theorems (Cheng, Huang, Wu and Yuan, ICLR 2024) with explicit constants.

q = η K L and u = γ L. L is that of every minibatch loss for the two algorithms with variance reduction. Where the
printed theorems and their proofs disagree, the proofs' conditions decide: docs/theory.md lists every such place. All
conditions that the lemmas and the final summation use are returned with both of their sides.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kedge.algorithm import Algorithm
from kedge.algorithms import ALGORITHMS, FedAvgM, FedAvgMVR, ScaffoldM, ScaffoldMVR, algorithm_class
from kedge.checks import whole
from kedge.errors import UsageError, shown
from kedge.theory.constants import constants_of

e = math.e


@dataclass(frozen=True)
class Condition:
    """An inequality that a proof uses: left <= right."""

    text: str
    left: float
    right: float

    @property
    def holds(self) -> bool:
        """Whether it holds, up to rounding."""
        return self.left <= self.right * (1 + 1e-9)


@dataclass(frozen=True)
class TheorySettings:
    """Hyper-parameters of a theorem, and the bound that they give."""

    algorithm: type[Algorithm[Any, Any]]
    eta: float
    beta: float
    gamma: float
    opening_batches: int | None
    """B; None where the algorithm starts from g^0 = 0."""
    rounds: int
    bound: float
    """mean_r E|∇f(x^r)|² over the rounds is at most this."""
    conditions: tuple[Condition, ...]

    @property
    def B(self) -> int | None:  # noqa: N802
        """The paper's letter for the opening minibatches."""
        return self.opening_batches

    def make(self) -> Algorithm[Any, Any]:
        """Build the algorithm."""
        return self.algorithm(**self.hyper())

    def hyper(self) -> dict[str, Any]:
        """The hyper-parameters by name."""
        found = {"eta": self.eta, "beta": self.beta, "gamma": self.gamma}
        return found if self.opening_batches is None else found | {"opening_batches": self.opening_batches}


@dataclass(frozen=True)
class Letters:
    """The constants in the paper's letters, and the rounds."""

    L: float
    D: float  # L Δ
    sigma: float
    G0: float
    N: int
    S: int
    K: int
    R: int
    c: float

    @property
    def h(self) -> float:
        """(N - S) / (S (N - 1)), the variance factor of sampling without replacement."""
        return 0.0 if self.N == 1 else (self.N - self.S) / (self.S * (self.N - 1))


@dataclass(frozen=True)
class Chosen:
    """What a theorem chooses, dimensionless."""

    beta: float
    u: float
    q: float
    B: int | None
    rest: float
    """The bound on mean_r E|∇f|²."""
    conditions: tuple[Condition, ...]


def settings(
    algorithm: str | type[Algorithm[Any, Any]] | Algorithm[Any, Any],
    constants: Any,
    rounds: int,
    *,
    c: float = 1.0,
    alternative: bool = False,
) -> TheorySettings:
    """Return the hyper-parameters with which the paper's theorem holds, all its conditions checked, and its bound.

    Args:
        algorithm: fedavg-m, fedavg-m-vr, scaffold-m or scaffold-m-vr.
        constants: `Constants`, or what `measure` returned.
        rounds: R.
        c: the largest momentum, in (0, 1].
        alternative: for the two with variance reduction, the theorem's second choice of beta and B, whose opening
            costs about as much as the run; the first choice may ask for far more.

    >>> import kedge
    >>> found = kedge.theory.settings("fedavg-m", kedge.theory.Constants(L=1, delta=1, sigma=1, G0=1), rounds=100)
    >>> found.make()
    FedAvgM(eta=..., beta=1.0, gamma=0.041666666666666664)
    """
    kind, theorem = _theorem(algorithm)
    known, R = constants_of(constants), whole("rounds", rounds, 1)
    if not 0 < c <= 1:
        raise UsageError(f"c is {shown(c)}, but must be above 0 and at most 1")
    name = _id(kind)
    if kind in (FedAvgM, FedAvgMVR) and known.S < known.N:
        raise UsageError(
            f"the theorem of {name} needs every client in every round, but cohort is {known.S} of {known.N}; "
            "those of scaffold-m and scaffold-m-vr do not"
        )
    if alternative and not has_alternative(kind):
        raise UsageError(f"alternative is True, but the theorem of {name} has only one choice")
    if kind in (FedAvgM, FedAvgMVR) and math.isinf(known.initial_gradients):
        raise UsageError(f"zeta is inf, so the theorem of {name} needs G0, the mean of |∇f_i(x^0)|² over the clients")
    L = known.sample_smoothness if kind in (FedAvgMVR, ScaffoldMVR) else known.L
    problem = Letters(L, L * known.delta, known.sigma, known.initial_gradients, known.N, known.S, known.K, R, c)
    found = theorem(problem, alternative)
    failed = [condition.text for condition in found.conditions if not condition.holds]
    if failed:
        raise UsageError(f"the theorem of {name} does not hold for these constants: {failed[0]}")
    return TheorySettings(
        kind, found.q / (known.K * L), found.beta, found.u / L, found.B, R, found.rest, found.conditions
    )


def has_alternative(algorithm: str | type[Algorithm[Any, Any]] | Algorithm[Any, Any]) -> bool:
    """Whether the theorem of an algorithm has a second choice of beta and B."""
    return _theorem(algorithm)[0] in (FedAvgMVR, ScaffoldMVR)


def fedavg_m(p: Letters, alternative: bool = False) -> Chosen:
    """FedAvg-M, S = N, g^0 = 0."""
    beta = min(p.c, math.sqrt(_ratio(p.N * p.K * p.D, p.sigma**2 * p.R)))
    u = min(1 / 24, beta / 6)
    q = min(
        1 / (24 * math.sqrt(e)), 1 / (24 * e * beta * u * p.R), 1 / beta,
        math.sqrt(_ratio(p.D, p.G0 * beta**3 * p.R)), 1 / (2 * math.sqrt(beta * p.N)),
        (8 * beta**3 * p.N * p.K) ** -0.25,
    )  # fmt: skip
    start = 2 * p.D  # E_{-1} = |∇f(x^0)|²
    bound = 7 * (
        p.D / (u * p.R) + 39 * start / (56 * beta * p.R) + 78 / 7 * (e * beta * q) ** 2 * p.G0
        + 39 * beta * p.sigma**2 / (14 * p.N * p.K)
    )  # fmt: skip
    conditions = (
        Condition("γL <= 1/24", u, 1 / 24),
        Condition("γL <= β/6", u, beta / 6),
        Condition("ηKL <= 1/β", q, 1 / beta),
        Condition(
            "288e(ηKL)²((1-β)² + e(βγLR)²) <= 1", 288 * e * q**2 * ((1 - beta) ** 2 + e * (beta * u * p.R) ** 2), 1
        ),
        Condition(
            "4β(ηKL)²(1/K + 2(βηKL)²) <= 2/NK", 4 * beta * q**2 * (1 / p.K + 2 * (beta * q) ** 2), 2 / (p.N * p.K)
        ),
        Condition("(βηKL)²G_0 <= LΔ/βR", (beta * q) ** 2 * p.G0, p.D / (beta * p.R)),
    )
    return Chosen(beta, u, q, None, bound, conditions)


def fedavg_m_vr(p: Letters, alternative: bool = False) -> Chosen:
    """FedAvg-M-VR, S = N."""
    wanted = _ratio(p.N * p.K * p.D**2, p.sigma**4 * p.R**2) ** (1 / 3)
    beta = min(p.c, max(1 / p.R, wanted) if alternative else wanted)
    u = min(1 / 24, math.sqrt(beta * p.N * p.K / 54))
    q = min(
        1 / (4 * e), _ratio(beta, math.sqrt(576 * 289 / 72 * e) * (1 - beta)), 1 / (math.sqrt(4608) * e * u * p.R),
        math.sqrt(_ratio(p.D, p.G0 * u * p.R)), math.sqrt(beta / (96 * p.N)), (beta / (192 * p.N * p.K)) ** 0.25,
    )  # fmt: skip
    B = p.K * p.R if alternative else math.ceil(p.K / (p.R * beta**2))
    start = p.sigma**2 / (p.N * B)
    bound = 7 * (
        p.D / (u * p.R) + 39 * start / (56 * beta * p.R) + 312 / 7 * (e * q) ** 2 * p.G0
        + 39 * beta * p.sigma**2 / (14 * p.N * p.K)
    )  # fmt: skip
    spread = 1 / p.K + 2 * q**2
    conditions = (
        Condition("γL <= 1/24", u, 1 / 24),
        Condition("γL <= √(βNK/54)", u, math.sqrt(beta * p.N * p.K / 54)),
        Condition("ηKL <= 1/4e", q, 1 / (4 * e)),
        Condition(
            "288e(ηKL)²((289/72)(1-β)² + 8e(βγLR)²) <= β²",
            288 * e * q**2 * (289 / 72 * (1 - beta) ** 2 + 8 * e * (beta * u * p.R) ** 2), beta**2,
        ),
        Condition("32β(ηKL)²(1/K + 2(ηKL)²) <= β²/NK", 32 * beta * q**2 * spread, beta**2 / (p.N * p.K)),
        Condition("128(ηKL)²/β (1/K + 2(ηKL)²)(γL)² <= β/18", 128 * q**2 / beta * spread * u**2, beta / 18),
        Condition("(ηKL)²G_0 <= LΔ/γLR", q**2 * p.G0, p.D / (u * p.R)),
    )  # fmt: skip
    return Chosen(beta, u, q, B, bound, conditions)


def scaffold_m(p: Letters, alternative: bool = False) -> Chosen:
    """SCAFFOLD-M, S of N, g^0 = 0, c_i^0 from B minibatches."""
    beta = min(p.c, p.S / p.N ** (2 / 3), math.sqrt(_ratio(p.D * p.S * p.K, p.sigma**2 * p.R)))
    u = min(1 / 24, beta / 12, p.S**1.5 / (63 * math.sqrt(beta) * p.N))
    q = min(
        1 / 110, 1 / (52 * math.sqrt(p.S)), 1 / (24 * beta * p.K**0.25), (20 * beta**2 * p.S * p.K) ** -0.25,
        p.N / (5 * p.S) * u,
    )  # fmt: skip
    B = math.ceil(p.N * p.K / (p.S * p.R))
    start, controls = 2 * p.D, p.sigma**2 / B
    bound = 7 * (
        p.D / (u * p.R) + 39 * start / (56 * beta * p.R) + 585 * beta * p.N * controls / (28 * p.S**2 * p.R)
        + 390 * beta * p.sigma**2 / (7 * p.S * p.K)
    )  # fmt: skip
    conditions = (
        Condition("γL <= 1/24", u, 1 / 24),
        Condition("γL <= β/12", u, beta / 12),
        Condition("γL <= 1/√(2β)", u, 1 / math.sqrt(2 * beta)),
        Condition("ηKL <= 1/β", q, 1 / beta),
        Condition("βηKL <= 1/24K^1/4", beta * q, 1 / (24 * p.K**0.25)),
        Condition("ηKL <= NγL/5S", q, p.N * u / (5 * p.S)),
        Condition(
            "160eβ(ηKL)² + 24(βγLN/S)²(6h + 80eβ(ηKL)²) <= β/9",
            160 * e * beta * q**2 + 24 * (beta * u * p.N / p.S) ** 2 * (6 * p.h + 80 * e * beta * q**2), beta / 9,
        ),
        Condition(
            "10(ηKL)²(1/K + 2(βηKL)²) + 960eβ(ηKL)²/K <= 4/SK",
            10 * q**2 * (1 / p.K + 2 * (beta * q) ** 2) + 960 * e * beta * q**2 / p.K, 4 / (p.S * p.K),
        ),
        Condition("80eβ(ηKL)² <= 4/S", 80 * e * beta * q**2, 4 / p.S),
    )  # fmt: skip
    return Chosen(beta, u, q, B, bound, conditions)


def scaffold_m_vr(p: Letters, alternative: bool = False) -> Chosen:
    """SCAFFOLD-M-VR, S of N."""
    wanted = _ratio(p.K * p.D, p.sigma**2 * p.R) ** (2 / 3) * p.S ** (1 / 3)
    beta = min(p.S / p.N, p.c, max(1 / p.R, wanted) if alternative else wanted)
    u = min(1 / 24, math.sqrt(beta * p.S / 126), p.S**1.5 / (45 * math.sqrt(beta) * p.N))
    q = min(
        1 / (4 * e), beta / 140, math.sqrt(beta / (2176 * p.S)), (beta / (128 * p.S * p.K)) ** 0.25,
        p.N / (10 * p.S) * u,
    )  # fmt: skip
    usual = max(p.S * p.K / (p.N * p.R * beta**2), p.N * p.K / (p.S * p.R))
    B = math.ceil(p.S * p.K * p.R / p.N if alternative else usual)
    start, controls = p.sigma**2 / (p.N * B), p.sigma**2 / B
    bound = 7 * (
        p.D / (u * p.R) + 39 * start / (56 * beta * p.R) + 585 * beta * p.N * controls / (56 * p.S**2 * p.R)
        + 585 * beta * p.sigma**2 / (14 * p.S * p.K)
    )  # fmt: skip
    conditions = (
        Condition("γL <= 1/24", u, 1 / 24),
        Condition("γL <= √(βS/126)", u, math.sqrt(beta * p.S / 126)),
        Condition("ηKL <= 1/4e", q, 1 / (4 * e)),
        Condition("ηKL <= NγL/10S", q, p.N * u / (10 * p.S)),
        Condition("180(βηKL)² <= 1/6", 180 * (beta * q) ** 2, 1 / 6),
        Condition(
            "720(ηKL)²/β + 18(βγLN/S)²(4h + 720(ηKL)²/β) <= β/9",
            720 * q**2 / beta + 18 * (beta * u * p.N / p.S) ** 2 * (4 * p.h + 720 * q**2 / beta), beta / 9,
        ),
        Condition(
            "64(ηKL)²/β (1/K + 2(ηKL)²) + 8640(ηKL)²/βK <= 5/SK",
            64 * q**2 / beta * (1 / p.K + 2 * q**2) + 8640 * q**2 / (beta * p.K), 5 / (p.S * p.K),
        ),
        Condition("720(ηKL)²/β <= 1/S", 720 * q**2 / beta, 1 / p.S),
    )  # fmt: skip
    return Chosen(beta, u, q, B, bound, conditions)


THEOREMS: dict[type[Algorithm[Any, Any]], Callable[[Letters, bool], Chosen]] = {
    FedAvgM: fedavg_m, FedAvgMVR: fedavg_m_vr, ScaffoldM: scaffold_m, ScaffoldMVR: scaffold_m_vr,
}  # fmt: skip
"""The algorithms with a theorem."""


def _ratio(above: float, below: float) -> float:
    return above / below if below else math.inf


def _id(kind: type[Algorithm[Any, Any]]) -> str:
    return next((name for name, known in ALGORITHMS.items() if known is kind), kind.__name__)


def _theorem(algorithm: Any) -> tuple[type[Algorithm[Any, Any]], Callable[[Letters, bool], Chosen]]:
    kind = algorithm_class(algorithm) if isinstance(algorithm, str) else algorithm
    kind = type(kind) if isinstance(kind, Algorithm) else kind
    if kind not in THEOREMS:
        name = _id(kind) if isinstance(kind, type) else shown(kind)
        raise UsageError(f"{name} has no theorem in the paper; those with one are {', '.join(map(_id, THEOREMS))}")
    return kind, THEOREMS[kind]
