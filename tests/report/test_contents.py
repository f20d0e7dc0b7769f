"""What a report says about runs: which belong together, how they are named, and that thinning changes no number."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kedge
from kedge.report.contents import MOST, contents, records
from kedge.report.exports import latex
from kedge.report.lines import lines_of, named_lines, runs_of, state_of, unique
from kedge.report.page import escaped
from kedge.report.palette import COLOURS, RAMP, look, shade
from kedge.runs.division import division_of
from kedge.runs.reader import StoredRun, read_run
from tests.report.made import rows_of, write_comparison, write_run


def told(*places):
    return contents(lines_of(runs_of(places)), "a title", "a command")


def test_runs_that_differ_only_in_the_seed_are_one_line(tmp_path):
    write_comparison(tmp_path)
    lines = lines_of(runs_of([tmp_path]))
    assert [(line.name, [run.seed for run in line.runs]) for line in lines] == [
        ("fedavg", [0, 1]), ("mb-storm", [0, 1]), ("scaffold-m", [0, 1]),
    ]  # fmt: skip
    assert len(runs_of([tmp_path, tmp_path / "fedavg-0"])) == 6, "no run is read twice"


def test_lines_of_one_algorithm_are_named_by_what_differs(tmp_path):
    for eta in (0.1, 0.1 + 0.2):
        for seed in (0, 1):
            write_run(tmp_path / f"{eta}-{seed}", seed=seed, settings={"algorithm.eta": eta, "run.threads": 1 + seed})
    write_run(tmp_path / "other", "fedavg")
    assert [line.name for line in lines_of(runs_of([tmp_path]))] == [
        "scaffold-m, eta 0.1",
        "scaffold-m, eta 0.3",
        "fedavg",
    ]
    found = told(tmp_path)
    assert found["apart"] == ["algorithm.name", "algorithm.eta"]
    assert found["common"]["data.dataset"] == "digits"
    first, second, third = (line["look"] for line in found["lines"])
    assert first["color"] == second["color"] == look("scaffold-m")["color"] != third["color"]
    assert first["dash"] != second["dash"]


def write_sweep(folder, seeds=(0, 1)):
    """Write a sweep that chose on held-out samples, and its best point, trained on all samples."""
    for eta in (0.1, 0.5):
        for seed in seeds:
            settings = {"algorithm.eta": eta, "data.holdout": 0.1}
            write_run(folder / "runs" / f"eta{eta}-seed{seed}", seed=seed, settings=settings)
    settings = {"algorithm.eta": 0.5, "data.holdout": 0.0}
    for seed in seeds:
        rows = rows_of(20, seed=seed, speed=5.0)
        write_run(folder / "best" / f"eta0.5-seed{seed}", seed=seed, settings=settings, rows=rows)
    (folder / "sweep.toml").write_text("[sweep]\n")
    return folder


def test_what_was_evaluated_on_held_out_samples_is_called_so(tmp_path):
    write_sweep(tmp_path)
    chosen = told(tmp_path / "runs")
    assert chosen["words"]["test_accuracy"] == "held-out accuracy"
    assert [(line["name"], line["held_out"]) for line in chosen["lines"]] == [
        ("scaffold-m, eta 0.1", True), ("scaffold-m, eta 0.5", True),
    ]  # fmt: skip
    assert told(tmp_path / "best")["words"]["test_accuracy"] == "test accuracy"


def test_where_there_are_both_kinds_every_line_says_which_it_is(tmp_path):
    both = told(write_sweep(tmp_path))
    assert {line["name"]: line["held_out"] for line in both["lines"]} == {
        "best point, on the test set": False, "scaffold-m, eta 0.1, held out": True,
        "scaffold-m, eta 0.5, held out": True,
    }  # fmt: skip
    assert both["words"]["test_accuracy"] == "held-out or test accuracy"
    assert any("on the test set" in note for note in both["notes"])
    write_run(tmp_path / "other", "fedavg")
    assert "fedavg, on the test set" in [line["name"] for line in told(tmp_path)["lines"]]


def test_a_table_never_ranks_held_out_samples_against_the_test_set(tmp_path):
    write_sweep(tmp_path)
    write_run(tmp_path / "other", "fedavg")
    table = latex(lines_of(runs_of([tmp_path])))
    held, tested = table.partition("\\midrule")[2].split("\\midrule")
    assert (held.count("held out &"), tested.count("on the test set &")) == (2, 2)
    assert all("textbf" in part for part in (held, tested))
    alone = latex(lines_of(runs_of([tmp_path / "runs"])))
    assert all(head in alone for head in ("Held-out accuracy", "Held-out loss"))
    assert alone.count("midrule") == 1


def test_names_leave_out_what_follows_from_other_settings(tmp_path):
    write_run(tmp_path / "a")
    data = {"data.dataset": "/home/me/own_data.py:load", "data.sha256": "abc", "model.name": "cnn", "run.eval_every": 5}
    write_run(tmp_path / "b", settings=data | {"data.alpha": 0.5, "model.widths": [64, 64]})
    write_run(tmp_path / "c", settings=data | {"data.alpha": 0.5, "model.widths": [64, 64], "run.momentum": 0.9})
    assert [line.name for line in lines_of(runs_of([tmp_path]))] == [
        "scaffold-m, dataset digits", "scaffold-m, dataset own_data.py:load",
        "scaffold-m, dataset own_data.py:load, momentum 0.9",
    ]  # fmt: skip


def test_a_name_that_would_be_too_long_is_that_of_the_directory(tmp_path):
    for place, name in enumerate(("x", "y", "z/x")):
        write_run(tmp_path / name, settings={f"algorithm.setting_{n}": place + n / 7 for n in range(5)})
    assert [line.name for line in lines_of(runs_of([tmp_path]))] == ["x, 1", "y", "x, 3"]


def test_names_that_are_shortened_stay_different(tmp_path):
    runs = {"a" * 300 + letter: [read_run(write_run(tmp_path / letter))] for letter in "bcd"}
    found = contents(named_lines(runs), "", "")["lines"]
    assert len({line["name"] for line in found}) == 3
    assert max(len(line["name"]) for line in found) <= 200
    assert unique(["a", "a, 2", "a"]) == ["a, 1", "a, 2", "a, 3"]
    assert len(set(unique(["a", "a", "a, 2"]))) == 3


def test_a_run_without_a_configuration_is_a_line_in_the_colour_of_its_algorithm(tmp_path):
    write_run(tmp_path / "python", config=False)
    (line,) = told(tmp_path)["lines"]
    assert (line["name"], line["look"]["color"]) == ("scaffold-m, python", look("scaffold-m")["color"])


def test_thinning_changes_neither_ends_nor_targets(tmp_path):
    rows = rows_of(5000, speed=900.0)
    for row in rows[::7]:
        row["test_accuracy"] -= 0.05
    write_run(tmp_path / "long", rows=rows)
    found = told(tmp_path)
    (run,) = found["runs"]
    assert (run["rows"], len(run["columns"]["round"])) == (5000, MOST)
    assert (run["columns"]["round"][0], run["columns"]["round"][-1]) == (1, 5000)
    assert found["lines"][0]["accuracy"] == pytest.approx(rows[-1]["test_accuracy"], rel=1e-5)
    rounds, sizes, values = run["records"]["test_accuracy"]
    for target in values[:: len(values) // 10]:
        first = next(row for row in rows if float(f"{row['test_accuracy']:.6g}") >= target)
        place = next(place for place, value in enumerate(values) if value >= target)
        assert (rounds[place], sizes[place]) == (first["round"], first["bytes_down"] + first["bytes_up"])


def test_records_are_the_rows_better_than_all_before():
    rows = rows_of(6)
    for row, value in zip(rows, [0.1, 0.3, math.nan, 0.2, 0.3, 0.5], strict=True):
        row["test_accuracy"] = value
    assert records(rows, "test_accuracy", higher=True)[0] == [1, 2, 6]
    assert records(rows, "test_accuracy", higher=False)[0] == [1]
    assert records(rows, "nothing", higher=True) == [[], [], []]


def test_states_are_said(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", ended=False, rows=rows_of(7))
    write_run(tmp_path / "c", diverged_in_round=9)
    states = [state_of(run) for run in runs_of([tmp_path])]
    assert states == ["finished", "not finished: round 7 of 20", "diverged in round 9"]


def test_what_is_not_finite_is_counted_and_left_out(tmp_path):
    write_run(tmp_path / "run", rows=[row | {"own": math.nan, "test_loss": math.inf} for row in rows_of(3)])
    (run,) = told(tmp_path)["runs"]
    assert run["columns"]["own"] == [None] * 3
    said = "3 values of {} are left out: not finite, or too large"
    assert run["problems"] == [said.format("test_loss"), said.format("own")]


values = st.one_of(st.floats(), st.sampled_from([1e308, -1e308, 5e-324, 0.0, 10**18, math.nan, math.inf]))


@given(st.lists(st.lists(values, min_size=1, max_size=4), min_size=1, max_size=3))
def test_any_numbers_make_a_page(columns):
    runs = [
        StoredRun(Path(str(place)), {"algorithm": {"name": "fedavg"}}, [
            row | {"test_accuracy": value, "test_loss": value, "own": value}
            for row, value in zip(rows_of(len(own)), own, strict=True)
        ], {"engine": "", "versions": {}, "algorithm": ""})
        for place, own in enumerate(columns)
    ]  # fmt: skip
    assert escaped(contents(lines_of(runs), "", "")).isascii()
    assert latex(lines_of(runs)).startswith("%")


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(kedge.UsageError, match="holds no runs"):
        runs_of([tmp_path])
    with pytest.raises(kedge.UsageError, match="is not a folder"):
        runs_of([tmp_path / "nowhere"])


def test_the_division_is_that_of_the_run():
    config = {"data": {"dataset": "digits", "clients": 70, "partition": "shards"}, "run": {"seed": 3}}
    found = division_of(config)
    federation = kedge.load_federation("digits", 70, "shards", seed=3)
    own = federation.labels[federation.indices[5]]
    assert found.counts[5] == [int((own == label).sum()) for label in range(10)]
    assert (found.clients, len(found.counts), found.labels) == (70, 60, list(range(10)))
    assert division_of({"data": {"dataset": "quadratics", "clients": 4}}) is None
    assert division_of({"data": {"dataset": "mine"}}) is None


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"dataset": "digits", "clients": 10**9}, "at most 100000 are divided"),
        ({"dataset": "digits", "clients": "many"}, "clients"),
        ({"dataset": "digits", "partition": "odd"}, "odd"),
        ({"dataset": "cifar100"}, "download"),
    ],
)
def test_a_division_that_cannot_be_known_is_a_note(tmp_path, data, sentence, monkeypatch):
    monkeypatch.setenv("KEDGE_DATA", str(tmp_path / "none"))
    write_run(tmp_path / "run", settings={f"data.{key}": value for key, value in data.items()})
    found = told(tmp_path / "run")
    assert found["partitions"] == []
    assert sentence in " ".join(found["notes"])


def test_the_ramp_goes_from_end_to_end():
    assert [shade(place, 5) for place in range(5)] == RAMP
    assert shade(0, 1) == RAMP[2]
    assert len(set(COLOURS)) == len(COLOURS)


def test_everything_is_json(tmp_path):
    write_comparison(tmp_path)
    json.dumps(told(tmp_path), allow_nan=False)
