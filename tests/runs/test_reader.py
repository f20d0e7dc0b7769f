"""The reader of runs: it tells what is there, changes nothing, and what is damaged it says."""

import json
import os
import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kedge
from kedge.cli.program import execute
from kedge.runs.live import StopWhen, Watch
from tests.runs.test_resume import after, play

QUICK = ["--dataset", "quadratics", "--clients", "4", "--cohort", "2", "--local-steps", "1", "--batch-size", "full"]


def everything(path):
    """Return all that a write could change."""
    return {file: (file.lstat().st_mtime_ns, file.lstat().st_mode, file.is_file() and file.read_bytes())
            for file in [path, *path.rglob("*")]}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        options = [*QUICK, "--rounds", "3", "--eta", "0.01", "--seed", str(seed), "--out", str(path / f"seed{seed}")]
        assert execute(["run", *options]) == 0
    play(path / "python", rounds=3)
    play(path / "more" / "stopped", callbacks=[StopWhen(after(2))])
    assert execute(["run", *QUICK, "--eta", "1e30", "--out", str(path / "more" / "wild")]) == 1
    return path


def test_a_run_is_read_without_a_change(runs):
    before = everything(runs)
    run = kedge.read_run(runs / "seed1")
    assert run.config["run"]["seed"] == 1
    assert set(run.config) == {"data", "model", "algorithm", "run"}
    assert [row["round"] for row in run.rows] == [1, 2, 3]
    assert run.summary["round"] == 3
    assert (run.finished, run.diverged, run.problems) == (True, None, ())
    python = kedge.read_run(runs / "python")
    assert (python.config["data"]["dataset"], len(python.rows), python.finished) == ("quadratics", 3, True)
    assert python.config["python"]["missing"] == ["the data was drawn with seed 3, but the run has seed 0"]
    stopped = kedge.read_run(str(runs / "more" / "stopped"))
    assert (len(stopped.rows), stopped.summary, stopped.finished) == (2, None, False)
    wild = kedge.read_run(runs / "more" / "wild")
    assert (wild.finished, wild.diverged) == (False, wild.summary["diverged_in_round"])
    assert everything(runs) == before


def test_metrics_that_claim_an_absurd_size_are_not_read(runs, tmp_path, capsys):
    shutil.copytree(runs / "seed0", tmp_path / "run")
    os.truncate(tmp_path / "run" / "metrics.jsonl", 1 << 38)  # a hole: it takes no room
    run = kedge.read_run(tmp_path / "run")
    assert run.rows == []
    assert "metrics.jsonl cannot be read: it has 274877906944 bytes, but at most" in run.problems[0]
    os.truncate(tmp_path / "run" / "model.safetensors", 1 << 42)
    for command in (["resume", "--rounds", "9"], ["export-model", "--out", str(tmp_path / "model.safetensors")]):
        assert execute([*command, str(tmp_path / "run")]) == 2
        assert "cannot be read: it has" in capsys.readouterr().err


def test_all_runs_below_a_folder_are_found(runs):
    found = kedge.read_runs(runs)
    names = ["more/stopped", "more/wild", "python", "seed0", "seed1"]
    assert [str(run.path.relative_to(runs)) for run in found] == names
    assert [run.path for run in kedge.read_runs(runs / "seed0")] == [runs / "seed0"]
    for wrong in (runs / "nowhere", runs / "seed0" / "config.toml"):
        with pytest.raises(kedge.UsageError, match="is not a folder"):
            kedge.read_runs(wrong)
    for wrong in (runs / "more", runs / "nowhere"):
        with pytest.raises(kedge.UsageError, match="is not a run directory"):
            kedge.read_run(wrong)


def test_a_run_that_is_going_can_be_read(tmp_path):
    seen = []

    def watch(done, row):
        run = kedge.read_run(tmp_path / "run")
        seen.append((len(run.rows), run.finished, run.problems))

    play(tmp_path / "run", rounds=3, callbacks=[Watch(watch)])
    assert seen == [(1, False, ()), (2, False, ()), (3, False, ())]


@pytest.mark.skipif(os.name != "posix", reason="permissions are others")
def test_a_torn_last_line_is_no_problem_and_nothing_needs_write_permission(runs, tmp_path):
    path = shutil.copytree(runs / "seed0", tmp_path / "run")
    with (path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"round": 4, "byt')
    for file in [*path.rglob("*"), path]:
        file.chmod(0o555 if file.is_dir() else 0o444)
    before = everything(path)
    run = kedge.read_run(path)
    assert [row["round"] for row in run.rows] == [1, 2, 3]
    assert run.problems == ()
    assert everything(path) == before
    path.chmod(0o755)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = st.sampled_from(["round", "seconds", "bytes_down", "engine", "versions", "diverged_in_round", "algorithm", "x"])
FORGED = st.one_of(
    st.binary(max_size=40),
    JSON.map(lambda value: json.dumps(value).encode()),
    st.dictionaries(KEYS, JSON, max_size=6).map(lambda value: json.dumps(value).encode()),
    st.just(b"[" * 100_000),
    st.just(b'{"round": ' + b"9" * 5000 + b"}\n"),
)


@settings(max_examples=150)
@given(st.sampled_from(["config.toml", "metrics.jsonl", "summary.json", "fingerprint.json"]), FORGED, st.booleans())
def test_whatever_a_file_holds_it_is_read_or_named_and_resume_says_one_sentence(runs, name, content, line):
    with TemporaryDirectory() as folder:
        path = shutil.copytree(runs / "seed0", Path(folder) / "run")
        (path / name).write_bytes(content + b"\n" * line)
        run = kedge.read_run(path)
        rounds = [row["round"] for row in run.rows]
        assert rounds == sorted(set(rounds))
        assert all(isinstance(row["seconds"], int | float) for row in run.rows)
        assert execute(["resume", str(path)]) in (0, 2)  # and no traceback


@pytest.mark.parametrize("change", [
    {"round": 0}, {"round": True}, {"round": 1.5}, {"round": 10**18}, {"seconds": "1"}, {"seconds": None},
    {"bytes_up": [1]}, {"gradients": float("nan")}, {"note": "text"}, {"note": {"deep": 1}},
])  # fmt: skip
def test_a_row_of_metrics_is_numbers(runs, tmp_path, change):
    path = shutil.copytree(runs / "seed0", tmp_path / "run")
    lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    lines[1] = json.dumps(json.loads(lines[1]) | change) + "\n"
    (path / "metrics.jsonl").write_text("".join(lines))
    run = kedge.read_run(path)
    assert len(run.rows) == 1
    assert run.problems == (f"{path / 'metrics.jsonl'} is damaged: line 2 is not a row of metrics",)


@pytest.mark.skipif(os.name != "posix", reason="there are no pipes")
@pytest.mark.parametrize("name", ["config.toml", "metrics.jsonl", "summary.json"])
def test_a_pipe_or_a_folder_in_the_place_of_a_file_is_named_and_not_waited_for(runs, tmp_path, capsys, name):
    for number, make in enumerate((os.mkfifo, os.mkdir)):
        path = shutil.copytree(runs / "seed0", tmp_path / f"run{number}")
        (path / name).unlink()
        make(path / name)
        sentence = f"{path / name} cannot be read: it is not a regular file"
        assert kedge.read_run(path).problems == (sentence,)
        assert execute(["resume", str(path), "--rounds", "4"]) == 2
        assert capsys.readouterr().err == f"kedge: {sentence}\n"


@pytest.mark.parametrize("digits", [20, 400, 5000])
def test_numbers_of_many_digits_are_refused_in_a_sentence(runs, tmp_path, digits, capsys):
    number = "9" * digits
    shutil.copytree(runs / "seed0", tmp_path / "run")
    for name in ("summary.json", "metrics.jsonl"):
        content = (runs / "seed0" / name).read_text()
        forged = re.sub(r'"test_loss": [^,]*,', f'"test_loss": {number},', content, count=1)
        assert forged != content
        (tmp_path / "run" / name).write_text(forged)
        assert kedge.read_run(tmp_path / "run").problems
        assert execute(["resume", str(tmp_path / "run"), "--rounds", "9"]) in (0, 2)
        assert "Traceback" not in capsys.readouterr().err
