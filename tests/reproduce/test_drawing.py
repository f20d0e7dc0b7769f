"""The figures of an experiment: what diverged is left out, and said."""

import math
from dataclasses import replace

from kedge.report.palette import look
from kedge.report.panels import Series, View, draw_intervals, draw_rankings, draw_views
from kedge.reproduce.drawing import _over, _sweep
from kedge.reproduce.experiment import load
from kedge.reproduce.plan import Case, Hyper, Plan
from tests.reproduce.rows import ROW, curve, history

PLAN = Plan(load("mlp-full"), "laptop")


def test_a_sweep_keeps_the_seeds_that_did_not_diverge(tmp_path):
    plan = Plan(load("participation"), "laptop")
    panels = list(plan.experiment.panels_at("laptop"))
    rows = [
        replace(ROW, panel=panel, line="fedavg", seed=seed, accuracy=0.5 + seed / 10, diverged=lost)
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


def test_where_accuracy_saturates_the_error_is_drawn_with_the_rates_in_the_legend():
    for end, y in ((0.95, "test error"), (0.8, "test accuracy")):
        curves = curve(Case("P", "tuned", "fedavg-m"), Hyper(0.5, 0.2), history(0.3, end))
        view = _over(PLAN, curves, "P", "tuned", "round", "test_accuracy")
        assert (view.y, view.log_y, view.series[0].note) == (y, y == "test error", "η 0.5 β 0.2")
        assert view.series[0].runs[0][1][-1] == (1 - end if y == "test error" else end)


def test_diagrams_of_one_quantity_have_one_scale_and_an_algorithm_one_look(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("kedge.report.panels.save_figure", lambda figure, path, **options: drawn.append(figure))
    low, high = (
        View(name, "rounds", "accuracy", [Series(line, runs=[([1, 2], [v, v + 1])]) for line in lines])
        for name, v, lines in (("low", 0.0, ["fedavg", "scaffold"]), ("high", 5.0, ["scaffold"]))
    )
    draw_views([[low, high]], tmp_path / "f", "title", "note")
    left, right = drawn[0].axes
    assert left.get_ylim() == right.get_ylim()
    assert left.get_lines()[1].get_color() == right.get_lines()[0].get_color() == look("scaffold")["color"]
    assert look("fedavg, free step")["linestyle"] != look("fedavg")["linestyle"]


def test_intervals_are_rows_from_the_top_with_one_entry_per_label_in_the_legend(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("kedge.report.panels.save_figure", lambda figure, path, **options: drawn.append(figure))
    rows = {"first": {"fedavg-m": (0.9, 1.5, 2.5)}, "second": {"fedavg-m": (1.1, 1.2, 1.3), "scaffold-m": (1, 2, 4)}}
    draw_intervals(rows, tmp_path / "f", "title", "note", "times")
    (axes,) = drawn[0].axes
    assert axes.yaxis_inverted()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["fedavg-m", "scaffold-m"]
    spans = [list(line.get_xdata()) for line in axes.lines if len(line.get_xdata()) == 2]
    assert spans == [[1, 1], [0.9, 2.5], [1.1, 1.3], [1, 4]]


def test_variants_of_one_algorithm_have_no_algorithms_colour_and_a_log_axis_has_few_ticks(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("kedge.report.panels.save_figure", lambda figure, path, **options: drawn.append(figure))
    x = [1 + place / 10 for place in range(20)]
    lines = [Series(f"beta = {beta}", runs=[(x, x)]) for beta in (1, 0.5, 0.2)]
    draw_views([[View("V", "length", "error", lines, log_x=True)]], tmp_path / "f", "a long title " * 8, "note")
    [axes] = drawn[0].axes
    assert "\n" in drawn[0].get_suptitle()  # rather than cut off at both ends
    colours = {line.get_color() for line in axes.get_lines()}
    assert len(colours) == 3
    assert not colours & {look(name)["color"] for name in ("fedavg", "fedavg-m", "scaffold", "scaffold-m")}
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2"]
    curves = curve(Case("P", "tuned", "beta = 0.2"), Hyper(0.5, 0.2), history(0.3))
    assert _over(PLAN, curves, "P", "tuned", "round", "test_accuracy").series[0].note == "η 0.5"
