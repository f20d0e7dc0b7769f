"""The figures of an experiment: what diverged is left out, and said."""

import math

from kedge.report.panels import draw_rankings
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


def test_a_ranking_has_the_best_on_top_and_a_dot_for_every_seed(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("kedge.report.panels.save_figure", lambda figure, path, **options: drawn.append((figure, path)))
    values = {"low": [0.1, 0.2], "high": [0.8, 0.9], "middle": [0.5, 0.4]}
    assert draw_rankings({"here": values}, tmp_path / "f", "title", "note", "accuracy") == [path for _, path in drawn]
    (axes,) = drawn[0][0].axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["low", "middle", "high"]
    dots = [list(line.get_xdata()) for line in axes.lines if line.get_marker() == "o"]
    assert dots == [values["low"], values["middle"], values["high"]]
