"""The literal loops do what the mathematics says, where the library has no part in it.

What they share with the library is in test_reductions.py. The noise depends on the point as well, so that two
evaluations of one minibatch differ by more than the exact gradients do.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest

from . import literal
from .literal import Trace, Vector
from .oracles import NoisyQuadratics as Quadratics
from .worlds import gap

N, D, K, ROUNDS = 6, 5, 4, 5
ETA = 0.07
TOLERANCE = 1e-12

Runner = Callable[..., Trace]


class Changed:
    """An oracle whose minibatch gradients are those of `change(oracle, i, x, r, e, j)`."""

    def __init__(self, oracle: Quadratics, change: Callable[..., Vector]) -> None:
        self.oracle, self.change, self.clients = oracle, change, oracle.clients

    def grad(self, i: int, x: Vector, r: int, e: int, j: int) -> Vector:
        return self.change(self.oracle, i, x, r, e, j)

    def full(self, i: int, x: Vector) -> Vector:
        return self.oracle.full(i, x)


X0 = np.random.default_rng(3).normal(size=D)


def draw(size: int, *, rounds: int = ROUNDS, clients: int = N, seed: int = 11) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [[int(i) for i in rng.permutation(clients)[:size]] for _ in range(rounds)]


EVERYBODY = draw(N)
SAMPLED = draw(3)
PARTICIPATION = pytest.mark.parametrize("cohorts", [EVERYBODY, SAMPLED], ids=["all", "sampled"])
GAMMA = pytest.mark.parametrize("gamma", [None, 0.4], ids=["averaging", "gamma"])
NOISY = Quadratics()
EXACT = Quadratics(noise=0.0)
ONE_STREAM = Quadratics(exchanges=False)


def equal(a: Any, b: Any) -> bool:
    return gap(a, b) <= TOLERANCE


def rows(state: dict[int, Vector]) -> Vector:
    return np.array([state[i] for i in sorted(state)])


def same(a: Trace, b: Trace, *server: str) -> bool:
    """Equal server models in every round, equal named server vectors at the end."""
    assert len(a.xs) == len(b.xs)
    return all(equal(p, q) for p, q in zip(a.xs, b.xs, strict=True)) and all(
        equal(a.server[name], b.server[name]) for name in server
    )


def prefixes(run: Callable[[list[list[int]]], Trace], cohorts: list[list[int]]) -> list[Trace]:
    """The traces after 0, 1, ..., R rounds."""
    return [run(cohorts[:r]) for r in range(len(cohorts) + 1)]


# Every algorithm at generic hyper-parameters: `run(oracle, x0, cohorts, K)`.
GENERIC: dict[str, Runner] = {
    "fedavg": partial(literal.fedavg, eta=ETA),
    "fedavg_m": partial(literal.fedavg_m, eta=ETA, beta=0.3),
    "fedavg_m_hat": partial(literal.fedavg_m_hat, eta_hat=ETA, beta=0.3),
    "fedavg_m_vr": partial(literal.fedavg_m_vr, eta=ETA, beta=0.3, B=2),
    "scaffold": partial(literal.scaffold, eta=ETA, B=2),
    "scaffold_i": partial(literal.scaffold, eta=ETA, B=2, option="I"),
    "scaffold_m": partial(literal.scaffold_m, eta=ETA, beta=0.3, B=2),
    "scaffold_m_hat": partial(literal.scaffold_m_hat, eta_hat=ETA, beta=0.3, B=2),
    "scaffold_m_vr": partial(literal.scaffold_m_vr, eta=ETA, beta=0.3, B=2),
    "mb_storm": partial(literal.mb_storm, eta=ETA, beta=0.3, B=2),
    "ce_lsgd": partial(literal.ce_lsgd, eta=ETA, beta=0.3, B=2),
    "ce_lsgd_average": partial(literal.ce_lsgd, eta=ETA, beta=0.3, B=2, output="average"),
    "bvr_l_sgd": partial(literal.bvr_l_sgd, eta=ETA, stage_rounds=3, B=2),
    "stem": partial(literal.stem, eta=ETA, beta=0.3, B=2),
    "stem_average": partial(literal.stem, eta=ETA, beta=0.3, B=2, reference="average"),
    "mimelite": partial(literal.mimelite, eta=ETA, beta=0.3),
    "mime": partial(literal.mime, eta=ETA, beta=0.3),
    "mimelite_mvr": partial(literal.mimelite_mvr, eta=ETA, beta=0.3),
    "mimelite_mvr_current": partial(literal.mimelite_mvr, eta=ETA, beta=0.3, reference="current"),
    "mime_mvr": partial(literal.mime_mvr, eta=ETA, beta=0.3),
    "mime_mvr_current": partial(literal.mime_mvr, eta=ETA, beta=0.3, reference="current"),
    "fedprox": partial(literal.fedprox, eta=ETA, mu=0.5),
    "feddyn": partial(literal.feddyn, eta=ETA, alpha=0.8),
    "fedpd_skipping": partial(literal.fedpd, eta=ETA, alpha=0.8, communicate=[r % 2 == 1 for r in range(1000)]),
    "vrl_sgd": partial(literal.vrl_sgd, eta=ETA),
    "led_half": partial(literal.led, eta=ETA, b=0.5 / K),
    "slowmo": partial(literal.slowmo, eta=ETA, alpha=0.9, beta=0.4),
    "fedadagrad": partial(literal.fedadagrad, eta=ETA, server_lr=0.1, tau=0.01),
    "fedadam": partial(literal.fedadam, eta=ETA, server_lr=0.1, beta1=0.9, beta2=0.9, tau=0.01),
    "fedyogi": partial(literal.fedyogi, eta=ETA, server_lr=0.1, beta1=0.9, beta2=0.9, tau=0.01),
}
FULL_ONLY = {"bvr_l_sgd", "stem", "stem_average", "fedpd_skipping", "vrl_sgd", "led_half"}


# --------------------------------------------------------------------------------------------------
# The comparison itself can fail
# --------------------------------------------------------------------------------------------------


def test_algorithms_differ_from_each_other_at_generic_settings() -> None:
    finals = {name: run(NOISY, X0, EVERYBODY, K).x for name, run in GENERIC.items()}
    close = [(a, b) for a, b in combinations(finals, 2) if gap(finals[a], finals[b]) < 1e-6]
    assert close == []


@pytest.mark.parametrize("name", sorted(GENERIC))
def test_a_run_leaves_its_start_alone_and_lists_all_server_models(name: str) -> None:
    x0 = X0.copy()
    trace = GENERIC[name](NOISY, x0, EVERYBODY, K)
    assert np.array_equal(x0, X0)
    assert np.array_equal(trace.xs[0], X0)
    assert len(trace.xs) == ROUNDS + 1
    assert np.array_equal(trace.xs[-1], trace.x)
    assert np.array_equal(trace.server["x"], trace.x)
    assert trace.x.dtype == np.float64


@pytest.mark.parametrize("name", sorted(GENERIC))
def test_a_shorter_run_is_the_beginning_of_a_longer_one(name: str) -> None:
    cohorts = EVERYBODY if name in FULL_ONLY else SAMPLED
    longer = GENERIC[name](NOISY, X0, cohorts, K)
    shorter = GENERIC[name](NOISY, X0, cohorts[:3], K)
    assert all(np.array_equal(a, b) for a, b in zip(shorter.xs, longer.xs[:4], strict=True))


@pytest.mark.parametrize("name", sorted(set(GENERIC) - FULL_ONLY))
def test_absent_clients_keep_their_state(name: str) -> None:
    before = GENERIC[name](NOISY, X0, SAMPLED[:2], K)
    after = GENERIC[name](NOISY, X0, SAMPLED[:3], K)
    for key, state in after.clients.items():
        for i in range(N):
            assert np.array_equal(state[i], before.clients[key][i]) == (i not in SAMPLED[2])


@pytest.mark.parametrize("name", sorted(FULL_ONLY))
def test_sampling_is_refused_where_it_is_not_defined(name: str) -> None:
    with pytest.raises(ValueError, match="full participation only"):
        GENERIC[name](NOISY, X0, SAMPLED, K)


# --------------------------------------------------------------------------------------------------
# Which minibatches are evaluated, and how often
# --------------------------------------------------------------------------------------------------

OPENING_BATCHES = 2
WITH_OPENING = {
    *("fedavg_m_vr", "scaffold", "scaffold_i", "scaffold_m", "scaffold_m_hat", "scaffold_m_vr", "mb_storm"),
    *("ce_lsgd", "ce_lsgd_average", "bvr_l_sgd", "stem", "stem_average"),
}
TWO_POINTS = {"fedavg_m_vr", "scaffold_m_vr", "stem", "stem_average"}
AFTER_A_QUERY = {
    "mimelite": 1,
    "mime": 2,
    "mimelite_mvr": 2,
    "mimelite_mvr_current": 2,
    "mime_mvr": 3,
    "mime_mvr_current": 3,
}


def expected_evaluations(name: str, r: int, first: bool) -> Counter[tuple[int, int]]:
    """How often a client of round r's cohort evaluates minibatch (e, j); `first` is the head of the cohort."""
    if name in AFTER_A_QUERY:
        return Counter({(1, j): AFTER_A_QUERY[name] for j in range(K)})
    if name not in {"mb_storm", "ce_lsgd", "ce_lsgd_average", "bvr_l_sgd"}:
        return Counter({(0, j): 2 if name in TWO_POINTS else 1 for j in range(K)})
    expected: Counter[tuple[int, int]] = Counter()
    if name == "bvr_l_sgd" and r == 3:  # the second stage starts
        expected.update({(0, j): 1 for j in range(OPENING_BATCHES)})
    elif r >= 1:
        expected.update({(0, j): 2 for j in range(K)})
    if name == "ce_lsgd_average" or (name in {"ce_lsgd", "bvr_l_sgd"} and first):
        expected.update({(0 if r == 0 else 1, j): 2 for j in range(1, K)})
    return expected


@pytest.mark.parametrize("name", sorted(GENERIC))
def test_every_algorithm_evaluates_the_stated_minibatches(name: str) -> None:
    asked: dict[tuple[int, int], Counter[tuple[int, int]]] = {}

    def counted(o: Quadratics, i: int, x: Vector, r: int, e: int, j: int) -> Vector:
        asked.setdefault((i, r), Counter())[e, j] += 1
        return o.grad(i, x, r, e, j)

    cohorts = EVERYBODY if name in FULL_ONLY else SAMPLED
    GENERIC[name](Changed(NOISY, counted), X0, cohorts, K)
    expected = {
        (i, r): expected_evaluations(name, r, i == cohort[0]) for r, cohort in enumerate(cohorts) for i in cohort
    }
    if name in WITH_OPENING:
        expected |= {(i, -1): Counter({(0, j): 1 for j in range(OPENING_BATCHES)}) for i in range(N)}
    assert asked == {key: counts for key, counts in expected.items() if counts}


# --------------------------------------------------------------------------------------------------
# beta = 1
# --------------------------------------------------------------------------------------------------


@PARTICIPATION
def test_without_momentum_mimelite_and_mimelite_mvr_are_fedavg(cohorts: Any) -> None:
    base = literal.fedavg(ONE_STREAM, X0, cohorts, K, eta=ETA)
    assert same(base, literal.mimelite(ONE_STREAM, X0, cohorts, K, eta=ETA, beta=1.0))
    for reference in ("prev", "current"):
        mvr = literal.mimelite_mvr(ONE_STREAM, X0, cohorts, K, eta=ETA, beta=1.0, reference=reference)
        assert same(base, mvr)


@PARTICIPATION
def test_without_momentum_mb_storm_is_minibatch_sgd(cohorts: Any) -> None:
    trace = literal.mb_storm(NOISY, X0, cohorts, K, eta=ETA, gamma=0.4, beta=1.0, B=2)
    for r in range(1, ROUNDS):
        x = trace.xs[r]
        gradient = literal.mean([NOISY.grad(i, x, r, 0, j) for i in cohorts[r] for j in range(K)])
        assert equal(trace.xs[r + 1], x - 0.4 * gradient)


# --------------------------------------------------------------------------------------------------
# Reductions to FedAvg and SGD
# --------------------------------------------------------------------------------------------------


@PARTICIPATION
def test_one_local_step_of_fedavg_is_minibatch_sgd(cohorts: Any) -> None:
    trace = literal.fedavg(NOISY, X0, cohorts, 1, eta=ETA, gamma=0.4)
    for r, cohort in enumerate(cohorts):
        gradient = literal.mean([NOISY.grad(i, trace.xs[r], r, 0, 0) for i in cohort])
        assert equal(trace.xs[r + 1], trace.xs[r] - 0.4 * gradient)


def test_fedprox_with_many_exact_steps_solves_the_proximal_problems() -> None:
    mu, cohort = 0.5, SAMPLED[0]
    proximal = [np.linalg.solve(EXACT.A[i] + mu * np.eye(D), EXACT.b[i] + mu * X0) for i in cohort]
    assert equal(literal.fedprox(EXACT, X0, [cohort], 200, eta=0.5, mu=mu).x, np.mean(proximal, axis=0))


@PARTICIPATION
def test_equal_steps_may_be_listed_for_each_client(cohorts: Any) -> None:
    base = literal.fedavg(NOISY, X0, cohorts, K, eta=ETA)
    assert same(base, literal.fednova(NOISY, X0, cohorts, [K] * N, eta=ETA))
    assert same(base, literal.fedavg(NOISY, X0, cohorts, [K] * N, eta=ETA))


@PARTICIPATION
def test_fedavg_with_unequal_steps_averages_the_local_models(cohorts: Any) -> None:
    steps = [1, 5, 2, 7, 3, 4]
    trace = literal.fedavg(NOISY, X0, cohorts, steps, eta=ETA)
    ends = []
    for i in cohorts[0]:
        y = X0
        for k in range(steps[i]):
            y = y - ETA * NOISY.grad(i, y, 0, 0, k)
        ends.append(y)
    assert equal(trace.xs[1], literal.mean(ends))
    assert not equal(trace.x, literal.fednova(NOISY, X0, cohorts, steps, eta=ETA).x)


@PARTICIPATION
def test_fedadam_approaches_fedavg_as_its_damping_grows(cohorts: Any) -> None:
    base = literal.fedavg(NOISY, X0, cohorts, K, eta=ETA)
    gaps = []
    for tau in (1e4, 1e5):
        adam = literal.fedadam(NOISY, X0, cohorts, K, eta=ETA, server_lr=tau, beta1=0.0, beta2=0.0, tau=tau)
        gaps.append(gap(base.x, adam.x))
    assert gaps[0] < 1e-3
    assert gaps[0] / gaps[1] == pytest.approx(10, rel=0.01)


# --------------------------------------------------------------------------------------------------
# SCAFFOLD and its relatives
# --------------------------------------------------------------------------------------------------


@PARTICIPATION
def test_option_one_of_scaffold_stores_full_gradients_of_the_last_visit(cohorts: Any) -> None:
    trace = literal.scaffold(NOISY, X0, cohorts, K, eta=ETA, B=2, option="I")
    for i in range(N):
        visits = [r for r in range(ROUNDS) if i in cohorts[r]]
        if visits:
            assert equal(trace.clients["c_i"][i], NOISY.full(i, trace.xs[visits[-1]]))


@PARTICIPATION
def test_frozen_equal_control_variables_give_fedavg_and_fedavg_m(cohorts: Any) -> None:
    def opening_of_client_zero(o: Quadratics, i: int, x: Vector, r: int, e: int, j: int) -> Vector:
        return o.grad(0 if r == -1 else i, x, r, e, j)

    oracle = Changed(NOISY, opening_of_client_zero)
    plain = literal.scaffold(oracle, X0, cohorts, K, eta=ETA, B=3, option="frozen")
    assert np.abs(plain.server["c"]).max() > 0.1
    assert same(literal.fedavg(NOISY, X0, cohorts, K, eta=ETA), plain, "g")
    momentum = literal.scaffold_m(oracle, X0, cohorts, K, eta=ETA, beta=0.3, B=3, option="frozen")
    assert same(literal.fedavg_m(NOISY, X0, cohorts, K, eta=ETA, beta=0.3), momentum, "g")


def test_fedpd_without_communication_leaves_the_server_model() -> None:
    silent = literal.fedpd(NOISY, X0, EVERYBODY, K, eta=ETA, alpha=0.8, communicate=[False] * ROUNDS)
    assert all(np.array_equal(x, X0) for x in silent.xs)
    assert gap(rows(silent.clients["x_0i"]), np.array([X0] * N)) > 0.1


# --------------------------------------------------------------------------------------------------
# Recursive estimates
# --------------------------------------------------------------------------------------------------


def shifted(o: Quadratics, i: int, x: Vector, r: int, e: int, j: int) -> Vector:
    """Round r sees the minibatches of round r + 1; the opening stays."""
    return o.grad(i, x, r if r == -1 else r + 1, e, j)


@pytest.mark.parametrize("reference", ["local", "average"])
def test_stem_with_one_step_is_mb_storm_one_round_later(reference: str) -> None:
    stem = literal.stem(Changed(NOISY, shifted), X0, EVERYBODY, 1, eta=ETA, beta=0.3, B=2, reference=reference)
    storm = literal.mb_storm(NOISY, X0, EVERYBODY, 1, eta=ETA, gamma=ETA, beta=0.3, B=2)
    assert same(stem, storm)


def test_fedavg_m_vr_with_one_step_is_mb_storm_after_its_own_first_recursion() -> None:
    beta = 0.3

    def recursion_in_the_opening(o: Quadratics, i: int, x: Vector, r: int, e: int, j: int) -> Vector:
        if r == -1:
            return beta * o.grad(i, x, 0, 0, 0) + (1 - beta) * o.grad(i, x, -1, 0, 0)
        return o.grad(i, x, r, e, j)

    # Everybody takes part in round 0, whose recursion is part of MB-STORM's opening here; then clients are sampled.
    for cohorts in (EVERYBODY, EVERYBODY[:1] + SAMPLED):
        vr = literal.fedavg_m_vr(NOISY, X0, cohorts, 1, eta=ETA, gamma=0.4, beta=beta, B=1)
        changed = Changed(NOISY, recursion_in_the_opening)
        storm = literal.mb_storm(changed, X0, cohorts, 1, eta=ETA, gamma=0.4, beta=beta, B=1)
        assert same(vr, storm, "x_prev")
        assert equal(vr.server["g"], storm.server["v"])


def test_fedavg_m_vr_with_small_local_steps_approaches_mb_storm_linearly() -> None:
    storm = literal.mb_storm(EXACT, X0, EVERYBODY, K, eta=1.0, gamma=0.4, beta=0.3, B=1)
    gaps = [
        gap(storm.x, literal.fedavg_m_vr(EXACT, X0, EVERYBODY, K, eta=eta, gamma=0.4, beta=0.3, B=1).x)
        for eta in (1e-4, 1e-5)
    ]
    assert gaps[0] < 1e-3
    assert gaps[0] / gaps[1] == pytest.approx(10, rel=0.01)


@pytest.mark.parametrize("reference", ["local", "average"])
def test_stem_without_recursion_is_fedavg_one_step_ahead(reference: str) -> None:
    def run(cohorts: list[list[int]]) -> Trace:
        return literal.stem(NOISY, X0, cohorts, K, eta=ETA, beta=1.0, B=2, reference=reference)

    ahead = [trace.x - ETA * trace.server["d"] for trace in prefixes(run, EVERYBODY)]
    fedavg = literal.fedavg(NOISY, ahead[0], EVERYBODY, K, eta=ETA)
    assert all(equal(a, b) for a, b in zip(ahead, fedavg.xs, strict=True))


@PARTICIPATION
@pytest.mark.parametrize("output", ["one", "average"])
def test_ce_lsgd_with_one_local_step_and_more_minibatches_is_mb_storm(cohorts: Any, output: str) -> None:
    ce = literal.ce_lsgd(NOISY, X0, cohorts, 1, eta=ETA, beta=0.3, B=2, output=output, K_b=3)
    storm = literal.mb_storm(NOISY, X0, cohorts, 3, eta=1.0, gamma=ETA, beta=0.3, B=2)
    assert same(ce, storm, "v", "x_prev")


def test_the_local_phase_of_ce_lsgd_belongs_to_the_first_client_of_the_cohort() -> None:
    reordered = [[cohort[0], *reversed(cohort[1:])] for cohort in SAMPLED]
    rotated = [[*cohort[1:], cohort[0]] for cohort in SAMPLED]
    run = partial(literal.ce_lsgd, NOISY, X0, K=K, eta=ETA, beta=0.3, B=2)
    assert same(run(SAMPLED), run(reordered), "v")
    assert gap(run(SAMPLED).x, run(rotated).x) > 1e-6


def test_average_output_of_ce_lsgd_is_the_mean_of_what_each_client_would_give() -> None:
    cohort = SAMPLED[0]
    run = partial(literal.ce_lsgd, NOISY, X0, K=K, eta=ETA, beta=0.3, B=2)
    singles = [run([[i]]).x for i in cohort]
    assert equal(run([cohort], output="average").x, literal.mean(singles))


def test_bvr_l_sgd_starts_its_stages_from_at_least_one_minibatch() -> None:
    literal.bvr_l_sgd(NOISY, X0, EVERYBODY, K, eta=ETA, stage_rounds=2, B=1)
    with pytest.raises(ValueError, match="but B is 0"):
        literal.bvr_l_sgd(NOISY, X0, EVERYBODY, K, eta=ETA, stage_rounds=2, B=0)


def test_bvr_l_sgd_takes_a_fresh_estimate_at_every_stage_start() -> None:
    trace = literal.bvr_l_sgd(NOISY, X0, EVERYBODY[:4], K, eta=ETA, stage_rounds=3, B=2)
    fresh = literal.mean([NOISY.grad(i, trace.xs[3], 3, 0, j) for i in range(N) for j in range(2)])
    assert equal(trace.server["v"], fresh)


# --------------------------------------------------------------------------------------------------
# Exact gradients and one local step
# --------------------------------------------------------------------------------------------------


@PARTICIPATION
def test_one_step_of_mime_follows_its_statistic_whatever_the_noise(cohorts: Any) -> None:
    def run(part: list[list[int]]) -> Trace:
        return literal.mime(NOISY, X0, part, 1, eta=ETA, beta=0.3)

    for before, after in pairwise(prefixes(run, cohorts)):
        assert equal(after.x, before.x - ETA * after.server["m"])


@PARTICIPATION
@pytest.mark.parametrize(
    ("name", "memory"), [("mimelite", False), ("mime", False), ("mimelite_mvr", True), ("mime_mvr", True)]
)
def test_the_statistic_of_mime_is_made_of_full_gradients_at_server_models(
    cohorts: Any, name: str, memory: bool
) -> None:
    beta = 0.3

    def full(r: int, x: Vector) -> Vector:
        return literal.mean([NOISY.full(i, x) for i in cohorts[r]])

    trace = GENERIC[name](NOISY, X0, cohorts, K, beta=beta)
    m = NOISY.mean_gradient(X0) if memory else np.zeros(D)
    for r in range(ROUNDS):
        here, before = trace.xs[r], trace.xs[max(r - 1, 0)]
        momentum = beta * full(r, here) + (1 - beta) * m
        recursion = full(r, here) + (1 - beta) * (m - full(r, before))
        m = recursion if memory else momentum
    assert equal(trace.server["m"], m)


@PARTICIPATION
@pytest.mark.parametrize("reference", ["prev", "current"])
def test_mime_mvr_differs_from_mimelite_mvr_by_the_svrg_correction_only(cohorts: Any, reference: str) -> None:
    """One step: the two directions differ by beta (c^r - grad F(x^r; xi))."""
    lite = literal.mimelite_mvr(NOISY, X0, cohorts[:1], 1, eta=ETA, beta=0.3, reference=reference)
    corrected = literal.mime_mvr(NOISY, X0, cohorts[:1], 1, eta=ETA, beta=0.3, reference=reference)
    c = literal.mean([NOISY.full(i, X0) for i in cohorts[0]])
    sampled = literal.mean([NOISY.grad(i, X0, 0, 1, 0) for i in cohorts[0]])
    assert equal(corrected.x, lite.x - ETA * 0.3 * (c - sampled))


@PARTICIPATION
@pytest.mark.parametrize("reference", ["prev", "current"])
def test_one_step_of_mime_mvr_mixes_the_query_and_the_recursion(cohorts: Any, reference: str) -> None:
    beta = 0.3

    def run(part: list[list[int]]) -> Trace:
        return literal.mime_mvr(NOISY, X0, part, 1, eta=ETA, beta=beta, reference=reference)

    for r, (old, new) in enumerate(pairwise(prefixes(run, cohorts))):
        x, cohort = old.x, cohorts[r]
        m, ref = (old.server["m"], old.server["x_prev"]) if reference == "prev" else (new.server["m"], x)
        c = literal.mean([NOISY.full(i, x) for i in cohort])
        change = literal.mean([NOISY.grad(i, x, r, 1, 0) - NOISY.grad(i, ref, r, 1, 0) for i in cohort])
        assert equal(new.x, x - ETA * (beta * c + (1 - beta) * (m + change)))


def test_one_step_of_current_mime_mvr_follows_the_new_statistic() -> None:
    """K = 1, ref = x^r: the direction is beta c^r + (1 - beta) m^{r+1}, free of minibatch noise."""
    trace = literal.mime_mvr(NOISY, X0, SAMPLED, 1, eta=ETA, beta=0.3, reference="current")
    quiet = literal.mime_mvr(EXACT, X0, SAMPLED, 1, eta=ETA, beta=0.3, reference="current")
    assert same(trace, quiet, "m")


# --------------------------------------------------------------------------------------------------
# Invariants
# --------------------------------------------------------------------------------------------------


@PARTICIPATION
@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_the_server_direction_is_the_last_displacement_over_gamma(cohorts: Any, name: str) -> None:
    for r in range(1, ROUNDS + 1):
        trace = GENERIC[name](NOISY, X0, cohorts[:r], K, gamma=0.4)
        displacement = trace.xs[-2] - trace.xs[-1]
        assert np.abs(0.4 * trace.server["g"] - displacement).max() <= TOLERANCE * np.abs(trace.x).max()


@PARTICIPATION
@pytest.mark.parametrize("name", ["scaffold_i", "scaffold_m_hat"])
@pytest.mark.parametrize("B", [0, 2])
def test_control_variables_of_other_forms_average_to_the_servers(cohorts: Any, name: str, B: int) -> None:
    for r in range(ROUNDS + 1):
        trace = GENERIC[name](NOISY, X0, cohorts[:r], K, B=B)
        assert equal(rows(trace.clients["c_i"]).mean(axis=0), trace.server["c"])


@PARTICIPATION
@GAMMA
def test_the_servers_control_variable_of_the_hat_form_follows_from_its_direction(
    cohorts: Any, gamma: float | None
) -> None:
    share, beta = len(cohorts[0]) / N, 0.3

    def run(part: list[list[int]]) -> Trace:
        return literal.scaffold_m_hat(NOISY, X0, part, K, eta_hat=ETA, gamma_hat=gamma, beta=beta, B=2)

    for before, after in pairwise(prefixes(run, cohorts)):
        old, new = before.server, after.server
        assert equal(new["c"], old["c"] + share * (new["g_hat"] - (1 - beta) * old["g_hat"] - old["c"]))


def test_first_adaptive_step_starts_from_tau_squared_without_bias_correction() -> None:
    displacement = literal.fedavg(NOISY, X0, SAMPLED[:1], K, eta=ETA).x - X0
    b2, tau = 0.9, 0.5
    expected = {
        "fedadagrad": tau**2 + displacement**2,
        "fedadam": b2 * tau**2 + (1 - b2) * displacement**2,
        "fedyogi": tau**2 + (1 - b2) * displacement**2 * np.where(displacement**2 > tau**2, 1.0, -1.0),
    }
    for name, v in expected.items():
        trace = GENERIC[name](NOISY, X0, SAMPLED[:1], K, tau=tau, beta1=0.6)
        assert equal(trace.server["v"], v)
        assert equal(trace.server["m"], 0.4 * displacement)
        assert equal(trace.x, X0 + 0.1 * 0.4 * displacement / (np.sqrt(v) + tau))


# --------------------------------------------------------------------------------------------------
# Limits without noise
# --------------------------------------------------------------------------------------------------

LONG = draw(N, rounds=400)
LONG_SAMPLED = draw(3, rounds=800)


def distance(oracle: Quadratics, run: Runner, cohorts: list[list[int]]) -> float:
    return gap(run(oracle, X0, cohorts, K).x, oracle.optimum())


EXACT_LIMIT = [
    *("scaffold", "scaffold_i", "scaffold_m", "scaffold_m_vr", "mb_storm", "ce_lsgd", "ce_lsgd_average"),
    *("bvr_l_sgd", "mime", "mime_mvr", "mime_mvr_current", "feddyn", "vrl_sgd", "led_half"),
]
BIASED_LIMIT = [
    *("fedavg", "fedavg_m", "fedavg_m_vr", "stem", "stem_average", "mimelite", "mimelite_mvr"),
    *("mimelite_mvr_current", "fedprox", "slowmo", "fedpd_skipping"),
]


@pytest.mark.parametrize("name", EXACT_LIMIT)
def test_exact_algorithms_reach_the_optimum_with_all_clients(name: str) -> None:
    assert distance(EXACT, GENERIC[name], LONG) < 1e-10


@pytest.mark.parametrize("name", BIASED_LIMIT)
def test_biased_algorithms_stall_unless_the_hessians_are_equal(name: str) -> None:
    assert distance(EXACT, GENERIC[name], LONG) > 1e-4
    assert distance(Quadratics(noise=0.0, shared_hessian=True), GENERIC[name], LONG) < 1e-10


@pytest.mark.parametrize("name", ["scaffold", "scaffold_i", "scaffold_m", "scaffold_m_vr", "feddyn"])
def test_control_variables_reach_the_optimum_with_sampled_clients(name: str) -> None:
    assert distance(EXACT, GENERIC[name], LONG_SAMPLED) < 1e-10


def test_fedgate_reaches_the_optimum_with_sampled_clients() -> None:
    assert distance(EXACT, partial(literal.fedgate, eta=ETA), LONG_SAMPLED) < 1e-10


def test_stem_without_forgetting_is_exact_for_the_local_reference_only() -> None:
    local = partial(literal.stem, eta=ETA, beta=0.0, B=1)
    assert distance(EXACT, local, LONG) < 1e-10
    assert distance(EXACT, partial(local, reference="average"), LONG) > 1e-4


@pytest.mark.parametrize("name", ["scaffold", "scaffold_m", "scaffold_m_vr", "mb_storm", "ce_lsgd"])
def test_the_optimum_is_a_fixed_point(name: str) -> None:
    optimum = EXACT.optimum()
    cohorts = EVERYBODY if name in {"mb_storm", "ce_lsgd"} else SAMPLED
    assert equal(GENERIC[name](EXACT, optimum, cohorts, K).x, optimum)


@pytest.mark.parametrize("beta", [1.0, 0.5, 0.2])
@pytest.mark.parametrize("gamma", [None, 0.1])
def test_fixed_points_of_fedavg_m_are_those_of_fedavg_with_the_rate_beta_eta(beta: float, gamma: float | None) -> None:
    limit = EXACT.fedavg_limit(beta * ETA, K)
    assert equal(literal.fedavg(EXACT, limit, EVERYBODY, K, eta=beta * ETA).x, limit)
    assert equal(literal.fedavg_m(EXACT, limit, EVERYBODY, K, eta=ETA, gamma=gamma, beta=beta).x, limit)
    started_afar = literal.fedavg_m(EXACT, X0, LONG, K, eta=ETA, beta=beta)
    assert gap(started_afar.x, limit) < 1e-10


@pytest.mark.parametrize("beta", [1.0, 0.5, 0.2])
def test_fixed_points_of_fedavg_m_vr_are_those_of_fedavg_for_every_beta(beta: float) -> None:
    limit = EXACT.fedavg_limit(ETA, K)
    assert equal(literal.fedavg_m_vr(EXACT, limit, EVERYBODY, K, eta=ETA, beta=beta, B=0).x, limit)
    started_afar = literal.fedavg_m_vr(EXACT, X0, LONG, K, eta=ETA, beta=beta, B=1)
    assert gap(started_afar.x, limit) < 1e-10


@pytest.mark.parametrize(
    ("name", "power", "betas"),
    [
        ("fedavg_m", 1, (0.2, 0.1)),
        ("mimelite", 2, (0.2, 0.1)),
        ("mimelite_mvr", 1, (0.2, 0.1)),
        ("stem", 1, (0.1, 0.05)),
    ],
)
def test_the_bias_falls_with_the_stated_power_of_beta(name: str, power: int, betas: tuple[float, float]) -> None:
    biases = [distance(EXACT, partial(GENERIC[name], beta=beta), LONG) for beta in betas]
    assert biases[0] / biases[1] == pytest.approx(2**power, rel=0.1)


def test_slowmo_and_fedadagrad_stall_at_the_point_of_fedavg() -> None:
    limit = EXACT.fedavg_limit(ETA, K)
    assert gap(literal.slowmo(EXACT, X0, LONG, K, eta=ETA, alpha=0.9, beta=0.4).x, limit) < 1e-10
    adagrad = literal.fedadagrad(EXACT, X0, LONG, K, eta=ETA, server_lr=1.0, tau=0.1)
    assert gap(adagrad.x, limit) < 1e-10


def test_unequal_steps_move_the_limit_of_fedavg_but_only_slightly_that_of_fednova() -> None:
    steps = [1, 5, 2, 7, 3, 4]
    eta = 1e-3
    cohorts = draw(N, rounds=4000)
    A = sum(k * A for k, A in zip(steps, EXACT.A, strict=True))
    b = sum(k * b for k, b in zip(steps, EXACT.b, strict=True))
    weighted = np.linalg.solve(A, b)
    assert gap(EXACT.optimum(), weighted) > 0.1
    assert gap(EXACT.fedavg_limit(eta, steps), weighted) < 1e-2
    assert gap(literal.fedavg(EXACT, X0, cohorts, steps, eta=eta).x, weighted) < 1e-2
    assert gap(literal.fednova(EXACT, X0, cohorts, steps, eta=eta).x, EXACT.optimum()) < 1e-2
