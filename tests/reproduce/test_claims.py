"""Claims: what differences over the seeds say, and what they do not."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from kedge.reproduce.claims import Difference, findings, holm
from kedge.reproduce.experiment import Claim, Experiment, load
from kedge.reproduce.plan import Case, Hyper
from kedge.reproduce.results import measures, read_measures, write_measures
from tests.reproduce.rows import ROW, curve, history


def rows(line, accuracies, panel="P", protocol="tuned"):
    return [
        replace(ROW, line=line, panel=panel, seed=seed, accuracy=a, protocol=protocol)
        for seed, a in enumerate(accuracies)
    ]


def nothing(figure):
    return None


def judged(claims, own, look=nothing, untestable="", searched=None, panels=("P",), **more):
    experiment = load("mlp-full")
    size = experiment.scales["laptop"]
    tuning = size.tuning.model_copy(update={"panel": searched})
    scales = {"laptop": size.model_copy(update={"untestable": untestable, "tuning": tuning})}
    experiment = experiment.model_copy(
        update={
            "claims": claims, "panels": {panel: {} for panel in panels}, "judged": ["tuned"], "scales": scales, **more,
        }
    )  # fmt: skip
    assert isinstance(experiment, Experiment)
    return findings(experiment, "laptop", own, look)


def verdicts(own, *pairs, **more):
    return [found.verdict for found in judged([Claim(text="", pairs=list(pairs))], own, **more)]


CHANCES = {"P": 0.1}
BETTER, WORSE = rows("a", [0.50, 0.60, 0.71, 0.52]), rows("b", [0.40, 0.50, 0.60, 0.41])


def test_the_t_test_and_the_interval_are_those_of_scipy():
    values = [0.1, 0.25, 0.3, -0.02, 0.2]
    difference = Difference("a over b", "accuracy", values)
    test = stats.ttest_1samp(values, 0)
    assert difference.p == pytest.approx(test.pvalue)
    assert difference.interval == pytest.approx(tuple(test.confidence_interval(0.95)))


@pytest.mark.parametrize(
    ("values", "p", "word"),
    [
        ([0.1, 0.1], 0.0, "as claimed"),
        ([-0.1, -0.1], 0.0, "the opposite"),
        ([0.1, 0.1], 0.05, "open"),
        ([0.0, 0.0], 0.0, "open"),
        ([math.inf] * 6, 0.03, "as claimed"),
        ([-math.inf] * 6, 0.03, "the opposite"),
    ],
)
def test_a_p_value_in_a_word(values, p, word):
    assert Difference("a over b", "loss", values).says(p) == word


def test_one_seed_or_no_difference_says_nothing():
    assert Difference("a over b", "accuracy", [0.3]).p == 1.0
    assert Difference("a over b", "accuracy", [0.0, 0.0]).p == 1.0
    assert Difference("a over b", "loss", [math.inf, -math.inf]).p == 1.0


def test_a_difference_in_figures():
    text = str(Difference("a over b", "accuracy", [0.1, 0.2, 0.3]))
    assert text == "a over b: +20 [-5, +45] points of accuracy at the end, p = 0.074"
    rounds = Difference("a over b", "rounds", [math.log(2), math.log(2)])
    assert rounds.amount == "2.00 [2.00, 2.00]"
    assert Difference("a over b", "loss", [math.inf, 0.1]).amount == "with diverged runs, better in 2 of 2 seeds"


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_multiplies_the_smallest_by_the_number_and_never_changes_the_order(values):
    corrected = holm(values)
    assert all(before <= after <= 1 for before, after in zip(values, corrected, strict=True))
    if values:
        assert min(corrected) == min(1.0, min(values) * len(values))
    pairs = sorted(zip(values, corrected, strict=True))
    assert [each for _, each in pairs] == sorted(corrected)


def test_holm_as_in_the_book():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_a_claim_is_judged_seed_by_seed():
    [found] = judged([Claim(text="", pairs=[("a", "b")])], BETTER + WORSE)
    assert found.differences[0].values == pytest.approx([0.10, 0.10, 0.11, 0.11])
    assert found.verdict == "reproduced"
    assert verdicts(BETTER + WORSE, ("b", "a")) == ["not reproduced"]
    assert verdicts(BETTER + WORSE, ("a", "b"), ("b", "a")) == ["partly: a over b; the opposite: b over a"]
    level = rows("c", [0.5, 0.4, 0.6, 0.41])
    assert verdicts(BETTER + WORSE + level, ("a", "b"), ("c", "b")) == ["partly: a over b"]
    assert verdicts(rows("a", [0.1, 0.6, 0.9, 0.4]) + WORSE, ("a", "b")) == ["open"]


def test_a_difference_that_is_not_significant_reverses_nothing():
    assert verdicts(rows("a", [0.39, 0.40, 0.59, 0.40]) + WORSE, ("a", "b")) == ["open"]


def test_all_comparisons_of_a_figure_are_corrected_together():
    hint = rows("a", [0.41, 0.53, 0.62, 0.45])
    assert verdicts(hint + WORSE, ("a", "b")) == ["reproduced"]
    claims = [Claim(text=str(number), pairs=[("a", "b")]) for number in range(3)]
    assert {found.verdict for found in judged(claims, hint + WORSE)} == {"open"}


@pytest.mark.parametrize(("line", "protocol"), [("a", "second"), ("b", "second"), ("a", "finer"), ("b", "finer")])
def test_what_another_point_of_the_grid_flips_is_open(line, protocol):
    own = BETTER + WORSE
    own += [replace(row, protocol=protocol) for row in own]
    assert verdicts(own, ("a", "b")) == ["reproduced"]
    other = 0.2 if line == "a" else 0.9
    own = [replace(row, accuracy=other) if (row.line, row.protocol) == (line, protocol) else row for row in own]
    [found] = judged([Claim(text="", pairs=[("a", "b")])], own)
    assert found.verdict == "open"
    assert found.differences[0].flips == [
        f"the second-best point of {line}" if protocol == "second" else "the finer grid"
    ]


def test_protocols_that_the_paper_did_not_use_are_shown_and_do_not_count():
    own = BETTER + WORSE + [replace(row, protocol="equal", accuracy=1 - row.accuracy) for row in BETTER + WORSE]
    [found] = judged([Claim(text="", pairs=[("a", "b")])], own)
    assert (found.verdict, [each.name for each in found.shown]) == ("reproduced", ["a over b (equal)"])
    [both] = judged([Claim(text="", pairs=[("a", "b")])], own, judged=["tuned", "equal"])
    assert both.verdict == "partly: a over b; the opposite: a over b (equal)"


def test_every_panel_has_a_verdict_also_where_it_was_not_run_or_cannot_be_tested():
    claim = Claim(text="", pairs=[("a", "b")])
    found = judged([claim], BETTER + WORSE, panels=("P", "Q"))
    assert [each.verdict for each in found] == ["reproduced", "not run"]
    found = judged([claim], BETTER + WORSE, panels=("P", "Q"), untestable="too short")
    assert {each.verdict for each in found} == {"not testable at this scale"}
    assert [each.verdict for each in judged([claim], [], panels=("P", "Q"))] == ["not run", "not run"]


def test_lines_that_took_the_points_of_another_panel_leave_a_claim_open():
    claim = Claim(text="", pairs=[("a", "b")])
    own = BETTER + WORSE + [replace(row, panel="Q") for row in BETTER + WORSE]
    searched, taken = judged([claim], own, panels=("P", "Q"), searched="P")
    assert (searched.verdict, searched.remark) == ("reproduced", "it was not checked at other points of the grid")
    assert (taken.verdict, taken.remark) == ("open", 'its lines took the points of "P"')
    assert taken.differences[0].word == "as claimed"


def test_a_conclusion_that_was_not_checked_says_so():
    claim = Claim(text="", pairs=[("a", "b")])
    checked = [replace(row, protocol=how) for row in BETTER + WORSE for how in ("tuned", "second", "finer")]
    assert [each.remark for each in judged([claim], checked)] == [""]
    assert [each.remark for each in judged([claim], BETTER + WORSE)] == [
        "it was not checked at other points of the grid"
    ]
    assert [each.remark for each in judged([claim], BETTER + BETTER)] == [""]  # nothing was concluded


def test_a_lower_loss_and_fewer_rounds_are_better():
    own = [replace(ROW, loss=0.5, rounds_to=10.0), replace(ROW, line="b", loss=0.8, rounds_to=20.0)]
    [loss] = judged([Claim(text="", pairs=[("a", "b")], metric="loss")], own)
    assert loss.differences[0].values == pytest.approx([0.3])
    [rounds] = judged([Claim(text="", pairs=[("a", "b")], metric="rounds")], own)
    assert math.exp(rounds.differences[0].values[0]) == pytest.approx(2)


def test_a_target_that_is_not_reached_takes_at_least_all_rounds():
    own = [replace(ROW, rounds_to=5.0, rounds=20), replace(ROW, line="b", rounds_to=math.inf, rounds=20)]
    [found] = judged([Claim(text="", pairs=[("a", "b")], metric="rounds")], own)
    assert math.exp(found.differences[0].values[0]) == pytest.approx(4)
    assert "4.00 times fewer rounds to the target (1 of 2 runs did not reach it)" in str(found.differences[0])


def speeds(line, rounds, panel="P"):
    return [replace(ROW, panel=panel, line=line, seed=seed, rounds=20, rounds_to=r) for seed, r in enumerate(rounds)]


def test_runs_short_of_the_target_conclude_nothing_if_they_flatter_the_line_that_is_ahead():
    fast, slow, never = (5.0, 6.0, 5.0, 6.0), (18.0, 19.0, 19.0, 18.0), (math.inf,) * 4
    claim = Claim(text="", pairs=[("a", "b")], metric="rounds")

    def told(a, b):
        [found] = judged([claim], speeds("a", a) + speeds("b", b))
        return found.verdict, "not measurable" in str(found.differences[0])

    assert told(fast, slow) == told(fast, never) == ("reproduced", False)  # never is slower than it counts
    assert told(never, fast) == ("not reproduced", False)
    assert told((5.0, 6.0, 5.0, math.inf), never)[1] is False
    assert told((5.0, 6.0, math.inf, math.inf), never) == ("open", True)
    assert told(never, never)[0] == "open"
    more = claim.model_copy(update={"more_than_in": "Q", "panels": ["P"]})
    own = speeds("a", fast) + speeds("b", slow) + speeds("a", slow, "Q") + speeds("b", (18.0, 18.0, 19.0, 19.0), "Q")
    [found] = judged([more], own, panels=("P", "Q"))
    assert found.verdict == "reproduced"
    own = speeds("a", fast) + speeds("b", slow) + speeds("a", slow, "Q") + speeds("b", never, "Q")
    [found] = judged([more], own, panels=("P", "Q"))  # it may be much faster there as well
    assert found.verdict == "open"
    assert "not measurable" in str(found.differences[0])


def test_a_diverged_run_counts_as_all_the_rounds_that_it_was_to_play():
    cases = {line: Case("P", "tuned", line) for line in "ab"}
    steady = history(*[0.3 + 0.02 * r for r in range(20)])
    runs = curve(cases["a"], Hyper(0.1, None), history(0.1), diverged=3) | curve(cases["b"], Hyper(0.1, None), steady)
    lost, kept = measures(runs, CHANCES)
    assert (lost.rounds, lost.rounds_to, kept.rounds) == (20, math.inf, 20)
    [found] = judged([Claim(text="", pairs=[("a", "b")], metric="rounds")], [lost, kept])
    assert found.differences[0].values[0] < 0


def test_a_better_line_without_momentum_is_told():
    own = [replace(ROW, line=line, beta=beta) for line, beta in (("fedavg-m-vr", 1.0), ("scaffold-m", 0.8))]
    claim = Claim(text="", pairs=[("fedavg-m-vr", "b"), ("scaffold-m", "b")])
    [found] = judged([claim], [*own, *rows("b", [0.4])])
    assert found.remark == "at the chosen beta = 1, fedavg-m-vr is fedavg"
    assert not judged([Claim(text="", pairs=[("scaffold-m", "b")])], [*own, *rows("b", [0.4])])[0].remark


def test_an_advantage_may_be_compared_with_that_of_another_panel_or_figure():
    own = rows("a", [0.5, 0.6]) + rows("b", [0.2, 0.3]) + rows("a", [0.9, 0.9], "Q") + rows("b", [0.8, 0.8], "Q")
    claim = Claim(text="", pairs=[("a", "b")], panels=["P"], more_than_in="Q")
    [found] = judged([claim], own, panels=("P", "Q"))
    assert found.differences[0].values == pytest.approx([0.2, 0.2])
    assert 'points of accuracy at the end, more than in "Q"' in str(found.differences[0])
    [speed] = judged([claim.model_copy(update={"metric": "rounds"})], own, panels=("P", "Q"))
    assert 'times the speed-up, in rounds to the target, in "Q"' in str(speed.differences[0])
    elsewhere = claim.model_copy(update={"more_than_in": "other: Q"})
    assert judged([elsewhere], own)[0].verdict == "not run: needs other: Q"
    assert judged([elsewhere], own, lambda figure: own)[0].differences[0].values == found.differences[0].values


def test_budgets_are_those_of_the_cheapest_line_and_between_evaluations_lines_are_straight():
    cheap = curve(Case("P", "tuned", "a"), Hyper(0.1, None), history(*[0.4] * 5, bytes_=2e6))
    dear = curve(Case("P", "tuned", "b"), Hyper(0.1, 0.5), history(*[0.2 * r for r in range(1, 6)], gradients=20))
    first, second = measures(cheap | dear, CHANCES)
    assert first.at_gradients == pytest.approx(0.4)
    assert second.at_gradients == pytest.approx(0.45)  # from 0.4 after 40 to 0.5 after 50, at 20 a round
    assert first.at_bytes == pytest.approx(0.4)
    assert second.at_bytes == pytest.approx(0.9)


def test_rounds_to_the_target_are_interpolated_and_the_target_is_where_the_weakest_ends():
    weak = curve(Case("P", "tuned", "a"), Hyper(0.1, None), history(0.2, 0.3, 0.4, 0.503))
    strong = curve(Case("P", "tuned", "b"), Hyper(0.1, 0.5), history(0.3, 0.45, 0.55, 0.6))
    lost = curve(Case("P", "tuned", "c"), Hyper(0.1, 0.5), history(0.1, 0.1, 0.1, 0.11))
    first, second, third = measures(weak | strong | lost, CHANCES)
    assert first.target == pytest.approx(0.5)
    assert second.rounds_to == pytest.approx(2.5)
    assert (second.gradients_to, second.megabytes_to) == pytest.approx((25, 2.5))
    assert third.rounds_to == math.inf
    assert first.rounds_to == pytest.approx(3 + 0.1 / 0.103)


@given(st.lists(st.floats(0.1, 1), min_size=2, max_size=12))
def test_the_area_lies_between_the_ends_of_the_curve(accuracies):
    [row] = measures(curve(Case("P", "tuned", "a"), Hyper(0.1, None), history(*accuracies)), CHANCES)
    assert 0.1 - 1e-9 <= row.area <= max(accuracies) + 1e-9


def test_the_end_is_the_mean_of_the_last_fifth():
    run = curve(Case("P", "tuned", "a"), Hyper(0.1, None), history(*[0.0] * 8, 0.4, 0.6))
    assert measures(run, CHANCES)[0].accuracy == pytest.approx(0.5)


def test_a_diverged_run_counts_as_a_guess(tmp_path):
    run = curve(Case("P", "tuned", "a"), Hyper(0.1, None), history(0.5), diverged=2)
    [row] = measures(run, CHANCES)
    assert (row.accuracy, row.loss, row.rounds_to, row.diverged) == (0.1, math.inf, math.inf, 2)
    assert measures(run, {"P": 0.25})[0].accuracy == 0.25
    write_measures(tmp_path / "summary.csv", [row, ROW])
    assert read_measures(tmp_path / "summary.csv") == [row, ROW]
