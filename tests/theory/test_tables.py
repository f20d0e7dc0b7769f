"""Tables 1 and 2."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kedge
from kedge.cli.program import execute
from kedge.theory.tables import RATES

BASE = kedge.theory.Constants(L=2, delta=3, sigma=1.5, zeta=0.7, G=4, clients=10, local_steps=8)


def row(algorithm, source="Cheng et al. 2024", table=None):
    return next(r for r in RATES if r.algorithm == algorithm and r.source == source and table in (None, r.table))


def test_every_row_of_both_tables_is_there():
    assert [rate.table for rate in RATES].count(1) == 13
    assert [rate.table for rate in RATES].count(2) == 7
    assert {rate.algorithm for rate in RATES} <= set(kedge.ALGORITHMS)


def test_rows_equal_the_formulas_of_the_paper():
    L, D, s, z, N, K, R = 2, 3, 1.5, 0.7, 10, 8, 50
    assert row("fedavg-m").at(BASE, R) == pytest.approx((L * D * s**2 / (N * K * R)) ** 0.5 + L * D / R)
    assert row("stem", "Khanduri et al. 2021").at(BASE, R) == pytest.approx(
        (L * D + s**2 + z**2) / (N * K * R) ** (2 / 3) + L * D / R
    )
    sampled = dataclasses.replace(BASE, cohort=4)
    assert row("scaffold", "Karimireddy et al. 2020").at(sampled, R) == pytest.approx(
        (L * D * s**2 / (4 * K * R)) ** 0.5 + L * D / R * (N / 4) ** (2 / 3)
    )
    assert row("scaffold-m-vr", "Cheng et al. 2024, B = SKR/N").at(sampled, R) == pytest.approx(
        (L * D * s / (4 * K**0.5 * R)) ** (2 / 3) + L * D / R * (1 + N**0.5 / 4) + s**2 / (4 * K * R)
    )


@given(st.sampled_from(RATES), st.floats(1e-6, 1e3))
def test_the_rounds_for_a_target_are_the_fewest_that_reach_it(rate, target):
    needed = rate.rounds_for(BASE, target)
    assert rate.at(BASE, needed) <= target * (1 + 1e-6)
    assert needed == 1 or rate.at(BASE, needed - 1) > target * (1 - 1e-6)


def test_without_a_bound_on_heterogeneity_only_rows_without_that_assumption_rank():
    rows = kedge.theory.rates(dataclasses.replace(BASE, zeta=math.inf))
    ranked = {r.rate.algorithm for r in rows if math.isfinite(r.rounds)}
    assert "fedavg-m" in ranked
    assert not ranked & {"stem", "mb-storm", "mimelite-mvr"}
    assert [r.rounds for r in rows] == sorted(r.rounds for r in rows)


def test_scaffold_m_needs_fewer_rounds_than_scaffold_as_fewer_clients_take_part():
    ratios = []
    for cohort in (100, 10, 1):
        constants = kedge.theory.Constants(L=1, delta=1, clients=100, cohort=cohort)
        need = {r.rate.algorithm: r.rounds for r in kedge.theory.rates(constants, target=1e-4)}
        ratios.append(need["scaffold-m"] / need["scaffold"])
    assert ratios[0] > ratios[1]
    assert ratios[1] < 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"L": -1}, "L is -1, but must be finite and above 0"),
        ({"zeta": -0.5}, "zeta is -0.5, but must be finite and at least 0, or inf"),
        ({"sigma": math.inf}, "sigma is inf, but must be finite"),
        ({"cohort": 20}, "cohort is 20, but there are 10 clients"),
        ({"local_steps": 0}, "local_steps is 0, but must be a whole number"),
        ({"L_sample": 1.0}, "L_sample is 1, but must be at least L"),
    ],
)
def test_bad_constants_get_one_sentence(change, sentence):
    with pytest.raises(kedge.UsageError, match=sentence):
        dataclasses.replace(BASE, **change)


def test_the_command_ranks_and_draws(tmp_path, capsys):
    out = tmp_path / "rates"
    asked = ["--clients", "100", "--cohort", "10", "--sigma", "1", "--zeta", "inf", "--out", str(out)]
    assert execute(["theory", "rates", *asked]) == 0
    said = capsys.readouterr().out
    assert said.index("scaffold-m ") < said.index("scaffold ")
    assert "no guarantee" in said
    assert (tmp_path / "rates.png").stat().st_size > 1000
    assert execute(["theory", "rates", "--clients", "10", "--cohort", "20"]) == 2
    assert capsys.readouterr().err == "kedge: cohort is 20, but there are 10 clients\n"
    assert execute(["theory", "rates", "--zeta", "-1"]) == 2
