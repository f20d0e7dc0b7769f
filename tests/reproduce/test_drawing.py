"""The figures of an experiment: what diverged is left out, and said."""

import math

from kedge.reproduce.drawing import _sweep
from kedge.reproduce.experiment import load
from kedge.reproduce.plan import Plan
from kedge.reproduce.results import Measure


def test_a_sweep_keeps_the_seeds_that_did_not_diverge(tmp_path):
    plan = Plan(load("participation"), "laptop")
    panels = list(plan.experiment.panels_at("laptop"))
    rows = [
        Measure(
            panel, "tuned", "fedavg", seed, 0.1, None, 0.5 + seed / 10, 1.0, 0.4, 0.6, 0.5, 0.5, 10, 100.0, 1.0, lost
        )
        for seed in range(3)
        for panel in panels
        for lost in [4 if (seed, panel) == (0, panels[1]) else None]
    ]
    [line] = _sweep(plan, rows, "tuned", "accuracy").series
    assert line.diverged == 1
    assert [len(y) for _, y in line.runs] == [len(panels)] * 3
    assert [math.isnan(value) for value in line.runs[0][1]] == [panel == panels[1] for panel in panels]
    assert line.runs[2][1] == [0.7] * len(panels)
