"""The grid: what is written is what is tried, and what cannot be is said in a sentence."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.errors import UsageError
from kedge.runs.grid import Choices, Range, corners, extended, parse_grid, point_name, points

NUMBERS = st.one_of(st.integers(-(10**9), 10**9), st.floats(allow_nan=False, allow_infinity=False))
WORDS = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=9)
LISTS = st.lists(st.integers(1, 99), min_size=1, max_size=3)
VALUES = st.lists(st.one_of(NUMBERS, st.booleans(), WORDS, LISTS), min_size=1, max_size=5, unique_by=repr)
KEYS = st.from_regex(r"(algorithm|data)\.[a-z_]{1,8}", fullmatch=True)


@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=3))
def test_what_is_written_is_read(axes):
    axes = {key: [v for i, v in enumerate(values) if v not in values[:i]] for key, values in axes.items()}
    written = [f"{key}={Choices(tuple(values))}" for key, values in axes.items()]
    read = parse_grid(written)
    assert {key: list(axis.values) for key, axis in read.items()} == axes
    assert [f"{key}={axis}" for key, axis in read.items()] == written
    combinations = points(read)
    assert len(combinations) == len({repr(point) for point in combinations})
    assert extended(read, read) == read


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text):
    for grid in (text, f"algorithm.eta={text}"):
        with suppress(UsageError):  # and nothing else
            assert parse_grid([grid])


@given(NUMBERS, NUMBERS, st.booleans())
def test_a_range_goes_up(low, high, log):
    text = f"algorithm.eta={low}..{high}{':log' if log else ''}"
    if low < high and not (log and low <= 0):
        (axis,) = parse_grid([text]).values()
        assert axis == Range(low, high, log)
        assert axis.whole == (isinstance(low, int) and isinstance(high, int))
        assert corners({"algorithm.eta": axis}) == [{"algorithm.eta": low}, {"algorithm.eta": high}]
        with pytest.raises(UsageError, match="needs --search optuna"):
            points({"algorithm.eta": axis})
    else:
        with pytest.raises(UsageError, match="a range"):
            parse_grid([text])


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        ([], "there is no --grid"),
        (["eta=1"], "must have the form key=value"),
        (["algorithm.eta"], "must have the form key=value"),
        (["algorithm.eta="], "names no value"),
        (["algorithm.eta=1,,2"], "one of its values is empty"),
        (["algorithm.eta=0.1,0.10"], "names 0.1 twice"),
        (["algorithm.eta=nan"], "nan is not a finite number"),
        (["algorithm.eta=1", "algorithm.eta=2"], "names algorithm.eta twice"),
        (["run.seed=1,2"], "but --seeds sets the seeds"),
        (["algorithm.eta=a..b"], "a range goes from a number to a number"),
        (["algorithm.eta=1..2:cubic"], "the only scale of a range is log"),
    ],
)
def test_a_wrong_grid_is_refused(texts, sentence):
    with pytest.raises(UsageError, match=sentence):
        parse_grid(texts)


def test_points_are_named_by_their_values():
    assert point_name({"algorithm.eta": 0.1, "algorithm.beta": 1}) == "eta0.1-beta1"
    assert point_name({"algorithm.alpha": 0.1, "data.alpha": 1}) == "algorithm.alpha0.1-data.alpha1"
    assert point_name({"model.widths": [8, 4], "algorithm.name": "dir/mine.py:Mine"}) == "widths_8_4_-nameMine"
