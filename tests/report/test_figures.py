"""What the figures show: the axes of a sweep, and who has which colour."""

import pytest
from matplotlib.figure import Figure

from kedge.report import heatmap
from kedge.report.heatmap import Cell, draw_sweep


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were drawn."""
    kept = []

    def remember(figure: Figure, path, **options):
        kept.append(figure)

    monkeypatch.setattr(heatmap, "save_figure", remember)
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
