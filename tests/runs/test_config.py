"""Defaults that depend on other settings."""

import pytest

from kedge.errors import UsageError
from kedge.problem import DATASETS
from kedge.runs.config import check, division, eval_every, resolved


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


@pytest.mark.parametrize("dataset", DATASETS)
def test_a_data_set_is_configured_by_its_facts_alone(dataset):
    entry = DATASETS[dataset]
    config = check({"data": {"dataset": dataset}})
    sections = resolved(config)
    own = {"dim", "heterogeneity", "sigma"} & set(sections["data"])
    assert own == {"dim", "heterogeneity", "sigma"} & entry.options
    assert sections["data"].get("partition") == (entry.partition if entry.load else None)
    assert sections["model"].get("name") == (entry.model if entry.load else None)
    assert division(config).split()[0] == sections["data"][entry.differ_by]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"data": {"dataset": "mnist", "dim": 3}}, "data.dim belongs to the data set quadratics"),
        ({"data": {"dataset": "quadratics", "alpha": 3}}, "has no samples to divide .*, but data.alpha is set"),
        ({"data": {"dataset": "quadratics"}, "model": {"name": "mlp"}}, "brings its own model, but model.name is set"),
        ({"data": {"dataset": "quadratic"}}, "data set 'quadratic' does not exist; did you mean 'quadratics'"),
    ],
)  # fmt: skip
def test_what_a_data_set_does_not_read_is_refused(raw, message):
    with pytest.raises(UsageError, match=message):
        check(raw)
