"""The ranking of points."""

import itertools
import math
from pathlib import Path

import pytest

from kedge.runs.reader import StoredRun
from kedge.runs.search import Standing, ranked


def standing(name, *rows):
    runs = {seed: StoredRun(Path(), rows=[row], summary={"round": 1}) for seed, row in enumerate(rows)}
    return Standing(name, {}, len(rows), rounds=1, runs=runs)


@pytest.mark.parametrize("metric", ["test_loss", "test_accuracy", "test_f1"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_comes_last_in_whatever_order_the_points_are(metric, bad):
    points = {str(value): standing(str(value), {metric: value}, {metric: 0.3}) for value in (bad, 0.9, 0.1)}
    good = ["0.1", "0.9"] if metric == "test_loss" else ["0.9", "0.1"]
    for order in itertools.permutations(points.values()):
        assert [each.name for each in ranked(order, metric)] == [*good, str(bad)]
    assert points[str(bad)].mean(metric) is None
    assert points[str(bad)].spread(metric) is None


def test_a_tie_is_not_decided_by_nan():
    points = [standing(str(loss), {"test_accuracy": 0.5, "test_loss": loss}) for loss in (math.nan, 2.0, 1.0, math.inf)]
    for order in itertools.permutations(points):
        assert [each.name for each in ranked(order, "test_accuracy")][:2] == ["1.0", "2.0"]
