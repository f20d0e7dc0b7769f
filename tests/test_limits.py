"""Who reaches the optimum of heterogeneous quadratics without noise, and who stalls, and where."""

import functools

import pytest
import torch

import kedge
from benchmarks import limits
from benchmarks.limits import ETA, ROUNDS, STEPS


@functools.cache
def problem(heterogeneity: str):
    return kedge.quadratics(clients=10, dim=20, heterogeneity=heterogeneity, seed=0)


@functools.cache
def limit(algorithm, heterogeneity: str = "large", cohort: int | None = None, rounds: int = ROUNDS) -> torch.Tensor:
    return limits.run(algorithm, problem(heterogeneity), rounds, cohort).x


def error(x: torch.Tensor, heterogeneity: str = "large") -> float:
    return limits.error(x, problem(heterogeneity))


CONTROLLED = [kedge.Scaffold(eta=ETA), kedge.ScaffoldM(eta=ETA, beta=0.1), kedge.ScaffoldMVR(eta=ETA, beta=0.1)]


@pytest.mark.parametrize("cohort", [None, 2])
@pytest.mark.parametrize("algorithm", CONTROLLED, ids=lambda a: type(a).__name__)
def test_control_variables_reach_the_optimum_with_everyone_and_with_few(algorithm, cohort):
    assert error(limit(algorithm, cohort=cohort, rounds=1500 if cohort else ROUNDS)) < 1e-10


@pytest.mark.parametrize("kind", [kedge.MBStorm, kedge.CELSGD])
def test_recursive_estimates_reach_the_optimum_with_everyone_but_not_with_few(kind):
    assert error(limit(kind(eta=ETA, beta=0.1))) < 1e-9
    assert error(limit(kind(eta=ETA, beta=0.1), cohort=2)) > 1e-2


def test_equal_hessians_leave_no_bias_even_to_fedavg():
    assert error(limit(kedge.FedAvg(eta=ETA), "shared"), "shared") < 1e-12


def test_fedavg_stalls_and_momentum_scales_its_bias_by_beta():
    plain, momentum = error(limit(kedge.FedAvg(eta=ETA))), error(limit(kedge.FedAvgM(eta=ETA, beta=0.1)))
    assert plain > 1e-2
    assert momentum / plain == pytest.approx(0.1, rel=0.1)


def test_fedavg_m_has_the_limit_of_fedavg_at_beta_eta():
    momentum = limit(kedge.FedAvgM(eta=ETA, beta=0.1), rounds=1500)
    small = limit(kedge.FedAvg(eta=0.1 * ETA, gamma=ETA * STEPS), rounds=1500)
    torch.testing.assert_close(momentum, small, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("beta", [0.3, 0.1])
def test_fedavg_m_vr_has_the_limit_of_fedavg_whatever_beta_is(beta):
    torch.testing.assert_close(
        limit(kedge.FedAvgMVR(eta=ETA, beta=beta)), limit(kedge.FedAvg(eta=ETA)), rtol=1e-6, atol=1e-6
    )
