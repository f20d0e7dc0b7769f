"""Clients with fewer samples than a minibatch take what they have, and a default cohort fits any federation."""

import numpy as np
import pytest
import torch
from torch import nn

import kedge
from kedge.errors import RunWarning

RNG = np.random.default_rng(3)
SIZES = [1, 3, 4, 9, 20]


def federation(sizes=SIZES):
    return kedge.Federation([(RNG.normal(size=(n, 5)).astype("float32"), RNG.integers(0, 3, n)) for n in sizes])


def play(data, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))
    length = {} if "local_epochs" in options else {"local_steps": 2}
    settings = {"rounds": 3, "cohort": 4, "batch_size": 4} | length | options
    return kedge.simulate(model, data, kedge.ScaffoldM(eta=0.1), **settings)


def test_a_small_client_takes_all_it_has_for_any_engine_and_number_of_threads():
    data = federation()
    with pytest.warns(RunWarning, match="batch_size is 4, but 2 of 5 clients have fewer samples"):
        one = play(data, threads=1)
    with pytest.warns(RunWarning):
        three = play(data, threads=3)
    with pytest.warns(RunWarning):
        module = play(data, engine="module")
    assert torch.equal(one.server["x"], three.server["x"])
    torch.testing.assert_close(one.server["x"], module.server["x"], rtol=1e-5, atol=1e-6)


def test_a_warning_points_at_the_line_that_called_kedge(tmp_path):
    for out in (None, tmp_path / "run"):
        with pytest.warns(RunWarning) as said:
            play(federation(), cohort=10, out=out)
        assert {warning.filename for warning in said} == {__file__}
        assert len(said) == 2


def test_a_client_smaller_than_its_minibatch_computes_its_exact_gradient():
    data = federation([3, 3])
    with pytest.warns(RunWarning):
        large = play(data, batch_size=32, cohort=None, local_epochs=2.0)
    exact = play(data, batch_size=None, cohort=None, local_epochs=2.0)
    torch.testing.assert_close(large.server["x"], exact.server["x"], rtol=1e-5, atol=1e-6)
    assert large.history[-1]["gradients"] == exact.history[-1]["gradients"]


def test_a_default_cohort_that_is_too_large_is_everyone_and_a_chosen_one_is_refused():
    data = federation([4] * 3)
    with pytest.warns(RunWarning, match="cohort is 10, a default, but there are 3 clients: all of them take part"):
        result = play(data, cohort=10)
    assert sorted(result.cohorts[0]) == [0, 1, 2]
    assert torch.equal(result.server["x"], play(data, cohort=None).server["x"])
    with pytest.raises(kedge.UsageError, match="cohort is 9, but the federation has 3 clients"):
        play(data, cohort=9)


def test_a_minibatch_far_larger_than_any_client_costs_no_more_than_the_client_has():
    data = federation([4, 3])
    with pytest.warns(RunWarning):
        huge = play(data, cohort=None, batch_size=10**9)
    with pytest.warns(RunWarning):
        large = play(data, cohort=None, batch_size=10)
    assert torch.equal(huge.server["x"], large.server["x"])
