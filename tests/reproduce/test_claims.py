"""Claims: what differences over few seeds say, and what they do not."""

import math
from dataclasses import replace

import pytest

from kedge.reproduce.claims import Difference, findings, overall
from kedge.reproduce.experiment import Claim
from kedge.reproduce.plan import Case, Hyper
from kedge.reproduce.results import Curve, Measure, measures, read_measures, write_measures

ROW = Measure("P", "tuned", "a", 0, 0.1, None, 0.5, 1.0, 0.4, 0.6, 0.5, 0.5, 10, 100.0, 1.0, None)


def rows(line, accuracies, panel="P"):
    return [replace(ROW, line=line, panel=panel, seed=seed, accuracy=a) for seed, a in enumerate(accuracies)]


def nothing(figure):
    return None


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ([0.10, 0.11, 0.12], "clear"),
        ([0.01, 0.11, 0.30], "leaning"),
        ([-0.01, 0.11, 0.30], "open"),
        ([0.0, 0.1, 0.1], "open"),
        ([-0.01, -0.11, -0.30], "reversed"),
        ([0.1], "leaning"),
        ([math.inf, math.inf, 0.1], "leaning"),
    ],
)
def test_a_difference_in_a_word(values, word):
    assert Difference("a - b", "accuracy", values).word == word


def test_a_difference_in_figures():
    text = str(Difference("a - b", "accuracy", [0.1, 0.2, 0.3]))
    assert text == "a - b: +20.0 ± 5.8 points, better in 3 of 3 seeds"
    text = str(Difference("a - b", "loss", [0.0012, 0.0014]))
    assert text == "a - b: +0.00130 ± 0.00010 of loss saved, better in 2 of 2 seeds"
    assert str(Difference("a - b", "accuracy", [0.1])) == "a - b: +10.00 points, better in 1 of 1 seeds"


def test_losses_of_diverged_runs_are_said_and_not_averaged():
    found = Difference("a - b", "loss", [math.inf, -math.inf, 0.1])
    assert found.word == "open"
    assert str(found) == "a - b: with diverged runs, better in 2 of 3 seeds"


def test_a_claim_is_judged_seed_by_seed():
    own = rows("a", [0.50, 0.60, 0.71]) + rows("b", [0.40, 0.50, 0.60])
    [found] = findings([Claim(text="", pairs=[("a", "b")])], own, nothing)
    assert found.differences[0].values == pytest.approx([0.10, 0.10, 0.11])
    assert found.verdict == "holds"
    [other] = findings([Claim(text="", pairs=[("b", "a")])], own, nothing)
    assert other.verdict == "the opposite in every seed"
    [both] = findings([Claim(text="", pairs=[("a", "b"), ("b", "a")])], own, nothing)
    assert both.verdict == "of 2 comparisons 1 as claimed, 1 the opposite"


def test_over_all_protocols_a_claim_is_reproduced_or_not():
    better, worse = rows("a", [0.50, 0.60, 0.71]), rows("b", [0.40, 0.50, 0.60])
    equal = [replace(row, protocol="equal", accuracy=1 - row.accuracy) for row in better + worse]

    def said(own, *pairs):
        return overall(findings([Claim(text="", pairs=list(pairs))], own, nothing))

    assert said(better + worse, ("a", "b")) == "reproduced"
    assert said(better + worse, ("b", "a")) == "not reproduced"
    assert said(better + worse + equal, ("a", "b")) == "only with each at its own best rate"
    assert said(better + worse + equal, ("b", "a")) == "only with one effective rate for all"
    assert said(better + worse, ("a", "b"), ("b", "a")) == "of 2 comparisons 1 as claimed, 1 the opposite"
    assert said(rows("a", [0.5, 0.6, 0.9]) + worse, ("a", "b")) == "in every seed, but not significant"
    assert said(rows("a", [0.1, 0.6, 0.9]) + worse, ("a", "b")) == "open: the seeds disagree"
    assert said(better, ("a", "b")) == "not judged"


def test_a_lower_loss_is_better():
    own = [replace(ROW, loss=0.5), replace(ROW, line="b", loss=0.8)]
    [found] = findings([Claim(text="", pairs=[("a", "b")], metric="loss")], own, nothing)
    assert found.differences[0].values == pytest.approx([0.3])


def test_an_advantage_may_be_compared_with_that_of_another_panel_or_figure():
    own = rows("a", [0.5, 0.6]) + rows("b", [0.2, 0.3]) + rows("a", [0.9, 0.9], "Q") + rows("b", [0.8, 0.8], "Q")
    claim = Claim(text="", pairs=[("a", "b")], panels=["P"], more_than_in="Q")
    [found] = findings([claim], own, nothing)
    assert found.differences[0].values == pytest.approx([0.2, 0.2])
    elsewhere = claim.model_copy(update={"more_than_in": "other: Q"})
    assert findings([elsewhere], own, nothing)[0].verdict == "needs the figure other"
    assert findings([elsewhere], own, lambda figure: own)[0].differences == [
        replace(found.differences[0], name="a - b, P, less that in other: Q")
    ]


def test_a_claim_on_a_panel_that_a_scale_leaves_out_says_so():
    claim = Claim(text="", pairs=[("a", "b")], panels=["Q"])
    assert findings([claim], rows("a", [0.5]) + rows("b", [0.4]), nothing)[0].verdict == "not at this scale"


def history(*accuracies, gradients=10, bytes_=1e6):
    return [
        {
            "round": r, "test_accuracy": a, "test_loss": 1 - a, "gradients": gradients * r, "bytes_down": bytes_ * r,
            "bytes_up": 0.0,
        }
        for r, a in enumerate(accuracies, 1)
    ]  # fmt: skip


def test_budgets_are_those_of_the_cheapest_line():
    cheap = Curve(Case("P", "tuned", "a"), Hyper(0.1, None), 0, history(0.1, 0.2, 0.3, 0.4))
    dear = Curve(Case("P", "tuned", "b"), Hyper(0.1, 0.5), 0, history(0.3, 0.5, 0.7, 0.9, gradients=20, bytes_=2e6))
    first, second = measures([cheap, dear])
    assert (first.at_gradients, first.at_bytes) == (0.4, 0.4)
    assert (second.at_gradients, second.at_bytes, second.accuracy) == (0.5, 0.5, 0.9)
    assert second.speed == pytest.approx(0.6)


def test_the_end_is_the_mean_of_the_last_fifth():
    curve = Curve(Case("P", "tuned", "a"), Hyper(0.1, None), 0, history(*[0.0] * 8, 0.4, 0.6))
    assert measures([curve])[0].accuracy == pytest.approx(0.5)


def test_a_diverged_run_counts_as_a_guess(tmp_path):
    curve = Curve(Case("P", "tuned", "a"), Hyper(0.1, None), 0, history(0.5), diverged=2)
    [row] = measures([curve])
    assert (row.accuracy, row.loss, row.diverged) == (0.1, math.inf, 2)
    write_measures(tmp_path / "summary.csv", [row, ROW])
    assert read_measures(tmp_path / "summary.csv") == [row, ROW]
