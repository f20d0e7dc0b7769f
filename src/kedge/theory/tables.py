"""The rates of the paper's Tables 1 and 2 (Cheng, Huang, Wu and Yuan, ICLR 2024), errata applied: see docs/theory.md.

A rate bounds E|∇f(x̂)|² after R rounds by a sum of terms (scale / R)^power, up to numerical factors, which are 1 here:
rates compare how algorithms scale, they do not predict a number. Table 1 is for full participation, Table 2 for any
cohort.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from kedge.checks import real, whole
from kedge.theory.constants import Constants, constants_of

HALF, TWO_THIRDS, ONE = Fraction(1, 2), Fraction(2, 3), Fraction(1)

GRADIENT = "bounded gradients"
HETEROGENEITY = "bounded heterogeneity"
SAMPLE = "sample smooth"
MINIBATCHES = "O(K) minibatches"
NOISELESS = "noiseless gradients"


@dataclass(frozen=True)
class BoundTerm:
    """(scale / R)^power."""

    formula: str
    power: Fraction
    scale: Callable[[Constants, float], float]
    """Of the constants and the L that the row assumes."""


@dataclass(frozen=True)
class Rate:
    """A row of a table."""

    table: int
    algorithm: str
    """Its id."""
    source: str
    terms: tuple[BoundTerm, ...]
    assumptions: tuple[str, ...] = ()
    """Beyond smoothness and unbiased gradients of bounded variance."""

    @property
    def formula(self) -> str:
        """The terms, in the paper's letters."""
        return " + ".join(term.formula for term in self.terms)

    def holds(self, constants: Constants) -> bool:
        """Whether its assumptions hold for these constants."""
        return not (
            (self.table == 1 and constants.S < constants.N)
            or (GRADIENT in self.assumptions and math.isinf(constants.G))
            or (HETEROGENEITY in self.assumptions and math.isinf(constants.zeta))
            or math.isinf(self.at(constants, 1))
        )

    def each(self, constants: Constants, rounds: float) -> list[float]:
        """Return every term after this many rounds."""
        L = constants.sample_smoothness if SAMPLE in self.assumptions else constants.L
        return [(term.scale(constants, L) / rounds) ** float(term.power) for term in self.terms]

    def at(self, constants: Constants, rounds: float) -> float:
        """Return the bound on E|∇f|² after this many rounds."""
        return sum(self.each(constants, rounds))

    def dominant(self, constants: Constants, rounds: float) -> BoundTerm:
        """Return the largest term after this many rounds."""
        each = self.each(constants, rounds)
        return self.terms[each.index(max(each))]

    def rounds_for(self, constants: Constants, target: float) -> float:
        """Return how many rounds bring the bound to a target; inf if its assumptions do not hold."""
        target = real("target", target, positive=True)
        if not self.holds(constants):
            return math.inf
        # Each term alone needs scale / target^(1/power) rounds; together at most that of a share 1/n of the target.
        alone = [self._alone(constants, index, target) for index in range(len(self.terms))]
        low, high = (
            max(1.0, *alone),
            max(1.0, *(self._alone(constants, i, target / len(alone)) for i in range(len(alone)))),
        )
        for _ in range(100):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self.at(constants, middle) > target else (low, middle)
        return math.ceil(high * (1 - 1e-12))

    def _alone(self, constants: Constants, index: int, target: float) -> float:
        L = constants.sample_smoothness if SAMPLE in self.assumptions else constants.L
        term = self.terms[index]
        return term.scale(constants, L) / math.pow(target, float(1 / term.power))


def _term(formula: str, power: Fraction, scale: Callable[[Constants, float], float]) -> BoundTerm:
    return BoundTerm(formula, power, scale)


# The terms that several rows share; D is L Δ.
_NOISE = _term("(LΔσ²/NKR)^1/2", HALF, lambda c, L: L * c.delta * c.sigma**2 / (c.N * c.K))
_SAMPLED_NOISE = _term("(LΔσ²/SKR)^1/2", HALF, lambda c, L: L * c.delta * c.sigma**2 / (c.S * c.K))
_SMOOTH = _term("LΔ/R", ONE, lambda c, L: L * c.delta)
_DRIFT = _term("(LΔζ/R)^2/3", TWO_THIRDS, lambda c, L: L * c.delta * c.zeta)
_LOCAL_NOISE = _term("(LΔσ/√K R)^2/3", TWO_THIRDS, lambda c, L: L * c.delta * c.sigma / math.sqrt(c.K))
_REDUCED = _term("(LΔσ/NKR)^2/3", TWO_THIRDS, lambda c, L: L * c.delta * c.sigma / (c.N * c.K))
_START = _term("σ²/NKR", ONE, lambda c, L: c.sigma**2 / (c.N * c.K))
_SAMPLED_REDUCED = _term("(LΔσ/S√K R)^2/3", TWO_THIRDS, lambda c, L: L * c.delta * c.sigma / (c.S * math.sqrt(c.K)))
_SAMPLED_START = _term("σ²/SKR", ONE, lambda c, L: c.sigma**2 / (c.S * c.K))
_STORM = (
    _SAMPLED_REDUCED,
    _term("(LΔζ/SR)^2/3", TWO_THIRDS, lambda c, L: L * c.delta * c.zeta / c.S),
    _term("ζ²/SR", ONE, lambda c, L: c.zeta**2 / c.S),
    _SMOOTH,
    _SAMPLED_START,
)
_SCAFFOLD_M_VR = (_SAMPLED_REDUCED, _term("LΔ(1 + N^1/2/S)/R", ONE, lambda c, L: L * c.delta * (1 + c.N**0.5 / c.S)))

RATES: tuple[Rate, ...] = (
    Rate(
        1, "fedavg", "Yu et al. 2019",
        (_NOISE, _term("(LΔG/R)^2/3", TWO_THIRDS, lambda c, L: L * c.delta * c.G), _SMOOTH), (GRADIENT,),
    ),
    Rate(1, "fedavg", "Koloskova et al. 2020", (_NOISE, _DRIFT, _SMOOTH), (HETEROGENEITY,)),
    Rate(1, "fedavg", "Karimireddy et al. 2020", (_NOISE, _DRIFT, _SMOOTH), (HETEROGENEITY,)),
    Rate(1, "fedavg", "Yang et al. 2021", (_NOISE, _SMOOTH), (HETEROGENEITY,)),
    Rate(
        1, "fedavg-m", "Xu et al. 2021 (FedCM)",
        (
            _term("(LΔ(σ² + NKG²)/NKR)^1/2", HALF, lambda c, L: L * c.delta * (c.sigma**2 / (c.N * c.K) + c.G**2)),
            _term("(LΔ(σ/√K + G)/R)^2/3", TWO_THIRDS, lambda c, L: L * c.delta * (c.sigma / math.sqrt(c.K) + c.G)),
        ),
        (GRADIENT, HETEROGENEITY),
    ),
    Rate(1, "led", "Alghunaim 2023", (_NOISE, _LOCAL_NOISE, _SMOOTH)),
    Rate(1, "vrl-sgd", "Liang et al. 2019", (_NOISE, _LOCAL_NOISE, _SMOOTH)),
    Rate(1, "fedavg-m", "Cheng et al. 2024", (_NOISE, _SMOOTH)),
    Rate(1, "bvr-l-sgd", "Murata & Suzuki 2021", (_REDUCED, _START, _SMOOTH), (SAMPLE, MINIBATCHES)),
    Rate(1, "ce-lsgd", "Patel et al. 2022", (_REDUCED, _START, _SMOOTH), (SAMPLE, MINIBATCHES)),
    Rate(
        1, "stem", "Khanduri et al. 2021",
        (
            _term(
                "(LΔ + σ² + ζ²)/(NKR)^2/3", TWO_THIRDS,
                lambda c, L: (L * c.delta + c.sigma**2 + c.zeta**2) ** 1.5 / (c.N * c.K),
            ),
            _SMOOTH,
        ),
        (SAMPLE, HETEROGENEITY),
    ),
    Rate(1, "fedavg-m-vr", "Cheng et al. 2024", (_REDUCED, _SMOOTH), (SAMPLE,)),
    Rate(1, "fedavg-m-vr", "Cheng et al. 2024, B = KR", (_REDUCED, _START, _SMOOTH), (SAMPLE,)),
    Rate(
        2, "scaffold", "Karimireddy et al. 2020",
        (_SAMPLED_NOISE, _term("LΔ(N/S)^2/3/R", ONE, lambda c, L: L * c.delta * (c.N / c.S) ** (2 / 3))),
    ),
    Rate(
        2, "scaffold-m", "Cheng et al. 2024",
        (_SAMPLED_NOISE, _term("LΔ(1 + N^2/3/S)/R", ONE, lambda c, L: L * c.delta * (1 + c.N ** (2 / 3) / c.S))),
    ),
    Rate(
        2, "mimelite-mvr", "Karimireddy et al. 2020b",
        (
            _term("(LΔ(σ + ζ)/R)^2/3", TWO_THIRDS, lambda c, L: L * c.delta * (c.sigma + c.zeta)),
            _term("(LΔ + σ² + ζ²)/R", ONE, lambda c, L: L * c.delta + c.sigma**2 + c.zeta**2),
        ),
        (SAMPLE, NOISELESS),
    ),
    Rate(2, "mb-storm", "Patel et al. 2022", _STORM, (SAMPLE, HETEROGENEITY, MINIBATCHES)),
    Rate(2, "ce-lsgd", "Patel et al. 2022", _STORM, (SAMPLE, HETEROGENEITY, MINIBATCHES)),
    Rate(2, "scaffold-m-vr", "Cheng et al. 2024", _SCAFFOLD_M_VR, (SAMPLE,)),
    Rate(2, "scaffold-m-vr", "Cheng et al. 2024, B = SKR/N", (*_SCAFFOLD_M_VR, _SAMPLED_START), (SAMPLE,)),
)  # fmt: skip
"""All rows, in the paper's order."""


@dataclass(frozen=True)
class Ranked:
    """What a row says for given constants."""

    rate: Rate
    bound: float
    """E|∇f|² after the rounds that were asked for; inf if its assumptions do not hold."""
    rounds: float
    """Rounds to the target; inf likewise."""
    dominant: str
    """The largest term at that point, "" if there is none."""


def rates(constants: Constants, rounds: int = 1000, target: float | None = None) -> list[Ranked]:
    """Rank every row of the paper's tables for these constants: the fewest rounds to the target come first.

    ``target`` is a value of E|∇f|²; None is a hundredth of LΔ. A row whose assumptions do not hold comes last.
    All numerical factors are 1: compare the rows, do not read them as predictions.

    >>> import kedge
    >>> kedge.theory.rates(kedge.theory.Constants(L=1, delta=1, sigma=1))[0].rate.algorithm
    'fedavg-m-vr'
    """
    constants = constants_of(constants)
    rounds = whole("rounds", rounds, 1)
    goal = constants.L * constants.delta / 100 if target is None else real("target", target, positive=True)

    def ranked(rate: Rate) -> Ranked:
        if not rate.holds(constants):
            return Ranked(rate, math.inf, math.inf, "")
        needed = rate.rounds_for(constants, goal)
        return Ranked(rate, rate.at(constants, rounds), needed, rate.dominant(constants, needed).formula)

    return sorted((ranked(rate) for rate in RATES), key=lambda row: (row.rounds, row.bound))
