"""The two worlds in which an identity between algorithms must hold: the library's runs, and the literal loops."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

import kedge
from tests import literal
from tests.cases import CASES
from tests.literal import Vector
from tests.oracles import NoisyQuadratics, QuadraticOracle

CLIENTS, DIM, STEPS, ROUNDS, BATCH, SEED, ETA = 5, 4, 3, 4, 3, 11, 0.07
NOISY = kedge.quadratics(CLIENTS, DIM, heterogeneity="large", sigma=20.0, samples=12, seed=3)
ALONE = kedge.quadratics(1, DIM, heterogeneity="large", sigma=20.0, samples=12, seed=3)
TOLERANCE = 1e-11


class End(NamedTuple):
    """What a run has come to: named vectors of the server, rows of the clients, and who took part."""

    server: dict[str, Vector]
    clients: dict[str, Vector]
    cohorts: Sequence[Sequence[int]]


class World(Protocol):
    """Where algorithms run; `exact` is without noise, `alone` has one client."""

    def run(
        self,
        method: Any,
        *,
        cohort: int | None = None,
        steps: int = STEPS,
        rounds: int = ROUNDS,
        exact: bool = False,
        alone: bool = False,
    ) -> End:
        """Run an algorithm."""
        ...

    def oracle(self, *, exact: bool = False, alone: bool = False) -> literal.Oracle:
        """The gradients of the same problem."""
        ...

    def start(self) -> Vector:
        """x^0."""
        ...


class Library:
    """`kedge.simulate`."""

    def run(self, method, *, cohort=None, steps=STEPS, rounds=ROUNDS, exact=False, alone=False) -> End:
        problem = ALONE if alone else NOISY
        result = kedge.simulate(
            problem.model, problem.federation, method, rounds=rounds, cohort=cohort, local_steps=steps, seed=SEED,
            batch_size=None if exact else BATCH, loss=problem.loss, eval_every=rounds,
        )  # fmt: skip
        server = {name: vector.numpy() for name, vector in result.server.items()}
        states = [result.client(client) for client in range(len(problem.federation))]
        own = {name: np.array([state[name].numpy() for state in states]) for name in states[0]}
        return End(server, own | as_in_the_loops(server, own), result.cohorts)

    def oracle(self, *, exact=False, alone=False) -> literal.Oracle:
        return QuadraticOracle(ALONE if alone else NOISY, SEED, None if exact else BATCH)

    def start(self) -> Vector:
        return NOISY.model.x.detach().numpy()


def as_in_the_loops(server: dict[str, Vector], own: dict[str, Vector]) -> dict[str, Vector]:
    """Client vectors after the last average, of which the library's clients hear with the next message only."""
    if "D_i" in own:
        return {"D_i": own["D_i"] + (server["x"] - own["x_i"]) / server["span"]}
    return {"y_i": own["z_i"] - server["x"]} if "z_i" in own else {}


LOOPS = {kedge.ALGORITHMS[case.id]: case.loop for case in CASES}
NAMES = {ours: theirs for case in CASES for ours, theirs in case.renamed.items()}


class Loops:
    """The literal loops, whose noise depends on the point as well."""

    def run(self, method, *, cohort=None, steps=STEPS, rounds=ROUNDS, exact=False, alone=False) -> End:
        oracle = self.oracle(exact=exact, alone=alone)
        rng = np.random.default_rng(SEED)
        cohorts = [[int(i) for i in rng.permutation(oracle.clients)[:cohort]] for _ in range(rounds)]
        hyper = {NAMES.get(name, name): value for name, value in dataclasses.asdict(method).items()}
        trace = LOOPS[type(method)](oracle, self.start(), cohorts, steps, **hyper)
        clients = {name: np.array([rows[i] for i in sorted(rows)]) for name, rows in trace.clients.items()}
        return End(trace.server, clients, cohorts)

    def oracle(self, *, exact=False, alone=False) -> literal.Oracle:
        return NoisyQuadratics(DIM, clients=1 if alone else CLIENTS, noise=0.0 if exact else 0.5)

    def start(self) -> Vector:
        return np.random.default_rng(3).normal(size=DIM)


def gap(a: Any, b: Any) -> float:
    """The largest difference relative to the largest entry."""
    a, b = np.asarray(a), np.asarray(b)
    assert a.shape == b.shape
    return float(np.abs(a - b).max() / max(np.abs(a).max(), np.abs(b).max(), 1e-300))


def equal(a: Any, b: Any) -> bool:
    """Whether two vectors differ by rounding alone."""
    return gap(a, b) <= TOLERANCE


def same(one: End, other: End, *vectors: str) -> bool:
    """Whether two runs have ended at the same model, with the same named vectors of the server and the clients."""
    pairs = [(one.server[name], other.server[name]) for name in ("x", *vectors) if not name.endswith("_i")]
    pairs += [(one.clients[name], other.clients[name]) for name in vectors if name.endswith("_i")]
    return all(equal(a, b) for a, b in pairs)


def vanishes(vectors: Vector) -> bool:
    """Whether the sum over clients is zero, measured by what is summed."""
    return bool(np.abs(vectors).max() > 0) and bool(np.abs(vectors.sum(0)).max() <= TOLERANCE * np.abs(vectors).max())
