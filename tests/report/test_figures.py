"""What the figures show: the axes of a sweep, and who has which colour."""

import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import kedge
from kedge.report import figures, heatmap, theory
from kedge.report.figures import draw_comparison, draw_partition, files_of
from kedge.report.heatmap import Cell, draw_sweep
from kedge.report.laboratory import drawn as finding_drawn
from kedge.report.palette import COLOURS, look
from kedge.report.theory import draw_rates
from kedge.runs.reader import read_run
from kedge.theory import Constants
from kedge.theory.laboratory import Finding, Panel, PlottedLine
from kedge.theory.tables import rates
from tests.report.made import write_run


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were drawn."""
    kept = []

    def remember(figure: Figure, path, **options):
        kept.append(figure)

    for module in (heatmap, figures, theory):
        monkeypatch.setattr(module, "save_figure", remember)
    return kept


def swept(tmp_path, points, notes=None):
    cells = [Cell(point, 0.5 + 0.01 * place, None, (notes or {}).get(place, "")) for place, point in enumerate(points)]
    draw_sweep(cells, tmp_path / "heatmap", "test_accuracy", True, "held-out accuracy in %: mean of 2 seeds")


def test_the_axis_of_a_sweep_says_what_the_title_says(tmp_path, drawn):
    swept(tmp_path, [{"eta": 0.1}, {"eta": 0.2}])
    assert drawn[0].axes[0].get_ylabel() == "held-out accuracy in %"


def test_a_logarithmic_axis_has_the_values_that_were_tried(tmp_path, drawn):
    swept(tmp_path, [{"eta": eta} for eta in (0.5, 0.01, 0.05, 0.052)])
    drawn[0].canvas.draw()
    axis = drawn[0].axes[0].xaxis
    assert axis.get_scale() == "log"
    assert list(axis.get_ticklocs()) == [0.01, 0.05, 0.052, 0.5]
    assert [text.get_text() for text in axis.get_ticklabels()] == ["0.01", "0.05", "", "0.5"]
    assert not [text.get_text() for text in axis.get_ticklabels(minor=True)]


def test_only_numbers_are_joined_and_a_note_explains_the_picture(tmp_path, drawn):
    swept(tmp_path, [{"eta": eta, "name": name, "beta": 1} for eta in (0.1, 0.2) for name in ("fedavg", "led")])
    joined = [[line for line in axes.lines if line.get_linestyle() == "-" and len(line.get_xdata()) > 1]
              for axes in drawn[0].axes]  # fmt: skip
    assert list(map(len, joined)) == [1, 0, 0]
    assert drawn[0].get_supxlabel() == "orange: the best point; line: the best at each value"
    swept(tmp_path, [{"name": name} for name in ("fedavg", "led")], {0: "round 3"})
    assert drawn[-1].get_supxlabel() == "orange: the best point; pale: stopped early"


def test_lists_are_in_the_order_of_their_numbers(tmp_path, drawn):
    swept(tmp_path, [{"widths": widths} for widths in ("[64,64]", "[64]", "[128]", "[8]")])
    assert [text.get_text() for text in drawn[0].axes[0].get_xticklabels()] == ["[8]", "[64]", "[64,64]", "[128]"]


def test_algorithms_of_one_colour_have_different_markers():
    own = [look(name) for name in kedge.ALGORITHMS]
    assert len({(each["color"], each["marker"]) for each in own}) == len(own)
    assert (look("fedavg"), look("scaffold-m")["marker"]) == (
        {"color": "#0072B2", "marker": "o", "linestyle": "--", "fillstyle": "full"}, "v",
    )  # fmt: skip


def test_a_legend_shows_the_dashes_and_the_axis_what_was_measured(tmp_path, drawn):
    run = read_run(write_run(tmp_path / "a", settings={"data.holdout": 0.1}))
    draw_comparison({"fedavg": [run]}, tmp_path / "figure.png", "")
    assert drawn[0].legends[0].handlelength >= 3
    assert drawn[0].axes[0].get_ylabel() == "held-out accuracy"


def test_rows_of_one_algorithm_are_drawn_differently(tmp_path, drawn):
    constants = Constants(L=1.0, delta=1.0, sigma=1.0, zeta=1.0, clients=100, L_sample=1.0)
    rows = rates(constants)
    draw_rates(rows, constants, 100, tmp_path / "rates.png")
    lines = drawn[0].axes[0].lines
    assert len(lines) == sum(not math.isinf(row.rounds) for row in rows) > 10
    assert len({line.get_label() for line in lines}) == len(lines)
    looks = {(line.get_color(), line.get_marker(), line.get_linestyle(), line.get_fillstyle()) for line in lines}
    assert len(looks) == len(lines)
    assert "ce-lsgd (Patel et al. 2022, table 2)" in [line.get_label() for line in lines]


def test_problems_are_side_by_side_without_a_line_between_them():
    panel = Panel("problems", "problem", "share", (PlottedLine("fedavg", [1, 2, 3], [0.1, 0.2, 0.3]),))
    found = Finding("a", "b", holds=True, as_stated=True, sentences=(), panels=(panel,), numbers={})
    axes = finding_drawn(found).axes[0]
    assert (axes.get_xscale(), axes.lines[0].get_linestyle(), axes.lines[0].get_marker()) == ("linear", "None", "o")


def test_all_labels_of_a_division_have_one_colour(tmp_path, drawn):
    draw_partition(np.ones((4, 10), dtype=np.int64), tmp_path / "picture.png", "")
    assert len(drawn[0].axes[0].collections[0].get_facecolor()) == 1
    assert COLOURS[0] == "#0072B2"


@pytest.mark.parametrize("name", ["picture", "picture.png", "picture.jpg", "picture.PDF"])
def test_a_figure_has_the_suffixes_of_its_formats(name):
    assert [file.name for file in files_of(Path(name))] == ["picture.png", "picture.svg"]
    assert files_of(Path("alpha0.2"))[0].name == "alpha0.2.png"
