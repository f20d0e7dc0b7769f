"""Every algorithm with hyper-parameters that exercise all of its rule, and its literal loop."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kedge.algorithms.dual import communicates
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


def fedpd(oracle, x0, cohorts, steps, *, skip, **hyper) -> literal.Trace:
    """Run the literal loop of FedPD with the library's draw of the rounds that communicate."""
    communicate = [communicates(oracle.seed, round, skip) for round in range(len(cohorts))]
    return literal.fedpd(oracle, x0, cohorts, steps, communicate=communicate, **hyper)


OPENING = {"opening_batches": "B"}

# Of VRL-SGD, LED and FedPD the loops update the clients after the average, the library's clients when they hear of it
# with the next round: their vectors are compared in test_identities.py.
CASES = [
    Case("fedavg", {"eta": 0.05, "gamma": 0.2}, literal.fedavg),
    Case("fedavg-m", {"eta": 0.05, "beta": 0.3, "gamma": 0.2}, literal.fedavg_m),
    Case("fedavg-m-vr", {"eta": 0.05, "beta": 0.3, "gamma": 0.2, "opening_batches": 2}, literal.fedavg_m_vr, OPENING),
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
    Case("bvr-l-sgd", {"eta": 0.05, "stage_rounds": 2, "opening_batches": 3}, literal.bvr_l_sgd, OPENING),
    *(
        Case(
            "stem",
            {"eta": 0.05, "beta": 0.3, "opening_batches": 2, "reference": reference},
            literal.stem,
            OPENING,
            {"x_i": "x_i"},
        )
        for reference in ("local", "average")
    ),
    Case("mimelite", {"eta": 0.05, "beta": 0.3}, literal.mimelite),
    Case("mime", {"eta": 0.05, "beta": 0.3}, literal.mime),
    *(
        Case(name, {"eta": 0.05, "beta": 0.3, "reference": reference}, loop)
        for name, loop in (("mimelite-mvr", literal.mimelite_mvr), ("mime-mvr", literal.mime_mvr))
        for reference in ("prev", "current")
    ),
    Case("fedprox", {"eta": 0.05, "mu": 0.5, "gamma": 0.3}, literal.fedprox),
    Case("fednova", {"eta": 0.05}, literal.fednova),
    Case("feddyn", {"eta": 0.05, "alpha": 0.8}, literal.feddyn, client={"q_i": "q_i"}),
    *(
        Case("fedpd", {"eta": 0.05, "alpha": 0.8, "skip": skip}, fedpd, client={"lambda_i": "lambda_i"})
        for skip in (0.0, 0.5)
    ),
    Case("vrl-sgd", {"eta": 0.05}, literal.vrl_sgd),
    Case("fedgate", {"eta": 0.05, "gamma": 0.3}, literal.fedgate, client={"delta_i": "delta_i"}),
    Case("led", {"eta": 0.05}, literal.led),
    Case("led", {"eta": 0.05, "b": 0.1}, literal.led),
    Case("slowmo", {"eta": 0.05, "alpha": 0.9, "beta": 0.6}, literal.slowmo),
    Case("server-momentum", {"eta": 0.05, "server_lr": 0.7, "beta1": 0.6}, literal.server_momentum),
    Case("fedadagrad", {"eta": 0.05, "server_lr": 0.1, "tau": 0.01}, literal.fedadagrad),
    *(
        Case(name, {"eta": 0.05, "server_lr": 0.05, "beta1": 0.6, "beta2": 0.8, "tau": 0.01}, loop)
        for name, loop in (("fedadam", literal.fedadam), ("fedyogi", literal.fedyogi))
    ),
]
