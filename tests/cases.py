"""Every algorithm with hyper-parameters that exercise all of its rule, and its literal loop."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests import literal


@dataclass(frozen=True)
class Case:
    """An id, the library's hyper-parameters, and the literal loop with its own names for them."""

    id: str
    hyper: dict[str, Any]
    loop: Callable[..., literal.Trace]
    renamed: dict[str, str] = field(default_factory=dict)  # the library's name -> the loop's
    client: dict[str, str] = field(default_factory=dict)  # client vectors: the library's name -> the loop's

    def literal(self, oracle, x0, cohorts, steps) -> literal.Trace:
        """Run the literal loop."""
        hyper = {self.renamed.get(name, name): value for name, value in self.hyper.items()}
        return self.loop(oracle, x0, cohorts, steps, **hyper)


OPENING = {"opening_batches": "B"}

CASES = [
    Case("fedavg", {"eta": 0.05, "gamma": 0.2}, literal.fedavg),
    Case("fedavg-m", {"eta": 0.05, "beta": 0.3, "gamma": 0.2}, literal.fedavg_m),
    Case(
        "fedavg-m-vr", {"eta": 0.05, "beta": 0.3, "gamma": 0.2, "opening_batches": 2}, literal.fedavg_m_vr, OPENING
    ),
    Case("scaffold", {"eta": 0.05, "gamma": 0.2, "opening_batches": 2}, literal.scaffold, OPENING, {"c_i": "c_i"}),
    Case(
        "scaffold-m",
        {"eta": 0.05, "beta": 0.3, "gamma": 0.2, "opening_batches": 2},
        literal.scaffold_m,
        OPENING,
        {"c_i": "c_i"},
    ),
    Case(
        "scaffold-m-vr",
        {"eta": 0.05, "beta": 0.3, "gamma": 0.2, "opening_batches": 2},
        literal.scaffold_m_vr,
        OPENING,
        {"c_i": "c_i"},
    ),
    Case("mb-storm", {"eta": 0.05, "beta": 0.3, "gamma": 0.2, "opening_batches": 2}, literal.mb_storm, OPENING),
    Case("ce-lsgd", {"eta": 0.05, "beta": 0.3, "opening_batches": 2}, literal.ce_lsgd, OPENING),
    Case("ce-lsgd", {"eta": 0.05, "beta": 0.3, "opening_batches": 2, "output": "average"}, literal.ce_lsgd, OPENING),
]
