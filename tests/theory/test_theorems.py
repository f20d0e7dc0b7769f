"""The theorems' settings, and the errata of the paper that they apply (docs/theory.md)."""

import math

import numpy as np
import pytest
import sympy

import kedge
from kedge.theory import Constants, settings
from kedge.theory.theorems import Letters, fedavg_m_vr, scaffold_m, scaffold_m_vr

NAMES = ["fedavg-m", "fedavg-m-vr", "scaffold-m", "scaffold-m-vr"]


def problems(count, seed=0):
    """Random instances, over many orders of magnitude."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        N = int(rng.integers(1, 1000))
        sigma = float(10 ** rng.uniform(-4, 4)) if rng.random() < 0.9 else 0.0
        yield Letters(
            1.0, float(10 ** rng.uniform(-3, 3)), sigma, float(10 ** rng.uniform(-4, 6)), N,
            int(rng.integers(1, N + 1)), int(10 ** rng.uniform(0, 3)), int(10 ** rng.uniform(0, 5)),
            float(rng.uniform(0.01, 1)),
        )  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("alternative", [False, True])
def test_every_condition_of_the_proofs_holds_on_random_instances(name, alternative):
    theorem = kedge.theory.theorems.THEOREMS[kedge.ALGORITHMS[name]]
    for problem in problems(2000):
        chosen = theorem(problem, alternative)
        assert [c.text for c in chosen.conditions if not c.holds] == []
        assert 0 < chosen.beta <= 1
        assert chosen.q > 0


@pytest.mark.parametrize("name", NAMES)
def test_settings_make_an_algorithm(name):
    found = settings(name, Constants(L=2, delta=1, sigma=0.5, G0=3), rounds=100)
    made = found.make()
    assert (made.eta, made.beta, made.gamma) == (found.eta, found.beta, found.gamma)
    assert math.isfinite(found.bound)
    assert found.B is None or made.opening_batches == found.B


def test_settings_refuse_what_no_theorem_covers():
    constants = Constants(L=1, delta=1, G0=1, clients=10, cohort=2)
    with pytest.raises(kedge.UsageError, match="fedavg has no theorem in the paper"):
        settings("fedavg", constants, 10)
    with pytest.raises(kedge.UsageError, match="needs every client in every round, but cohort is 2 of 10"):
        settings("fedavg-m", constants, 10)
    with pytest.raises(kedge.UsageError, match="needs G0"):
        settings("fedavg-m", Constants(L=1, delta=1), 10)
    with pytest.raises(kedge.UsageError, match="rounds is 0"):
        settings("scaffold-m", constants, 0)
    with pytest.raises(kedge.UsageError, match="c is 2, but must be above 0"):
        settings("scaffold-m", constants, 10, c=2)


@pytest.mark.parametrize("name", NAMES)
def test_the_bound_has_the_rate_of_the_table(name):
    constants = Constants(L=1, delta=1, sigma=10, G0=1, clients=16, local_steps=8)
    rows = {r.algorithm: r for r in kedge.theory.RATES if r.source == "Cheng et al. 2024"}
    ratios = [settings(name, constants, R).bound / rows[name].at(constants, R) for R in (10**4, 10**6, 10**8)]
    assert max(ratios) < 3 * min(ratios)


# ---- errata


def test_e1_without_the_constant_c_beta_exceeds_1_when_there_is_no_noise():
    assert math.sqrt(10 * 16 * 1 / (1e-6 * 100)) > 1
    assert settings("fedavg-m", Constants(L=1, delta=1, sigma=1e-3, G0=1), 100).beta == 1


def test_e2_momentum_from_models_has_the_sign_of_the_server_step():
    x, g, gamma = sympy.symbols("x g gamma")
    after = x - gamma * g
    assert sympy.simplify((x - after) / gamma - g) == 0
    assert sympy.simplify((after - x) / gamma - g) != 0


def test_e3_the_printed_eta_of_fedavg_m_vr_breaks_the_lemma_that_it_needs():
    broken = 0
    for p in problems(1000):
        chosen = fedavg_m_vr(p)
        beta, u = chosen.beta, chosen.u
        q = min(math.sqrt(p.D / (p.G0 * u * p.R)), math.sqrt(beta / p.N), (beta / (p.N * p.K)) ** 0.25) / 200
        broken += 288 * math.e * q**2 * (289 / 72 * (1 - beta) ** 2 + 8 * math.e * (beta * u * p.R) ** 2) > beta**2
    assert broken > 100


def test_e4_the_printed_eta_of_scaffold_m_vr_breaks_the_first_condition():
    broken = 0
    for p in problems(1000):
        chosen = scaffold_m_vr(p)
        q = min(math.sqrt(chosen.beta / p.S), (chosen.beta / (p.S * p.K)) ** 0.25) / 200
        broken += 720 * q**2 / chosen.beta > chosen.beta / 9
    assert broken > 100


@pytest.mark.parametrize("sigma", [1e-3, 1e4])
def test_e5_the_alternative_needs_max_not_min_of_1_over_r(sigma):
    """The terms of the bound that beta trades, against the claimed rate."""
    N, K, R, D = 10, 10, 1_000_000, 1.0
    claimed = (D * sigma / (N * K * R)) ** (2 / 3) + D / R + sigma**2 / (N * K * R)
    same = (N * K * D**2 / (sigma**4 * R**2)) ** (1 / 3)

    def reached(beta):
        u = min(1, math.sqrt(beta * N * K))
        return D / (u * R) + sigma**2 / (beta * N * K * R**2) + beta * sigma**2 / (N * K)

    assert reached(min(1, max(1 / R, same))) < 4 * claimed
    assert reached(min(1 / R, same)) > 10 * reached(min(1, max(1 / R, same)))


def test_e6_eta_of_fedavg_m_vr_decays_with_the_rounds_but_that_of_fedavg_m_does_not():
    constants = Constants(L=1, delta=1, sigma=1000, G0=1, clients=4, local_steps=4)
    plain = [settings("fedavg-m", constants, R).eta for R in (10**4, 10**6)]
    reduced = [settings("fedavg-m-vr", constants, R).eta for R in (10**4, 10**6)]
    assert plain[1] > 0.5 * plain[0]
    assert reduced[1] < 0.2 * reduced[0]


def test_e7_every_rate_has_the_units_of_a_squared_gradient_and_the_printed_term_has_not():
    base = Constants(L=2, delta=3, sigma=1.5, zeta=0.7, G=4, clients=10, local_steps=8)
    larger = Constants(L=10, delta=15, sigma=7.5, zeta=3.5, G=20, clients=10, local_steps=8)  # 5 f instead of f
    for row in kedge.theory.RATES:
        assert row.at(larger, 50) == pytest.approx(25 * row.at(base, 50))
    assert pytest.approx(5**4 * 2 * 3 * 1.5**2) == 10 * 15 * 7.5**2  # L Δ σ²/(S K R²), as printed


def test_e8_g0_does_not_enter_scaffold_m():
    few, many = (settings("scaffold-m", Constants(L=1, delta=1, sigma=1, G0=G0), 100) for G0 in (1, 1e6))
    assert few == many


def test_e9_the_printed_eta_of_scaffold_m_breaks_the_control_lemma_for_small_beta():
    N, S, beta = 10, 10, 1e-6
    u = min(1 / 24, beta / 12)
    assert min(1 / S**0.5, 1 / beta, S**0.5 / N) / 200 > N * u / (5 * S)


def test_e10_the_printed_gamma_contradicts_the_lemmas():
    for p in problems(200):
        plain, reduced = scaffold_m(p), scaffold_m_vr(p)
        assert plain.beta > plain.beta / 12  # γL = β, as printed, against the lemma's γL <= β/12
        assert plain.u <= min(1 / 24, plain.beta / 12)
        # γL = min{1, √(βS)}, as printed, against γL <= √(βS/126) and γL <= 1/24
        printed = min(1.0, math.sqrt(reduced.beta * p.S))
        assert printed > min(1 / 24, math.sqrt(reduced.beta * p.S / 126)) >= reduced.u


def test_e11_the_second_condition_of_fedavg_m_vr_is_not_implied():
    # First condition tight: q²(1/K + 2q²) = β/(32NK); with (γL)² = βNK/54 the left side is 4β/54.
    beta, N, K = sympy.symbols("beta N K", positive=True)
    left = 128 / beta * (beta / (32 * N * K)) * (beta * N * K / 54)
    assert sympy.simplify(left / beta) == sympy.Rational(4, 54)
    assert sympy.Rational(4, 54) > sympy.Rational(1, 18)


def test_e12_the_split_of_fedavg_m_vr_is_an_identity_only_with_the_sample_gradient():
    F, Fx, Fp, f, fp, g, b = sympy.symbols("F Fx Fp f fp g beta")  # F(x_i), F(x^r), F(x^{r-1}), f(x^r), f(x^{r-1}), g^r
    error = F + (1 - b) * (g - Fp) - f
    split = (1 - b) * (g - fp) + (F - Fx) + b * (Fx - f) + (1 - b) * (Fx - Fp - f + fp)
    printed = (1 - b) * (g - fp) + (F - Fx) + b * (F - f) + (1 - b) * (Fx - Fp - f + fp)
    assert sympy.expand(error - split) == 0
    assert sympy.expand(error - printed) != 0


def test_e13_the_sign_in_the_split_of_scaffold_m():
    F, f, g, b = sympy.symbols("F f g beta")
    error = f - (b * F + (1 - b) * g)
    assert sympy.expand(error - ((1 - b) * (f - g) + b * (f - F))) == 0
    assert sympy.expand(error - ((1 - b) * (f - g) + b * (F - f))) != 0


def test_e14_only_six_times_the_square_leaves_the_ninth_of_beta_that_the_summation_needs():
    beta, N, K = sympy.symbols("beta N K", positive=True)
    largest = beta * N * K / 54  # of (γL)²
    assert sympy.simplify(6 * largest / (N * K)) == beta / 9
    assert sympy.simplify(36 * largest / (N * K)) > beta / 9


def test_e15_the_noise_of_the_controls_carries_the_factor_of_the_drift():
    # The control lemma adds (2S/N) L² U_r, and U_r holds the noise term: the factor multiplies it.
    S, N, U, noise = sympy.symbols("S N U noise")
    assert sympy.expand((2 * S / N) * (U + noise)).coeff(noise) == 2 * S / N


def test_e16_the_square_belongs_inside_the_expectation():
    """The smallest of the slips of notation: E[|x|]² is not E[|x|²], and U_r bounds the latter."""
    x = np.random.default_rng(0).normal(size=(1000, 3))
    lengths = np.linalg.norm(x, axis=1)
    assert lengths.mean() ** 2 < 0.9 * (lengths**2).mean()


def test_e17_the_printed_row_of_koloskova_is_in_iterations():
    constants = Constants(L=1, delta=1, sigma=2, zeta=3, clients=4, local_steps=8)
    row = next(r for r in kedge.theory.RATES if r.source.startswith("Koloskova"))
    R, (L, D, s, z, N, K) = 100, (1, 1, 2, 3, 4, 8)
    iterations = K * R
    printed = (
        (L * D * s**2 / (N * iterations)) ** 0.5 + (L * D * K * z / iterations) ** (2 / 3) + L * D * K / iterations
    )
    assert row.at(constants, R) == pytest.approx(printed)


def test_e18_minibatches_per_local_update():
    found = settings("fedavg-m-vr", Constants(L=1, delta=1, sigma=1, G0=1), 100, alternative=True)
    assert 1 + found.B / (16 * 100) == 2
