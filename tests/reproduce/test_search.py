"""The search: one rule for every line."""

import dataclasses
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.reproduce.experiment import load
from kedge.reproduce.plan import Case, Hyper, Plan
from kedge.reproduce.search import between, beyond, search, second
from kedge.runs.reader import StoredRun
from kedge.runs.search import Rule

GRID = [Hyper(eta, beta) for eta in (0.01, 0.1, 1.0) for beta in (0.1, 0.3, 0.9)]


@pytest.mark.parametrize(
    ("best", "further"),
    [
        (Hyper(0.1, 0.3), []),
        (Hyper(0.01, 0.3), [Hyper(0.001, 0.3)]),
        (Hyper(1.0, 0.3), [Hyper(10.0, 0.3)]),
        (Hyper(0.1, 0.1), [Hyper(0.1, 0.033)]),
        (Hyper(0.1, 0.9), [Hyper(0.1, 1.0)]),
        (Hyper(1.0, 0.1), [Hyper(10.0, 0.1), Hyper(1.0, 0.033)]),
    ],
)
def test_past_every_edge_on_which_the_best_lies_the_grid_grows_and_beta_ends_at_one(best, further):
    assert beyond(best, GRID) == further
    assert beyond(best, [best]) == []
    assert beyond(Hyper(0.1, 1.0), [*GRID, Hyper(0.1, 1.0)]) == []


def test_a_grid_does_not_grow_past_the_largest_value_that_its_rule_allows():
    grid, best = [hyper._asdict() for hyper in GRID], Hyper(1.0, 0.9)._asdict()
    assert Rule("test_loss").further(best, grid) == [{**best, "eta": 10.0}, {**best, "beta": 1.0}]
    assert Rule("test_loss", largest={"beta": 0.9}).further(best, grid) == [{**best, "eta": 10.0}]


def test_the_best_is_refined_halfway_to_its_neighbours_along_every_axis():
    assert between(Hyper(0.1, 0.3), GRID) == [
        Hyper(0.032, 0.3), Hyper(0.32, 0.3), Hyper(0.1, 0.17), Hyper(0.1, 0.52),
    ]  # fmt: skip
    steps = [Hyper(eta, None, step) for eta in (0.1, 0.4) for step in (1.0, 4.0)]
    assert between(steps[0], steps) == [Hyper(0.2, None, 1.0), Hyper(0.1, None, 2.0)]


def smooth(top: Hyper):
    """Return a batch in which accuracy falls with the distance, in logarithms, from a point."""

    def batch(title, jobs):
        def accuracy(config):
            given = config.algorithm.model_dump()
            distance = abs(math.log(given["eta"] / top.eta))
            if top.beta is not None and "beta" in given:
                distance += abs(math.log(given["beta"] / top.beta))
            return math.exp(-distance / 10)

        return {
            name: StoredRun(
                Path(name), rows=[{"round": 1, "test_accuracy": accuracy(config), "test_loss": 1.0}], summary={}
            )
            for name, config in jobs.items()
        }

    return batch


@given(eta=st.floats(0.01, 1), beta=st.floats(0.1, 0.9))
def test_every_line_ends_inside_its_grid_near_the_best_with_about_the_same_number_of_points(eta, beta):
    plan = Plan(load("mlp-full"), "laptop")
    found = search(plan, smooth(Hyper(eta, beta)))
    for case, grid in found.grids.items():
        choice = found.choice(case)
        assert abs(math.log(choice.eta / eta)) < math.log(3)
        if choice.beta is not None:
            assert abs(math.log(choice.beta / beta)) < math.log(2)
        assert plan.size.tuning.budget - 2 <= len(grid) <= plan.size.tuning.budget + 5  # two digits end a refinement
        etas = [point.eta for point in grid]
        assert min(etas) < choice.eta < max(etas)
        assert len(set(grid)) == len(grid)


def test_the_second_best_point_and_the_finer_grid_are_choices_of_their_own():
    plan = Plan(load("mlp-full"), "laptop")
    found = search(plan, smooth(Hyper(0.07, 0.25)))
    chosen = found.chosen()
    case = Case("all 10 clients", "tuned", "fedavg-m")
    best, other, finer = (chosen[case._replace(protocol=name)] for name in ("tuned", "second", "finer"))
    assert not other.near(best)
    assert other in found.grids[case]
    assert finer._asdict() in [*found.found[case].grid, *(each.point for each in found.found[case].finer)]


def test_the_second_best_point_is_no_neighbour_of_the_best_unless_all_are():
    best, close, far = Hyper(0.1, 0.5), Hyper(0.11, 0.5), Hyper(0.1, 0.42)
    assert (best.near(close), best.near(Hyper(0.12, 0.5)), best.near(Hyper(0.11, 0.4))) == (True, False, False)
    assert second(best, [close, Hyper(0.1, 0.4), far]) == Hyper(0.1, 0.4)
    assert second(best, [close, far]) == close
    assert second(best, []) == best


def test_a_diverged_point_is_the_worst_whichever_is_judged():
    for judge in ("accuracy", "loss"):
        experiment = load("mlp-full")
        tuned = experiment.tuned.model_copy(update={"judge": judge})
        plan = Plan(experiment.model_copy(update={"tuned": tuned}), "laptop")
        rule = smooth(Hyper(0.1, 0.3))

        def batch(title, jobs, rule=rule):
            done = rule(title, jobs)
            return {
                name: dataclasses.replace(run, summary={"diverged_in_round": 1})
                if jobs[name].algorithm.eta >= 0.1
                else run
                for name, run in done.items()
            }

        found = search(plan, batch)
        assert all(found.choice(case).eta < 0.1 for case in found.grids)
