"""Identities and limits of the library alone; those that the literal loops share are in test_reductions.py.

Everything goes through `kedge.simulate`, on heterogeneous quadratics; minibatches are noisy unless a test says exact.
Two algorithms see the same minibatches if they draw them in the same exchange of the same round. The local steps of
the MIME family are in a round's second exchange, so they are compared to others with exact gradients.
"""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import kedge
from kedge.algorithms.dual import communicates
from kedge.algorithms.exchanges import MeanGradient
from kedge.algorithms.scaffold import Control, Controlled, ControlledMomentum
from kedge.algorithms.storm import Estimate
from tests import literal
from tests.oracles import QuadraticOracle
from tests.worlds import BATCH, CLIENTS, DIM, ETA, NOISY, ROUNDS, SEED, STEPS, TOLERANCE, gap

MILD = kedge.quadratics(2, DIM, heterogeneity="mild", seed=5)
RATE = 0.4  # where limits are reached, soon

PARTICIPATION = pytest.mark.parametrize("cohort", [None, 2], ids=["all", "sampled"])
GAMMA = pytest.mark.parametrize("gamma", [None, 0.4], ids=["averaging", "gamma"])


def run(algorithm: Any, problem: Any = NOISY, *, rounds: int = ROUNDS, **options: Any) -> kedge.Result:
    settings = {"cohort": None, "batch_size": BATCH, "seed": SEED, "eval_every": rounds}
    settings |= {} if "local_epochs" in options else {"local_steps": STEPS}
    return kedge.simulate(
        problem.model, problem.federation, algorithm, rounds=rounds, loss=problem.loss, **(settings | options)
    )


def assert_same(one: kedge.Result, other: kedge.Result, *vectors: str, tolerance: float = TOLERANCE) -> None:
    for name in ("x", *vectors):
        assert gap(one.server[name], other.server[name]) <= tolerance, name


def clients(result: kedge.Result, name: str) -> Tensor:
    return torch.stack([result.client(i)[name] for i in range(len(result.simulation.federation))])


def oracle(problem: Any = NOISY, batch_size: int | None = BATCH) -> QuadraticOracle:
    return QuadraticOracle(problem, SEED, batch_size)


def start(problem: Any = NOISY) -> np.ndarray:
    return problem.model.x.detach().numpy()


# --------------------------------------------------------------------------------------------------
# Reductions to FedAvg and SCAFFOLD
# --------------------------------------------------------------------------------------------------


@PARTICIPATION
@pytest.mark.parametrize(
    "method",
    [kedge.MimeLite(ETA, beta=1), kedge.MimeLiteMVR(ETA, beta=1), kedge.MimeLiteMVR(ETA, beta=1, reference="current")],
    ids=repr,
)
def test_without_momentum_mimelite_and_mimelite_mvr_with_exact_gradients_are_fedavg(method, cohort):
    assert_same(run(kedge.FedAvg(ETA), cohort=cohort, batch_size=None), run(method, cohort=cohort, batch_size=None))


@PARTICIPATION
def test_fedadam_and_fedyogi_without_adaptivity_are_fedavg(cohort):
    """The rate and tau grow together; D is then the whole step."""
    base = run(kedge.FedAvg(ETA), cohort=cohort)
    assert_same(base, run(kedge.FedAdam(ETA, server_lr=1e13, beta1=0, beta2=0, tau=1e13), cohort=cohort))
    assert_same(base, run(kedge.FedYogi(ETA, server_lr=2e13, beta1=0, beta2=1, tau=1e13), cohort=cohort))


def with_unequal_sizes() -> Any:
    """Client i keeps 2 + 2i of its samples."""
    own = NOISY.federation
    kept = [index[: 2 + 2 * i] for i, index in enumerate(own.indices)]
    return dataclasses.replace(
        NOISY, federation=kedge.Federation.from_indices(own.features, own.labels, kept, test=own.test)
    )


@PARTICIPATION
@pytest.mark.parametrize(("method", "loop"), [(kedge.FedAvg, literal.fedavg), (kedge.FedNova, literal.fednova)])
def test_unequal_steps_follow_from_local_epochs(method, loop, cohort):
    problem = with_unequal_sizes()
    result = run(method(ETA), problem, cohort=cohort, local_epochs=1, batch_size=2)
    trace = loop(oracle(problem, 2), start(), result.cohorts, [1, 2, 3, 4, 5], eta=ETA)
    assert gap(result.server["x"], trace.x) <= TOLERANCE


def test_fednova_with_unequal_steps_is_not_fedavg():
    problem = with_unequal_sizes()
    one, other = (run(kind(ETA), problem, local_epochs=1, batch_size=2) for kind in (kedge.FedAvg, kedge.FedNova))
    assert gap(one.server["x"], other.server["x"]) > 1e-2


# --------------------------------------------------------------------------------------------------
# Control variables
# --------------------------------------------------------------------------------------------------


class FrozenScaffold(kedge.Scaffold):
    """All c_i are one vector, for ever."""

    def init_server(self, x):
        return Controlled(x, c=0 * x + 0.7)

    def init_client(self, x):
        return Control(c_i=0 * x + 0.7)

    def reply(self, down, client, local):
        return super().reply(down, client, local)[0], client

    def fold(self, server, up, heard):
        return super().fold(server, up, heard)._replace(c=server.c)


class FrozenScaffoldM(kedge.ScaffoldM):
    """All c_i are one vector, for ever."""

    def init_server(self, x):
        return ControlledMomentum(x, c=0 * x + 0.7, g=0 * x)

    def init_client(self, x):
        return Control(c_i=0 * x + 0.7)

    def reply(self, down, client, local):
        return super().reply(down, client, local)[0], client

    def fold(self, server, up, heard):
        return super().fold(server, up, heard)._replace(c=server.c)


@PARTICIPATION
@GAMMA
def test_equal_frozen_control_variables_leave_fedavg_and_fedavg_m(cohort, gamma):
    assert_same(
        run(FrozenScaffold(ETA, gamma=gamma, opening_batches=0), cohort=cohort),
        run(kedge.FedAvg(ETA, gamma=gamma), cohort=cohort),
    )
    assert_same(
        run(FrozenScaffoldM(ETA, beta=0.3, gamma=gamma, opening_batches=0), cohort=cohort),
        run(kedge.FedAvgM(ETA, beta=0.3, gamma=gamma), cohort=cohort),
        "g",
    )


# --------------------------------------------------------------------------------------------------
# Gradient tracking and dual variables
# --------------------------------------------------------------------------------------------------


def deviations(result: kedge.Result) -> Tensor:
    """D_i of VRL-SGD as the next message would make it: the clients have not heard of the last average yet."""
    return clients(result, "D_i") + (result.server["x"] - clients(result, "x_i")) / result.server["span"]


def corrections(result: kedge.Result) -> Tensor:
    """y_i of LED, likewise."""
    return clients(result, "z_i") - result.server["x"]


@pytest.mark.parametrize(
    ("method", "vectors", "loop", "name"),
    [(kedge.VRLSGD(ETA), deviations, literal.vrl_sgd, "D_i"), (kedge.LED(ETA), corrections, literal.led, "y_i")],
    ids=["vrl-sgd", "led"],
)
def test_clients_that_hear_of_an_average_later_correct_themselves_alike(method, vectors, loop, name):
    result = run(method)
    trace = loop(oracle(), start(), result.cohorts, STEPS, eta=ETA)
    expected = np.array([trace.clients[name][i] for i in range(CLIENTS)])
    assert gap(vectors(result), expected) <= TOLERANCE


@PARTICIPATION
def test_the_servers_dual_variable_of_feddyn_is_weighted_as_the_objective(cohort):
    problem = with_unequal_sizes()
    result = run(kedge.FedDyn(ETA, alpha=0.8), problem, cohort=cohort, batch_size=2, weights="size")
    sizes = torch.tensor(problem.federation.sizes, dtype=torch.float64)
    assert gap(result.server["h"], sizes / sizes.sum() @ clients(result, "q_i")) <= TOLERANCE


@pytest.mark.parametrize("rounds", range(1, 8))
def test_anchors_of_fedpd_are_the_average_or_the_clients_own(rounds):
    result = run(kedge.FedPD(ETA, alpha=0.8, skip=0.5), rounds=rounds)
    told = [communicates(SEED, r, 0.5) for r in range(rounds)]
    hyper = {"eta": ETA, "alpha": 0.8, "communicate": told}
    trace = literal.fedpd(oracle(), start(), result.cohorts, STEPS, **hyper)
    expected = np.array([trace.clients["x_0i"][i] for i in range(CLIENTS)])
    ours = result.server["x"].expand(CLIENTS, DIM) if told[-1] else clients(result, "x_0i")
    assert gap(ours, expected) <= TOLERANCE
    assert np.allclose(result.server["x"].numpy(), trace.x, rtol=TOLERANCE, atol=0)


def test_fedpd_sends_nothing_in_rounds_that_skip_communication():
    one, skip, size = 8 * DIM * CLIENTS, 0.5, 12
    history = run(kedge.FedPD(ETA, alpha=0.8, skip=skip), rounds=size, eval_every=1).history
    told = [communicates(SEED, r, skip) for r in range(size)]
    assert {True, False} == set(told)
    for r, row in enumerate(history):
        assert row["bytes_up"] == one * sum(told[: r + 1])
        assert row["bytes_down"] == one * (1 + sum(told[:r]))


def test_fedpd_that_never_communicates_leaves_the_server_alone():
    result = run(kedge.FedPD(ETA, alpha=0.8, skip=1))
    assert torch.equal(result.server["x"], NOISY.model.x)
    assert result.history[-1]["bytes_up"] == 0


def test_rounds_communicate_as_often_as_asked():
    assert all(communicates(SEED, r, 0.0) for r in range(1000))
    assert not any(communicates(SEED, r, 1.0) for r in range(1000))
    assert np.mean([communicates(SEED, r, 0.3) for r in range(4000)]) == pytest.approx(0.7, abs=0.03)


def test_rounds_without_communication_depend_on_the_seed_of_the_run():
    def sent(seed: int) -> tuple[float, ...]:
        """The bytes that have gone up after each of the first rounds."""
        method = kedge.FedPD(ETA, alpha=0.8, skip=0.5)
        return tuple(row["bytes_up"] for row in run(method, rounds=12, eval_every=1, local_steps=1, seed=seed).history)

    assert len({sent(seed) for seed in range(4)}) == 4


# --------------------------------------------------------------------------------------------------
# Recursive estimates
# --------------------------------------------------------------------------------------------------


class RecurringMBStorm(kedge.MBStorm):
    """MB-STORM whose round 0 makes an estimate, at x^{-1} = x^0, instead of a step with v_0."""

    def opening(self):
        return (MeanGradient("v", self.opening_batches),)

    def exchanges(self, round, seed):
        return (Estimate(self.beta, then=self.step),)


class EarlyMBStorm(kedge.MBStorm):
    """MB-STORM that makes the estimate of round r + 1 already in round r, of that round's minibatches."""

    def exchanges(self, round, seed):
        return super().exchanges(round + 1, seed)


@PARTICIPATION
def test_fedavg_m_vr_with_one_step_is_mb_storm_that_recurs_in_round_0(cohort):
    options: dict[str, Any] = {"cohort": cohort, "local_steps": 1}
    vr = run(kedge.FedAvgMVR(ETA, beta=0.3, gamma=0.2, opening_batches=2), **options)
    storm = run(RecurringMBStorm(ETA, beta=0.3, gamma=0.2, opening_batches=2), **options)
    assert_same(vr, storm)
    assert gap(vr.server["g"], storm.server["v"]) <= TOLERANCE


@pytest.mark.parametrize("reference", ["local", "average"])
def test_stem_with_one_step_is_mb_storm_one_estimate_ahead(reference):
    """STEM's round r ends with the direction that MB-STORM's round r + 1 begins with."""
    stem = run(kedge.Stem(ETA, beta=0.3, opening_batches=2, reference=reference), local_steps=1)
    storm = run(EarlyMBStorm(ETA, beta=0.3, opening_batches=2), local_steps=1)
    assert gap(stem.server["d"], storm.server["v"]) <= TOLERANCE
    assert gap(stem.server["x"], storm.server["x_prev"]) <= TOLERANCE


@PARTICIPATION
def test_fedavg_m_vr_with_small_local_steps_approaches_mb_storm_linearly(cohort):
    storm = run(RecurringMBStorm(ETA, beta=0.3, gamma=0.2), cohort=cohort)

    def distance(eta: float) -> float:
        return gap(run(kedge.FedAvgMVR(eta, beta=0.3, gamma=0.2), cohort=cohort).server["x"], storm.server["x"])

    assert distance(1e-4) / distance(1e-5) == pytest.approx(10, rel=0.01)


@PARTICIPATION
def test_mb_storm_without_memory_and_fedavg_with_one_step_are_minibatch_sgd(cohort):
    options: dict[str, Any] = {"cohort": cohort, "local_steps": 1}
    assert_same(run(RecurringMBStorm(ETA, beta=1, gamma=0.2), **options), run(kedge.FedAvg(1e-2, gamma=0.2), **options))


@pytest.mark.parametrize("reference", ["local", "average"])
def test_stem_without_recursion_is_fedavg_one_step_ahead(reference):
    """y_r = x^r - eta d^r is FedAvg's model, from y_0 = x^0 where d^0 = 0."""
    stem = run(kedge.Stem(ETA, beta=1, opening_batches=0, reference=reference)).server
    assert gap(stem["x"] - ETA * stem["d"], run(kedge.FedAvg(ETA)).server["x"]) <= TOLERANCE


# --------------------------------------------------------------------------------------------------
# Invariants
# --------------------------------------------------------------------------------------------------

# --------------------------------------------------------------------------------------------------
# Limits
# --------------------------------------------------------------------------------------------------


def fedavg_limit(problem: Any, eta: float) -> Tensor:
    """The point where the mean over clients of sum_k (I - eta A_i)^k A_i (x - b_i) is zero."""
    left = torch.zeros(problem.hessians.shape[1:], dtype=torch.float64)
    right = torch.zeros(len(left), dtype=torch.float64)
    for A, b in zip(problem.hessians, problem.centers, strict=True):
        weight = sum(torch.linalg.matrix_power(torch.eye(len(b)) - eta * A, k) for k in range(STEPS)) @ A
        left, right = left + weight, right + weight @ b
    return torch.linalg.solve(left, right)


def limit(method: Any) -> Tensor:
    return run(method, MILD, rounds=90, batch_size=None).server["x"]


@pytest.mark.parametrize(
    "method",
    [
        kedge.FedAvg(RATE),
        kedge.FedAvgMVR(RATE, beta=0.7),
        kedge.FedAvgMVR(RATE, beta=0.5),
        kedge.SlowMo(RATE, beta=0.3),
        kedge.ServerMomentum(RATE, beta1=0.3),
    ],
    ids=repr,
)
def test_fedavg_slow_momentum_and_fedavg_m_vr_for_every_beta_have_one_limit(method):
    assert gap(limit(method), fedavg_limit(MILD, RATE)) <= 1e-10
    assert gap(fedavg_limit(MILD, RATE), MILD.optimum) > 1e-4


@pytest.mark.parametrize(("beta", "gamma"), [(0.6, None), (0.5, 0.8)])
def test_the_limit_of_fedavg_m_is_that_of_fedavg_with_the_rate_beta_eta(beta, gamma):
    assert gap(limit(kedge.FedAvgM(RATE, beta=beta, gamma=gamma)), fedavg_limit(MILD, beta * RATE)) <= 1e-10
    assert gap(limit(kedge.FedAvg(beta * RATE, gamma=1.2)), fedavg_limit(MILD, beta * RATE)) <= 1e-10


@pytest.mark.parametrize(
    "method",
    [kedge.Stem(RATE, beta=0), kedge.FedPD(RATE, alpha=1.0), kedge.VRLSGD(RATE), kedge.LED(RATE, b=0.1)],
    ids=repr,
)
def test_exact_algorithms_reach_the_optimum_that_fedavg_misses(method):
    assert gap(limit(method), MILD.optimum) <= 1e-8


# --------------------------------------------------------------------------------------------------
# Everything that is offered
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", kedge.ALGORITHMS)
def test_every_algorithm_needs_only_a_learning_rate(name):
    assert kedge.ALGORITHMS[name](eta=0.1).eta == 0.1


def test_algorithms_for_full_participation_refuse_a_sample():
    limited = {name for name, kind in kedge.ALGORITHMS.items() if kind.full_participation}
    assert limited == {"bvr-l-sgd", "stem", "fedpd", "vrl-sgd", "led"}
    for name in limited:
        with pytest.raises(kedge.UsageError, match="full participation"):
            run(kedge.ALGORITHMS[name](eta=0.1), cohort=2)
