"""`kedge sweep` as a user meets it."""

import csv
import json
import signal
import subprocess
import sys
import time

import pytest

import kedge
from kedge.cli.program import execute

DIGITS = ["--rounds", "3", "--clients", "10", "--cohort", "3", "--local-steps", "2", "--set", "model.widths=[8]"]
QUICK = [
    "--dataset", "quadratics", "--batch-size", "full", "--clients", "4", "--metric", "test_loss", "--jobs", "1",
    "--set", "run.rounds=4", "--set", "run.cohort=2", "--set", "run.local_steps=2",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def table(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def files(path):
    return {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in path.rglob("*") if file.is_file()}


def timeless(path):
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def test_a_sweep_tries_every_point_and_draws_them(tmp_path, capsys):
    command = ["sweep", *DIGITS, "--grid", "algorithm.eta=0.05,0.2", "--grid", "algorithm.beta=0.2,0.5", "--seeds", "2"]
    assert execute([*command, "--seed", "5", "--out", "s", "--jobs", "1"]) == 0
    printed = capsys.readouterr().out
    assert printed.count(" after 3 rounds (") == 8
    assert "Best: --set algorithm.eta=" in printed
    rows, runs = table(tmp_path / "s" / "summary.csv"), table(tmp_path / "s" / "runs.csv")
    assert [row["rank"] for row in rows] == ["1", "2", "3", "4"]
    means = [float(row["test_accuracy"]) for row in rows]
    assert means == sorted(means, reverse=True)
    mine = [run for run in runs if (run["algorithm.eta"], run["algorithm.beta"]) == ("0.2", "0.5")]
    assert [run["run"] for run in mine] == ["eta0.2-beta0.5-seed5", "eta0.2-beta0.5-seed6"]
    for run in runs:
        summary = json.loads((tmp_path / "s" / "runs" / run["run"] / "summary.json").read_text())
        assert float(run["test_accuracy"]) == summary["test_accuracy"]
    assert (tmp_path / "s" / "heatmap.png").stat().st_size > 5000
    assert (tmp_path / "s" / "heatmap.pdf").read_bytes().startswith(b"%PDF")
    before = files(tmp_path / "s" / "runs")
    assert execute([*command, "--seed", "5", "--out", "s"]) == 0
    assert files(tmp_path / "s" / "runs") == before
    assert files(tmp_path / "s")[tmp_path / "s" / "heatmap.pdf"]


def test_more_values_and_seeds_extend_a_sweep_and_nothing_else_does(tmp_path, capsys):
    assert execute(["sweep", *QUICK, "--grid", "algorithm.eta=0.1", "--seeds", "1", "--out", "s"]) == 0
    before = files(tmp_path / "s" / "runs")
    more = ["sweep", *QUICK, "--grid", "algorithm.eta=0.05,0.2", "--seeds", "2", "--out", "s"]
    assert execute(more) == 0
    after = files(tmp_path / "s" / "runs")
    assert {file: after[file] for file in before} == before
    assert sorted(row["algorithm.eta"] for row in table(tmp_path / "s" / "summary.csv")) == ["0.05", "0.1", "0.2"]
    assert len(table(tmp_path / "s" / "runs.csv")) == 6
    for wrong, sentence in (
        (["--clients", "5"], "data.clients is 4 there, but 5 here"),
        (["--grid", "algorithm.gamma=1"], "--grid names algorithm.eta, algorithm.gamma, but the existing sweep"),
        (["--halving", "2"], "halving is not set there, but 2 here"),
        (["--search", "optuna"], "cannot continue as a search by optuna"),
    ):
        capsys.readouterr()
        assert execute([*more, *wrong]) == 2
        assert sentence in capsys.readouterr().err
    assert files(tmp_path / "s" / "runs") == after


def test_a_sweep_over_an_algorithm_of_ones_own_holds_from_any_directory(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("from kedge.algorithms import FedAvg\nclass Mine(FedAvg):\n    'Mine.'\n")
    (tmp_path / "elsewhere").mkdir()
    command, runs = ["sweep", *QUICK, "--seeds", "1", "--grid"], tmp_path / "s" / "runs"
    assert execute([*command, "algorithm.name=mine.py:Mine,fedavg", "--out", "s"]) == 0
    before = files(runs)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert execute([*command, f"algorithm.name={tmp_path}/mine.py:Mine,fedavg", "--out", "../s"]) == 0
    assert files(runs) == before
    assert sorted(path.name for path in runs.iterdir()) == ["nameMine-seed0", "namefedavg-seed0"]
    assert timeless(runs / "nameMine-seed0") == timeless(runs / "namefedavg-seed0")


def test_a_diverged_point_is_worst_and_shown(tmp_path, capsys):
    assert execute(["sweep", *QUICK, "--grid", "algorithm.eta=1e30,0.1", "--seeds", "2", "--out", "s"]) == 0
    assert "diverged in round" in capsys.readouterr().out
    rows = table(tmp_path / "s" / "summary.csv")
    assert [(row["algorithm.eta"], row["state"], row["diverged"]) for row in rows] == [
        ("0.1", "finished", "0"), ("1e+30", "diverged", "2"),
    ]  # fmt: skip


@pytest.mark.parametrize("grid", [["algorithm.eta=1e29,1e30"], ["algorithm.eta=1e29,1e30", "algorithm.beta=0.1,0.2"]])
def test_a_sweep_of_which_all_diverge_is_drawn_too(tmp_path, capsys, grid):
    options = [part for text in grid for part in ("--grid", text)]
    assert execute(["sweep", *QUICK, *options, "--seeds", "1", "--out", "s"]) == 0
    assert "No point finished" in capsys.readouterr().out
    assert (tmp_path / "s" / "heatmap.png").exists()


def test_halving_gives_the_best_more_rounds(tmp_path, capsys):
    command = ["sweep", *QUICK, "--rounds", "9", "--grid", "algorithm.eta=0.001,0.01,0.02,0.05,0.1,1e30,0.2,0.3,0.4"]
    command += ["--grid", "run.weight_decay=0.0", "--seeds", "1", "--halving", "3", "--out", "s", "--local-steps", "12"]
    assert execute(command) == 0
    assert "stopped after round 1" in capsys.readouterr().out
    rows = table(tmp_path / "s" / "summary.csv")
    assert [row["rounds"] for row in rows] == ["9", "3", "3", *["1"] * 6]
    assert [row["state"] for row in rows] == ["finished", *["stopped"] * 7, "diverged"]
    first = sorted(float(row["test_loss"]) for row in rows[3:8])
    for run in table(tmp_path / "s" / "runs.csv")[:3]:  # those that went on were the best of the first rung
        lines = (tmp_path / "s" / "runs" / run["run"] / "metrics.jsonl").read_text().splitlines()
        assert json.loads(lines[0])["test_loss"] <= first[0]
    before = files(tmp_path / "s" / "runs")
    assert execute(command) == 0
    assert files(tmp_path / "s" / "runs") == before
    assert [row["rounds"] for row in table(tmp_path / "s" / "summary.csv")] == ["9", "3", "3", *["1"] * 6]


def test_optuna_searches_ranges_and_goes_on(tmp_path):
    pytest.importorskip("optuna")
    command = ["sweep", *QUICK, "--search", "optuna", "--grid", "algorithm.eta=0.01..1:log", "--seeds", "1"]
    command += ["--grid", "run.local_steps=1..4", "--grid", "algorithm.name=fedavg,scaffold", "--out", "s"]
    assert execute([*command, "--trials", "3"]) == 0
    before = files(tmp_path / "s" / "runs")
    assert execute([*command, "--trials", "5"]) == 0
    after = files(tmp_path / "s" / "runs")
    assert {file: after[file] for file in before} == before
    rows = table(tmp_path / "s" / "summary.csv")
    assert len(rows) == len({row["algorithm.eta"] for row in rows}) == 5
    assert all(0.01 <= float(row["algorithm.eta"]) <= 1 for row in rows)
    assert {row["run.local_steps"] for row in rows} <= {"1", "2", "3", "4"}


def test_without_optuna_the_way_to_get_it_is_told(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert execute(["sweep", *QUICK, "--search", "optuna", "--grid", "algorithm.eta=0.1..1"]) == 2
    assert "pip install 'kedge[optuna]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "there is no --grid"),
        (["--grid", "algorithm.eta="], "names no value"),
        (["--grid", "algorithm.etta=1"], "has no hyper-parameter 'etta'"),
        (["--grid", "algorithm.eta=1,2", "--eta", "3"], "algorithm.eta is given twice"),
        (["--grid", "algorithms.eta=1"], "section 'algorithms' does not exist; did you mean 'algorithm'?"),
        (["--grid", "algorithm.eta=0.1,big"], "algorithm.eta is 'big'"),
        (["--grid", "algorithm.beta=0.1,big"], "beta of ScaffoldM is 'big'"),
        (["--grid", "algorithm.eta=0.1,-1"], "eta of ScaffoldM is -1"),
        (["--grid", "run.cohort=2,9"], "cohort is 9, but the federation has 4 clients"),
        (["--grid", "run.rounds=2,0"], "rounds is 0, but must be a whole number of at least 1"),
        (["--grid", "run.rounds=2,3", "--halving", "2"], "with halving the rungs decide on the rounds"),
        (["--grid", "algorithm.eta=0.1..1"], "needs --search optuna"),
        (["--grid", "algorithm.eta=1", "--halving", "1"], "halving is 1, but must be a whole number from 2 to 100000"),
        (["--grid", "algorithm.eta=1", "--seeds", "0"], "seeds is 0, but must be a whole number from 1 to 100000"),
        (["--grid", "algorithm.eta=1", "--metric", "speed"], "metric is 'speed', but must be one of"),
        (["--grid", "algorithm.eta=1", "--metric", "test_accuracy"], "quadratics has no accuracy; use test_loss"),
        (["--grid", "algorithm.eta=1", "--search", "random"], "search is 'random', but must be grid or optuna"),
        (["--grid", "algorithm.eta=1", "--trials", "5"], "only --search optuna has trials"),
        (["--grid", "algorithm.eta=1", "--jobs", "0"], "jobs is 0, but must be a whole number of at least 1"),
        (["--grid", "model.name='a b','a-b'"], "quadratics brings its own model"),
        (["--grid", "algorithm.eta=1", "--out", "used"], "out is used, but that directory is not empty"),
        (["--resume", "used"], "No such option"),
    ],
)
def test_a_wrong_sweep_is_one_sentence_and_exit_2(tmp_path, capsys, arguments, sentence):
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").write_text("precious")
    before = sorted(tmp_path.rglob("*"))
    assert execute(["sweep", *QUICK, *arguments]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_sweep_that_was_stopped_or_killed_goes_on(tmp_path, number):
    command = ["sweep", *QUICK, "--grid", "algorithm.eta=0.05,0.1,0.2,0.3", "--seeds", "2", "--out", "s"]
    command += ["--rounds", "60", "--set", "run.checkpoint_every=20", "--jobs"]
    start = [sys.executable, "-c", "from kedge.cli import main; main()", *command, "2"]
    runs = tmp_path / "s" / "runs"
    with subprocess.Popen(start, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not list(runs.glob("*/summary.json")):
            time.sleep(0.01)
        process.send_signal(number)
        error = process.communicate(timeout=60)[1]
    finished = {file.parent.name for file in runs.glob("*/summary.json")}
    assert 1 <= len(finished) < 8
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert "kedge: stopped; the same command with --out s resumes it" in error
        assert {row["run"] for row in table(tmp_path / "s" / "runs.csv")} == finished
    before = {file: content for file, content in files(runs).items() if file.parent.name in finished}
    assert execute([*command, "1"]) == 0
    after = files(runs)
    assert {file: after[file] for file in before} == before
    assert len(table(tmp_path / "s" / "runs.csv")) == 8
    last = runs / "eta0.3-seed1"
    assert last.name not in finished
    assert execute(["run", str(last / "config.toml"), "--out", "alone"]) == 0
    assert timeless(last) == timeless(tmp_path / "alone")


def test_a_sweep_chooses_on_held_out_samples_and_tests_the_best(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["sweep", "--rounds", "4", "--clients", "6", "--cohort", "2", "--local-steps", "2", "--batch-size", "4"]
    command += ["--seeds", "2", "--grid", "algorithm.eta=0.001,0.5", "--jobs", "1", "--out", "s"]
    assert execute(command) == 0
    printed = capsys.readouterr().out
    assert "eta0.5-seed0: held-out accuracy " in printed
    assert "Trained on all samples (best/): test accuracy " in printed
    chosen, best = (kedge.read_runs(tmp_path / "s" / name) for name in ("runs", "best"))
    assert {run.config["data"]["holdout"] for run in chosen} == {0.1}
    assert [run.config["data"]["holdout"] for run in best] == [0.0, 0.0]
    assert {run.config["algorithm"]["eta"] for run in best} == {0.5}
    own = [
        "--client-tests",
        "0.2",
        "--eval-clients",
        "--metric",
        "clients_test_accuracy",
        "--seeds",
        "1",
        "--out",
        "own",
    ]
    assert execute([*command[:-6], "--grid", "algorithm.eta=0.1", "--jobs", "1", *own]) == 0
    printed = capsys.readouterr().out
    assert "held-out clients accuracy" in printed
    assert "Trained on all samples (best/): clients test accuracy " in printed
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "s").rglob("metrics.jsonl")}
    assert execute(command) == 0  # nothing is repeated
    assert before == {file: file.stat().st_mtime_ns for file in (tmp_path / "s").rglob("metrics.jsonl")}
    on_test = [*command[:-1], "t", "--holdout", "0"]
    assert execute(on_test) == 0
    printed = capsys.readouterr().out
    assert "Trained on all samples" not in printed.split("Best:")[-1]
    assert not (tmp_path / "t" / "best").exists()
    quadratics = ["sweep", "--dataset", "quadratics", "--clients", "4", "--rounds", "2", "--seeds", "1", "--jobs", "1"]
    assert execute([*quadratics, "--grid", "algorithm.eta=0.1", "--metric", "test_loss", "--out", "q"]) == 0
