"""Algorithms that are one algorithm at some settings, and sums that every run keeps: in the library and in the loops.

Gradients are noisy unless a test says exact. Two algorithms see the same minibatches if they draw them in the same
exchange of the same round. The local steps of the MIME family are in a round's second exchange, so they are compared
with others by exact gradients.
"""

import numpy as np
import pytest

import kedge
from tests import literal
from tests.worlds import CLIENTS, ETA, ROUNDS, STEPS, Library, Loops, equal, gap, same, vanishes

PARTICIPATION = pytest.mark.parametrize("cohort", [None, 2], ids=["all", "sampled"])
GAMMA = pytest.mark.parametrize("gamma", [None, 0.4], ids=["averaging", "gamma"])
OPENING = pytest.mark.parametrize("B", [0, 2])


@pytest.fixture(params=[Library(), Loops()], ids=["library", "loops"])
def world(request):
    return request.param


# --------------------------------------------------------------------------------------------------
# Reductions to FedAvg and SCAFFOLD
# --------------------------------------------------------------------------------------------------


@PARTICIPATION
@GAMMA
def test_without_momentum_fedavg_m_and_fedavg_m_vr_are_fedavg(world, cohort, gamma):
    base = world.run(kedge.FedAvg(ETA, gamma=gamma), cohort=cohort)
    momentum = world.run(kedge.FedAvgM(ETA, beta=1, gamma=gamma), cohort=cohort)
    assert same(base, momentum)
    for B in (0, 2):
        vr = world.run(kedge.FedAvgMVR(ETA, beta=1, gamma=gamma, opening_batches=B), cohort=cohort)
        assert same(momentum, vr, "g")


@PARTICIPATION
@GAMMA
@OPENING
def test_without_momentum_scaffold_m_and_scaffold_m_vr_are_scaffold(world, cohort, gamma, B):
    base = world.run(kedge.Scaffold(ETA, gamma=gamma, opening_batches=B), cohort=cohort)
    for kind in (kedge.ScaffoldM, kedge.ScaffoldMVR):
        other = world.run(kind(ETA, beta=1, gamma=gamma, opening_batches=B), cohort=cohort)
        assert same(base, other, "c", "c_i")


@PARTICIPATION
@pytest.mark.parametrize("reference", ["prev", "current"])
def test_without_momentum_mime_mvr_is_mime(world, cohort, reference):
    base = world.run(kedge.Mime(ETA, beta=1), cohort=cohort)
    assert same(base, world.run(kedge.MimeMVR(ETA, beta=1, reference=reference), cohort=cohort), "m")


@PARTICIPATION
@GAMMA
def test_fedprox_without_the_proximal_term_is_fedavg(world, cohort, gamma):
    base = world.run(kedge.FedAvg(ETA, gamma=gamma), cohort=cohort)
    assert same(base, world.run(kedge.FedProx(ETA, mu=0, gamma=gamma), cohort=cohort))


@PARTICIPATION
def test_fednova_with_equal_steps_is_fedavg(world, cohort):
    assert same(world.run(kedge.FedAvg(ETA), cohort=cohort), world.run(kedge.FedNova(ETA), cohort=cohort))


@PARTICIPATION
def test_slowmo_and_server_momentum_without_momentum_are_fedavg(world, cohort):
    base = world.run(kedge.FedAvg(ETA), cohort=cohort)
    assert same(base, world.run(kedge.SlowMo(ETA, alpha=1, beta=0), cohort=cohort))
    assert same(base, world.run(kedge.ServerMomentum(ETA, server_lr=1, beta1=0), cohort=cohort))


@PARTICIPATION
def test_slowmo_and_server_momentum_are_one_algorithm(world, cohort):
    slow = world.run(kedge.SlowMo(ETA, alpha=0.8, beta=0.6), cohort=cohort)
    heavy = world.run(kedge.ServerMomentum(ETA, server_lr=0.8, beta1=0.6), cohort=cohort)
    assert same(slow, heavy)
    assert equal(slow.server["u"], -heavy.server["m"] / ETA)


def test_fedavg_with_one_client_is_sgd(world):
    x, gradients = world.start(), world.oracle(alone=True)
    for r in range(ROUNDS):
        for k in range(STEPS):
            x = x - ETA * gradients.grad(0, x, r, 0, k)
    assert equal(world.run(kedge.FedAvg(ETA), alone=True).server["x"], x)


@GAMMA
def test_with_one_client_control_variables_cancel(world, gamma):
    def alone(kind, **hyper):
        return world.run(kind(ETA, gamma=gamma, **hyper), alone=True)

    assert same(alone(kedge.Scaffold), alone(kedge.FedAvg))
    assert same(alone(kedge.ScaffoldM, beta=0.3), alone(kedge.FedAvgM, beta=0.3), "g")
    assert same(alone(kedge.ScaffoldMVR, beta=0.3), alone(kedge.FedAvgMVR, beta=0.3), "g")


# --------------------------------------------------------------------------------------------------
# Other forms of one algorithm
# --------------------------------------------------------------------------------------------------


@PARTICIPATION
@GAMMA
@OPENING
def test_control_variables_may_be_recovered_from_the_displacement(world, cohort, gamma, B):
    """Option II of SCAFFOLD, and option II of SCAFFOLD-M after un-mixing the momentum, are the mean gradient."""
    plain = world.run(kedge.Scaffold(ETA, gamma=gamma, opening_batches=B), cohort=cohort)
    momentum = world.run(kedge.ScaffoldM(ETA, beta=0.3, gamma=gamma, opening_batches=B), cohort=cohort)
    where = (world.oracle(), world.start(), plain.cohorts, STEPS)
    option = {"eta": ETA, "gamma": gamma, "B": B, "option": "II"}
    recovered = (literal.scaffold(*where, **option), literal.scaffold_m(*where, beta=0.3, **option))
    for ours, theirs in zip((plain, momentum), recovered, strict=True):
        assert equal(ours.server["x"], theirs.x)
        assert equal(ours.server["c"], theirs.server["c"])
        assert equal(ours.clients["c_i"], [theirs.clients["c_i"][i] for i in range(CLIENTS)])


@PARTICIPATION
@pytest.mark.parametrize("gamma_hat", [None, 0.12])
def test_hat_rates_give_the_reparametrised_form(world, cohort, gamma_hat):
    rates = {"eta_hat": 0.3 * ETA, "beta": 0.3, "gamma_hat": gamma_hat}
    momentum = world.run(kedge.FedAvgM.from_hat(**rates), cohort=cohort)
    controlled = world.run(kedge.ScaffoldM.from_hat(**rates, opening_batches=2), cohort=cohort)
    where = (world.oracle(), world.start(), momentum.cohorts, STEPS)
    hats = (literal.fedavg_m_hat(*where, **rates), literal.scaffold_m_hat(*where, **rates, B=2))
    for ours, theirs in zip((momentum, controlled), hats, strict=True):
        assert equal(ours.server["x"], theirs.x)
        assert equal(ours.server["g"], 0.3 * theirs.server["g_hat"])
    assert equal(controlled.server["c"], hats[1].server["c"])
    assert equal(controlled.clients["c_i"], [hats[1].clients["c_i"][i] for i in range(CLIENTS)])


def test_scaffold_vrl_sgd_fedgate_and_led_are_one_algorithm_with_all_clients(world):
    scaffold = world.run(kedge.Scaffold(ETA, opening_batches=0))
    vrl, gate, led = (world.run(kind(ETA)) for kind in (kedge.VRLSGD, kedge.FedGATE, kedge.LED))
    for other in (vrl, gate, led, world.run(kedge.LED(ETA, b=1 / STEPS))):
        assert same(scaffold, other)
    correction = scaffold.clients["c_i"] - scaffold.server["c"]
    assert equal(correction, vrl.clients["D_i"])
    assert equal(correction, gate.clients["delta_i"])
    assert equal(correction, -led.clients["y_i"] / (ETA * STEPS))


def test_scaffold_with_all_clients_is_fedgate_for_every_server_rate(world):
    scaffold = world.run(kedge.Scaffold(ETA, gamma=0.4, opening_batches=0))
    assert same(scaffold, world.run(kedge.FedGATE(ETA, gamma=0.4)))


def test_scaffold_with_opening_gradients_is_vrl_sgd_with_their_deviations(world):
    result = world.run(kedge.Scaffold(ETA, opening_batches=2))
    opened = literal.opening(world.oracle(), world.start(), 2)
    mean = literal.mean(list(opened.values()))
    shifted = {i: c_i - mean for i, c_i in opened.items()}
    trace = literal.vrl_sgd(world.oracle(), world.start(), result.cohorts, STEPS, eta=ETA, D_0=shifted)
    assert equal(result.server["x"], trace.x)


def test_feddyn_with_all_clients_is_fedpd_that_always_communicates(world):
    dyn, pd = world.run(kedge.FedDyn(ETA, alpha=0.8)), world.run(kedge.FedPD(ETA, alpha=0.8))
    assert same(dyn, pd)
    assert equal(dyn.clients["q_i"], -pd.clients["lambda_i"])


# --------------------------------------------------------------------------------------------------
# Recursive estimates, and one exact step
# --------------------------------------------------------------------------------------------------


def test_fedavg_m_vr_mb_storm_and_stem_with_one_exact_step_are_one_algorithm(world):
    """With exact gradients the recursion of round 0 returns g^0, so that it makes no difference."""
    storm = world.run(kedge.MBStorm(ETA, beta=0.3), steps=1, exact=True)
    assert same(storm, world.run(kedge.FedAvgMVR(ETA, beta=0.3), steps=1, exact=True))
    assert same(storm, world.run(kedge.Stem(ETA, beta=0.3), steps=1, exact=True))


def test_ce_lsgd_without_forgetting_is_bvr_l_sgd_of_one_stage(world):
    bvr = world.run(kedge.BVRLSGD(ETA, stage_rounds=ROUNDS, opening_batches=3))
    assert same(bvr, world.run(kedge.CELSGD(ETA, beta=0, opening_batches=3)), "v", "x_prev")


def test_ce_lsgd_without_memory_is_bvr_l_sgd_with_a_stage_each_round(world):
    bvr = world.run(kedge.BVRLSGD(ETA, stage_rounds=1, opening_batches=STEPS))
    assert same(bvr, world.run(kedge.CELSGD(ETA, beta=1, opening_batches=STEPS)), "v", "x_prev")


@PARTICIPATION
@pytest.mark.parametrize("output", ["one", "average"])
def test_ce_lsgd_with_one_local_step_is_mb_storm(world, cohort, output):
    ce = world.run(kedge.CELSGD(ETA, beta=0.3, output=output), cohort=cohort, steps=1)
    assert same(ce, world.run(kedge.MBStorm(1.0, beta=0.3, gamma=ETA), cohort=cohort, steps=1), "v", "x_prev")


@PARTICIPATION
@pytest.mark.parametrize(
    ("ours", "mime"), [(kedge.FedAvgM, kedge.MimeLite), (kedge.FedAvgMVR, kedge.MimeLiteMVR)], ids=["momentum", "vr"]
)
def test_with_one_exact_step_momentum_is_that_of_mimelite(world, cohort, ours, mime):
    momentum = world.run(ours(ETA, beta=0.3), cohort=cohort, steps=1, exact=True)
    statistic = world.run(mime(ETA, beta=0.3), cohort=cohort, steps=1, exact=True)
    assert same(momentum, statistic)
    assert equal(momentum.server["g"], statistic.server["m"])


# --------------------------------------------------------------------------------------------------
# What holds during every run
# --------------------------------------------------------------------------------------------------

WITH_DIRECTION = [
    *(kedge.FedAvgM(ETA, beta=0.3, gamma=0.4), kedge.FedAvgMVR(ETA, beta=0.3, gamma=0.4)),
    *(kedge.ScaffoldM(ETA, beta=0.3, gamma=0.4), kedge.ScaffoldMVR(ETA, beta=0.3, gamma=0.4)),
    kedge.FedGATE(ETA, gamma=0.4),
]


@PARTICIPATION
@pytest.mark.parametrize("method", WITH_DIRECTION, ids=lambda method: type(method).__name__)
def test_the_server_direction_is_the_last_displacement_over_gamma(world, method, cohort):
    before, after = (world.run(method, cohort=cohort, rounds=rounds).server for rounds in (ROUNDS - 1, ROUNDS))
    assert gap(after["g"], (before["x"] - after["x"]) / 0.4) <= 1e-10


@PARTICIPATION
@pytest.mark.parametrize("beta", [0.3, 1.0])
def test_the_direction_of_fedavg_m_is_a_moving_average_of_local_gradients(world, cohort, beta):
    before, after = (world.run(kedge.FedAvgM(ETA, beta=beta), cohort=cohort, rounds=r) for r in (ROUNDS - 1, ROUNDS))
    x, g, gradients, path = before.server["x"], before.server["g"], world.oracle(), []
    for i in after.cohorts[-1]:
        y = x
        for k in range(STEPS):
            path.append(gradients.grad(i, y, ROUNDS - 1, 0, k))
            y = y - ETA * (beta * path[-1] + (1 - beta) * g)
    assert equal(after.server["g"], beta * literal.mean(path) + (1 - beta) * g)


@PARTICIPATION
@OPENING
@pytest.mark.parametrize("kind", [kedge.Scaffold, kedge.ScaffoldM, kedge.ScaffoldMVR])
def test_control_variables_average_to_the_servers(world, kind, B, cohort):
    for rounds in (1, ROUNDS):
        result = world.run(kind(ETA, opening_batches=B), cohort=cohort, rounds=rounds)
        assert equal(result.server["c"], result.clients["c_i"].mean(0))


@PARTICIPATION
@GAMMA
@pytest.mark.parametrize("beta", [1.0, 0.3])
def test_the_servers_control_variable_follows_from_its_direction_alone(world, cohort, gamma, beta):
    method = kedge.ScaffoldM(ETA, beta=beta, gamma=gamma)
    before, after = (world.run(method, cohort=cohort, rounds=rounds).server for rounds in (ROUNDS - 1, ROUNDS))
    share = (cohort or CLIENTS) / CLIENTS
    fresh = (after["g"] - (1 - beta) * before["g"]) / beta
    assert equal(after["c"], before["c"] + share * (fresh - before["c"]))
    if beta == 1:
        plain = world.run(kedge.Scaffold(ETA, gamma=gamma), cohort=cohort).server["c"]
        assert equal(plain, (1 - share) * before["c"] + share * after["g"])


@pytest.mark.parametrize("rounds", [1, ROUNDS])
def test_corrections_of_vrl_sgd_fedgate_and_led_sum_to_zero(world, rounds):
    assert vanishes(world.run(kedge.VRLSGD(ETA), rounds=rounds).clients["D_i"])
    for b in (None, 0.1):
        assert vanishes(world.run(kedge.LED(ETA, b=b), rounds=rounds).clients["y_i"])
    for cohort in (None, 2):
        assert vanishes(world.run(kedge.FedGATE(ETA, gamma=0.3), rounds=rounds, cohort=cohort).clients["delta_i"])


@PARTICIPATION
def test_the_servers_dual_variable_of_feddyn_is_the_mean_of_the_clients(world, cohort):
    for rounds in (1, ROUNDS):
        result = world.run(kedge.FedDyn(ETA, alpha=0.8), cohort=cohort, rounds=rounds)
        assert equal(result.server["h"], result.clients["q_i"].mean(0))


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_estimates_with_exact_gradients_and_all_clients_are_the_gradient(world, beta):
    exact = world.oracle(exact=True)
    for method in (kedge.MBStorm(ETA, beta=beta), kedge.CELSGD(ETA, beta=beta), kedge.BVRLSGD(ETA, stage_rounds=3)):
        server = world.run(method, exact=True).server
        assert equal(server["v"], literal.mean([exact.full(i, server["x_prev"]) for i in range(CLIENTS)]))
    if beta:
        server = world.run(kedge.MimeLiteMVR(ETA, beta=beta), exact=True).server
        assert equal(server["m"], literal.mean([exact.full(i, server["x_prev"]) for i in range(CLIENTS)]))


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5])
def test_the_error_of_stem_contracts_by_one_minus_beta_at_every_update(world, beta):
    """Exact gradients, d^0 = 0: the error of the direction at the clients' own models."""
    exact = world.oracle(exact=True)
    first = -literal.mean([exact.full(i, world.start()) for i in range(CLIENTS)])
    for rounds in (1, ROUNDS):
        end = world.run(kedge.Stem(ETA, beta=beta, opening_batches=0), exact=True, rounds=rounds)
        error = end.server["d"] - literal.mean([exact.full(i, end.clients["x_i"][i]) for i in range(CLIENTS)])
        assert np.abs(error - (1 - beta) ** (rounds * STEPS) * first).max() <= 1e-11 * np.abs(first).max()


@PARTICIPATION
def test_adaptive_second_moments_stay_positive_and_adagrads_grows(world, cohort):
    for kind in (kedge.FedAdagrad, kedge.FedAdam, kedge.FedYogi):
        before, after = (world.run(kind(ETA), cohort=cohort, rounds=r).server["v"] for r in (ROUNDS - 1, ROUNDS))
        assert (after > 0).all()
        assert kind is not kedge.FedAdagrad or (after > before).all()
