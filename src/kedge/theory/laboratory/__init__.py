"""The rate laboratory, `kedge theory verify`: the paper's theory on problems whose constants are known."""

from collections.abc import Callable, Iterator, Sequence

from kedge.errors import unknown
from kedge.theory.laboratory.finding import FULL, QUICK, Budget, Experiment, Finding, Panel, PlottedLine
from kedge.theory.laboratory.rates import every_bound, exponents, participation, speed_up
from kedge.theory.laboratory.steps import constant_rate, fixed_point, heterogeneity, step_or_momentum

EXPERIMENTS: dict[str, Experiment] = {
    "heterogeneity": heterogeneity,
    "fixed-point": fixed_point,
    "speed-up": speed_up,
    "participation": participation,
    "exponents": exponents,
    "every-bound": every_bound,
    "constant-rate": constant_rate,
    "step-or-momentum": step_or_momentum,
}
"""All of them, in the order of the report."""


def check_names(names: Sequence[str] | None) -> None:
    """Refuse a name that no experiment has."""
    for name in names or []:
        if name not in EXPERIMENTS:
            raise unknown("experiment", name, EXPERIMENTS)


def verify(
    names: Sequence[str] | None = None, *, quick: bool = False, before: Callable[[str], None] | None = None
) -> Iterator[Finding]:
    """Run experiments (None: all), one after another; ``before`` hears the name of each."""
    check_names(names)
    for name in EXPERIMENTS if names is None else names:
        if before is not None:
            before(name)
        yield EXPERIMENTS[name](QUICK if quick else FULL)


__all__ = ["EXPERIMENTS", "FULL", "QUICK", "Budget", "Finding", "Panel", "PlottedLine", "check_names", "verify"]
