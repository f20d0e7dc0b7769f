"""Keyed draws: uniform, distinct, and functions of their key alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.errors import UsageError
from kedge.keyed import distinct, draw_minibatches, sample_cohort


@given(st.data())
def test_a_minibatch_has_distinct_samples_of_its_client(data):
    samples = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=5))
    batch = data.draw(st.integers(1, min(samples)))
    counts = [data.draw(st.integers(0, 4)) for _ in samples]
    seed = data.draw(st.integers(0, 2**63 - 1))
    drawn = draw_minibatches(seed, 2, 0, list(range(len(samples))), samples, counts, batch)
    for rows, size, count in zip(drawn, samples, counts, strict=True):
        assert rows.shape == (count, batch)
        for row in rows:
            assert len(set(row)) == batch
            assert ((row >= 0) & (row < size)).all()


@given(st.permutations(range(6)), st.integers(1, 6))
def test_what_a_client_sees_depends_on_nobody_else(order, taking_part):
    alone = {i: draw_minibatches(7, 3, 1, [i], [20 + i], [5], 4)[0] for i in range(6)}
    cohort = order[:taking_part]
    together = draw_minibatches(7, 3, 1, cohort, [20 + i for i in cohort], [1 + i % 5 for i in cohort], 4)
    for i, rows in zip(cohort, together, strict=True):
        assert np.array_equal(rows, alone[i][: len(rows)])


def test_every_subset_is_equally_likely():
    uniform = np.random.default_rng(0).random((60_000, 2))
    chosen = np.sort(distinct(uniform, np.full(60_000, 5)), axis=1)
    counts = np.unique(chosen, axis=0, return_counts=True)[1]
    assert len(counts) == 10
    # Five standard deviations of a binomial count.
    assert abs(counts - 6000).max() < 5 * np.sqrt(60_000 * 0.1 * 0.9)


def test_places_have_different_draws():
    places = [(seed, round, exchange, client) for seed in (0, 1) for round in (-1, 0) for exchange in (0, 1)
              for client in (0, 1)]  # fmt: skip
    draws = {tuple(draw_minibatches(s, r, e, [c], [10**9], [1], 4)[0][0]) for s, r, e, c in places}
    assert len(draws) == len(places)


def test_a_cohort_is_uniform_without_replacement_and_in_random_order():
    rounds = [sample_cohort(5, round, 6, 3) for round in range(6000)]
    assert all(len(set(cohort)) == 3 for cohort in rounds)
    for place in range(3):
        counts = np.bincount([cohort[place] for cohort in rounds], minlength=6)
        assert abs(counts - 1000).max() < 5 * np.sqrt(6000 / 6 * 5 / 6)
    assert sample_cohort(5, 17, 6, 3) == rounds[17]


@pytest.mark.parametrize("power", [12, 400])
def test_more_minibatches_than_fit_into_memory_are_refused(power):
    with pytest.raises(
        UsageError, match=r"minibatches of 32 samples per client needs .* of memory, but this machine has"
    ):
        draw_minibatches(0, 0, 0, [0, 1], [50, 50], [10**power] * 2, 32)
