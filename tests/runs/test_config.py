"""Defaults that depend on other settings."""

import pytest

from kedge.runs.config import check, eval_every


@pytest.mark.parametrize(
    ("dataset", "rounds", "asked", "expected"),
    [
        ("digits", 100, None, 2),
        ("digits", 20, None, 1),
        ("mnist", 1000, None, 25),
        ("mnist", 100, None, 10),
        ("mnist", 5, None, 1),
        ("mnist", 100, 3, 3),
    ],
)
def test_evaluations_cost_little_of_a_long_run_and_a_short_one_has_ten(dataset, rounds, asked, expected):
    run = {"rounds": rounds, "cohort": 10, "local_steps": 16, "batch_size": 32, "eval_every": asked}
    assert eval_every(check({"data": {"dataset": dataset}, "run": run})) == expected
