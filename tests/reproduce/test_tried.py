"""What a search tried: kept to be read again, and asked what one tuning seed decides."""

import pytest

from kedge.reproduce.plan import Case, Hyper
from kedge.reproduce.search import Search
from kedge.reproduce.tried import End, elsewhere, read_tried, write_tried
from kedge.runs.reader import StoredRun
from kedge.runs.search import Rule, Searched, Standing

CASE = Case("a panel", "tuned", "scaffold-m")


def ended(accuracy, loss):
    rows = [{"round": 1, "test_accuracy": accuracy, "test_loss": loss}]
    return StoredRun("", rows=rows, summary={"round": 1, "test_accuracy": accuracy, "test_loss": loss})


def test_what_was_tried_is_read_as_it_was_written_without_the_finer_grid(tmp_path):
    runs = {100: ended(0.5, 1.25), 101: ended(0.75, 1.0)}
    points = [Hyper(0.1, 0.2), Hyper(0.3, 0.2)]
    first, finer = (Standing(str(point), point._asdict(), 2, runs=runs) for point in points)
    rule = Rule("test_accuracy")
    write_tried(tmp_path / "grid.csv", Search(None, {CASE: Searched(rule, [first], [finer])}))
    assert read_tried(tmp_path / "grid.csv") == {CASE: {points[0]: {100: End(0.5, 1.25), 101: End(0.75, 1.0)}}}


@pytest.mark.parametrize(("judge", "wanted"), [("accuracy", {102: Hyper(0.2, 0.5)}), ("loss", {100: Hyper(0.2, 0.5)})])
def test_a_choice_that_one_seed_decides_is_found(judge, wanted):
    points = {
        Hyper(0.1, 0.5): {100: End(0.6, 0.1), 101: End(0.6, 1.0), 102: End(0.6, 1.0)},
        Hyper(0.2, 0.5): {100: End(0.7, 0.9), 101: End(0.7, 0.9), 102: End(0.1, 0.9)},
    }
    assert elsewhere(points, Hyper(0.1, 0.5), judge) == wanted


def test_neighbours_and_a_single_seed_decide_nothing():
    ends = {100: End(0.6, 1.0), 101: End(0.1, 1.0)}, {100: End(0.1, 1.0), 101: End(0.5, 1.0)}
    near, far = ({Hyper(0.1, None): ends[0], Hyper(eta, None): ends[1]} for eta in (0.118, 0.12))
    assert elsewhere(near, Hyper(0.1, None), "accuracy") == {}
    assert elsewhere(far, Hyper(0.1, None), "accuracy") == {100: Hyper(0.12, None)}
    alone = {point: {100: runs[100]} for point, runs in far.items()}
    assert elsewhere(alone, Hyper(0.12, None), "accuracy") == {}
