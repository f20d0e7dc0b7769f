"""The command line as a user meets it."""

import csv
import errno
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from rich.console import Console

from kedge.cli.program import execute

QUICK = ["--rounds", "4", "--clients", "10", "--cohort", "3", "--local-steps", "2", "--set", "model.widths=[8]"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def metrics(path):
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def test_run_leaves_a_directory_that_repeats_it(tmp_path, capsys):
    assert execute(["run", *QUICK, "--out", "first", "--algorithm", "scaffold-m", "--eta", "0.2"]) == 0
    printed = capsys.readouterr().out
    assert "scaffold-m after 4 rounds: test loss" in printed
    config = tomllib.loads((tmp_path / "first" / "config.toml").read_text())
    assert config["algorithm"] == {"name": "scaffold-m", "eta": 0.2, "beta": 0.1, "opening_batches": 1}
    assert config["model"] == {"name": "mlp", "widths": [8], "dropout": 0.0}
    assert config["data"]["partition"] == "dirichlet"
    assert execute(["run", "first/config.toml", "--out", "second"]) == 0
    assert metrics(tmp_path / "first") == metrics(tmp_path / "second")
    assert (tmp_path / "first" / "config.toml").read_bytes() == (tmp_path / "second" / "config.toml").read_bytes()


def test_the_number_of_threads_changes_no_metric(tmp_path):
    for threads in ("1", "2", "3"):
        assert execute(["run", *QUICK, "--threads", threads, "--out", threads]) == 0
    assert metrics(tmp_path / "1") == metrics(tmp_path / "2") == metrics(tmp_path / "3")


def test_the_memory_for_client_state_changes_no_metric(tmp_path):
    for memory in ("4GB", "3kB", "0"):
        assert execute(["run", *QUICK, "--state-memory", memory, "--out", memory]) == 0
    assert metrics(tmp_path / "4GB") == metrics(tmp_path / "3kB") == metrics(tmp_path / "0")
    config = tomllib.loads((tmp_path / "3kB" / "config.toml").read_text())
    assert config["run"]["state_memory"] == "3kB"
    assert {file.name for file in (tmp_path / "0").iterdir()} == {file.name for file in (tmp_path / "4GB").iterdir()}


def test_options_override_set_overrides_the_file(tmp_path):
    (tmp_path / "c.toml").write_text("[algorithm]\nname = 'fedavg-m'\neta = 0.1\nbeta = 0.3\n[run]\nrounds = 9\n")
    assert execute(["run", "c.toml", *QUICK, "--set", "algorithm.beta=0.4", "--eta", "0.5", "--out", "run"]) == 0
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert (config["algorithm"]["eta"], config["algorithm"]["beta"], config["run"]["rounds"]) == (0.5, 0.4, 4)


def test_a_run_without_out_gets_a_new_directory_each_time(tmp_path):
    for number in (1, 2):
        assert execute(["run", *QUICK]) == 0
        assert (tmp_path / "runs" / f"digits-scaffold-m-{number}" / "summary.json").exists()


def test_every_built_in_problem_runs():
    for dataset, more in (("synthetic", []), ("quadratics", ["--batch-size", "full"])):
        settings = ["--rounds", "2", "--clients", "6", "--cohort", "all", "--local-steps", "2"]
        assert execute(["run", "--dataset", dataset, *settings, *more, "--out", dataset]) == 0


def test_compare_writes_table_figure_and_numbers(tmp_path, capsys):
    command = [
        "compare",
        *QUICK,
        "--algorithms",
        "fedavg,scaffold-m",
        "--seeds",
        "2",
        "--out",
        "both",
        "--target",
        "0.1",
        "--jobs",
        "1",
    ]
    assert execute(command) == 0
    printed = capsys.readouterr().out
    assert "fedavg" in printed
    assert "rounds to" in printed
    for name in ("curves.png", "curves.svg", "curves.csv", "summary.csv"):
        assert (tmp_path / "both" / name).stat().st_size > 100
    with (tmp_path / "both" / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["algorithm"] for row in rows] == ["fedavg", "scaffold-m"]
    assert float(rows[0]["seeds"]) == 2
    again = tmp_path / "both" / "runs" / "scaffold-m-1" / "config.toml"
    assert execute(["run", str(again), "--out", "again"]) == 0
    assert metrics(tmp_path / "again") == metrics(again.parent)


def test_the_same_comparison_again_goes_on_and_does_nothing_twice(tmp_path, capsys):
    command = ["compare", *QUICK, "--algorithms", "fedavg,scaffold-m", "--out", "both", "--jobs", "1", "--seeds"]
    assert execute([*command, "1"]) == 0
    runs = tmp_path / "both" / "runs"
    before = {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in runs.rglob("*") if file.is_file()}
    assert execute([*command, "2"]) == 0
    after = {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in runs.rglob("*") if file.is_file()}
    assert {file: after[file] for file in before} == before
    assert sorted(path.name for path in runs.iterdir()) == ["fedavg-0", "fedavg-1", "scaffold-m-0", "scaffold-m-1"]
    assert execute([*command, "2", "--eta", "0.3"]) == 2
    assert "fedavg-0 holds a different run: algorithm.eta is" in capsys.readouterr().err


def test_compare_takes_hyper_parameters_for_all_and_for_one(tmp_path):
    command = ["compare", *QUICK, "--algorithms", "fedavg,fedavg-m", "--seeds", "1", "--out", "both", "--beta", "0.5"]
    command += ["--jobs", "1"]
    assert execute([*command, "--eta", "0.3", "--set", "fedavg-m.eta=0.7"]) == 0
    configs = [tomllib.loads((tmp_path / "both" / "runs" / f"{n}-0" / "config.toml").read_text())["algorithm"]
               for n in ("fedavg", "fedavg-m")]  # fmt: skip
    assert configs == [{"name": "fedavg", "eta": 0.3}, {"name": "fedavg-m", "eta": 0.7, "beta": 0.5}]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--algorithms", "fedavg,fedavg-m"],
            "eta and beta were tuned for digits, 40 clients, not for this problem; tune them",
        ),
        (
            ["--algorithms", "fedavg"],
            "eta was tuned for digits, 40 clients, not for this problem; tune it with kedge sweep",
        ),
        (["--algorithms", "fedavg-m", "--eta", "0.1"], "beta was tuned"),
        (["--algorithms", "fedavg-m", "--eta", "0.1", "--set", "fedavg-m.beta=0.5"], None),
        (["--algorithms", "fedavg,fedpd", "--set", "fedavg.eta=0.1", "--cohort", "all"], None),
    ],
)
def test_compare_says_once_that_its_rates_were_tuned_for_another_problem(arguments, said, capsys):
    command = ["compare", *QUICK, "--seeds", "1", "--jobs", "1", "--out", "one", *arguments]
    for _ in range(2):
        assert execute(command) == 0
        error = capsys.readouterr().err
        assert error.count("tuned for digits") == (said is not None)
        assert said is None or said in error


def test_compare_says_nothing_of_its_rates_on_the_problem_that_they_were_tuned_for(capsys):
    assert execute(["compare", "--rounds", "1", "--seeds", "1", "--algorithms", "fedavg", "--seed", "3"]) == 0
    assert "tuned" not in capsys.readouterr().err


def test_a_comparison_with_fewer_rounds_replaces_no_longer_one(tmp_path, capsys):
    command = ["compare", *QUICK, "--jobs", "1", "--seeds", "1", "--out", "one", "--algorithms"]
    assert execute([*command, "fedavg,scaffold"]) == 0
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    capsys.readouterr()
    assert execute([*command, "fedavg", "--rounds", "2"]) == 2
    assert capsys.readouterr().err == ("kedge: rounds is 2, but the comparison in one has 4; nothing was overwritten\n")
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
    assert execute([*command, "fedavg", "--rounds", "5"]) == 0


def test_a_comparison_goes_on_when_one_run_diverges(capsys):
    command = ["compare", *QUICK, "--algorithms", "fedavg,scaffold", "--seeds", "1", "--set", "fedavg.eta=1e30"]
    assert execute([*command, "--jobs", "1"]) == 0
    assert "1 of 1 diverged" in capsys.readouterr().out
    (picture,) = Path("runs").glob("*/curves.svg")
    assert "fedavg (1 diverged)" in picture.read_text(encoding="utf-8")


def test_a_comparison_in_which_all_diverge_exits_with_1(capsys):
    assert execute(["compare", *QUICK, "--algorithms", "fedavg", "--seeds", "1", "--eta", "1e30"]) == 1
    assert "1 of 1 diverged" in capsys.readouterr().out


def test_a_diverged_run_exits_with_1_and_one_sentence(capsys):
    assert execute(["run", *QUICK, "--eta", "1e30"]) == 1
    assert capsys.readouterr().err.startswith("kedge: ScaffoldM diverged: the loss is not finite in round ")


def test_algorithms_lists_every_one(capsys):
    from kedge import ALGORITHMS

    assert execute(["algorithms"]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n{name} " in printed for name in ALGORITHMS)
    assert "what it is" in printed
    assert "Other names: fedcm for fedavg-m." in printed


def test_algorithms_says_what_a_narrow_terminal_does_not_show(capsys, monkeypatch):
    console = Console(force_terminal=True, width=90, color_system=None)
    monkeypatch.setattr("kedge.cli.algorithms.output", console)
    assert execute(["algorithms"]) == 0
    printed = capsys.readouterr().out
    assert "what it is" not in printed
    assert "A terminal of 120 columns also shows what each is; `kedge algorithms NAME` explains one." in printed


def test_the_mean_of_rounds_keeps_its_half():
    from kedge.cli.compare import _rounds

    assert [_rounds(mean) for mean in (11.0, 11.5, 12.5, 37 / 3, None)] == ["11", "11.5", "12.5", "12.3", "-"]


def test_a_run_prints_the_accuracy_of_the_clients_and_one_round_is_singular(capsys):
    one = ["run", *QUICK, "--rounds", "1"]
    assert execute([*one, "--client-tests", "0.25", "--eval-clients"]) == 0
    printed = capsys.readouterr().out
    assert "after 1 round: test loss " in printed
    assert "%, mean clients test accuracy " in printed
    assert "% (worst tenth " in printed
    assert execute([*one, "--clients", "1", "--cohort", "1", "--partition", "iid"]) == 0
    assert "Federation(1 client, " in capsys.readouterr().out


@pytest.mark.parametrize(("name", "title"), [("scaffold-m", "SCAFFOLD-M"), ("fedcm", "FedAvg-M")])
def test_algorithms_detail_prints_one_section(capsys, name, title):
    assert execute(["algorithms", "--detail", name]) == 0
    printed = capsys.readouterr().out
    assert execute(["algorithms", name]) == 0
    assert capsys.readouterr().out == printed
    assert printed.strip().startswith(f"{title} (")
    for part in ("Local direction.", "Costs.", "Limit.", "Citation.", "Symbols."):
        assert part in printed
    assert "SCAFFOLD-M-VR" not in printed.split("Citation.")[0]


def test_algorithms_detail_of_an_unknown_or_own_one_is_one_sentence_and_exit_2(tmp_path, capsys):
    (tmp_path / "own.py").write_text("from kedge import FedAvg\n\nclass Own(FedAvg):\n    pass\n")
    for name, sentence in (
        ("scafold-m", "algorithm 'scafold-m' does not exist; did you mean 'scaffold-m'?"),
        ("own.py:Own", "own.py:Own is not built in, and only built-in algorithms are described"),
    ):
        assert execute(["algorithms", "--detail", name]) == 2
        assert capsys.readouterr().err == f"kedge: {sentence}\n"


def test_algorithms_detail_without_the_page_is_one_sentence_and_exit_2(capsys, monkeypatch):
    monkeypatch.setattr("kedge.report.costs.__file__", "/nowhere/src/kedge/report/costs.py")
    assert execute(["algorithms", "--detail", "fedavg"]) == 2
    assert capsys.readouterr().err == "kedge: the page of algorithms was not installed with this copy of kedge\n"


def test_partition_prints_and_draws(tmp_path, capsys):
    assert execute(["partition", "--clients", "12", "--alpha", "0.2", "--out", "alpha0.2"]) == 0
    printed = capsys.readouterr().out
    assert "label entropy per client" in printed
    assert (tmp_path / "alpha0.2.png").stat().st_size > 1000
    assert execute(["partition", "--out", "alpha0.2"]) == 2
    (tmp_path / "mine.svg").write_text("precious")
    assert execute(["partition", "--out", "mine.png"]) == 2
    assert (tmp_path / "mine.svg").read_text() == "precious"


def test_a_picture_that_cannot_be_written_is_named(tmp_path, capsys, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.write", full)
    assert execute(["partition", "--clients", "12", "--out", "picture"]) == 1
    assert capsys.readouterr().err == f"kedge: picture.png cannot be written: {os.strerror(errno.ENOSPC)}\n"


def test_the_version_is_said(capsys):
    assert execute(["--version"]) == 0
    assert capsys.readouterr().out == f"kedge {version('kedge')}\n"


def test_kedge_alone_prints_the_help(capsys):
    assert execute([]) == 0
    captured = capsys.readouterr()
    assert "compare" in captured.out
    assert captured.err == ""


def test_a_configuration_holds_from_any_directory(tmp_path, monkeypatch):
    source = "from kedge.algorithms import FedAvg\nclass Mine(FedAvg):\n    'Mine.'\n"
    (tmp_path / "mine.py").write_text(source)
    assert execute(["run", *QUICK, "--algorithm", "mine.py:Mine", "--out", "run"]) == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert execute(["run", "../run/config.toml", "--out", "again", "--trust"]) == 0
    assert metrics(tmp_path / "run") == metrics(tmp_path / "elsewhere" / "again")


def test_an_alias_has_the_tuned_rates_of_what_it_names(tmp_path):
    for name in ("fedcm", "fedavg-m"):
        assert execute(["compare", *QUICK, "--algorithms", name, "--seeds", "1", "--out", name]) == 0
    rows = [metrics(tmp_path / name / "runs" / f"{name}-0") for name in ("fedcm", "fedavg-m")]
    assert rows[0] == rows[1]


def _no_network(*_, **__):
    raise OSError("no network")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "--algorithm", "scafold"], "algorithm 'scafold' does not exist; did you mean 'scaffold'?"),
        (["run", "--dataset", "mnits"], "data set 'mnits' does not exist; did you mean 'mnist'?"),
        (["run", "--model", "mpl"], "model 'mpl' does not exist"),
        (["run", "--partition", "dirichlett"], "partition 'dirichlett' does not exist; did you mean 'dirichlet'?"),
        (["run", "--cohort", "50"], "cohort is 50, but the federation has 40 clients"),
        (["run", "--clients", "5000"], "clients is 5000, but the data set has only 1442 samples"),
        (["run", "--eta", "0"], "eta of ScaffoldM is 0, but must be above 0"),
        (["run", "--beta", "1.5"], "beta of ScaffoldM is 1.5, but must be above 0 and at most 1"),
        (["run", "--algorithm", "fedavg", "--beta", "0.5"], "fedavg has no hyper-parameter 'beta'; it has eta, gamma"),
        (["run", "--rounds", "0"], "rounds is 0, but must be a whole number of at least 1"),
        (["run", "--dataset", "mnist", "--cohort", "0"], "cohort is 0, but must be a whole number of at least 1"),
        (["run", "--dataset", "mnist", "--local-steps", "0"], "local_steps is 0, but must be a whole number"),
        (["run", "--threads", "0"], "threads is 0, but must be a whole number from 1 to 1024"),
        (["run", "--workers", "2", "--rounds", "-1"], "rounds is -1, but must be a whole number of at least 1"),
        (["run", "--dataset", "quadratics", "--alpha", "0.3"], "quadratics has no samples to divide"),
        (["run", "--dataset", "digit"], "data set 'digit' does not exist; did you mean 'digits'?"),
        (["compare", "--algorithms", "fedavg", "--beta", "0.3"], "nothing in the comparison (fedavg) has a hyper-par"),
        (
            ["compare", "--algorithms", "fedavg", "--set", "fedcm.eta=1"],
            "--set names fedcm, but the comparison has only",
        ),
        (["reproduce", "mlp-full", "--jobs", "0"], "jobs is 0, but must be a whole number of at least 1"),
        (["run", "--rounds", "few"], "Invalid value for '--rounds'"),
        (["run", "--nonsense"], "No such option"),
        (["run", "--set", "run.round=3"], "[run] has no setting 'round'; did you mean 'rounds'?"),
        (["run", "rounds.toml"], "rounds is outside a section; it belongs in [run]"),
        (["compare", "rounds.toml"], "rounds is outside a section; it belongs in [run]"),
        (["run", "--set", "run.alpha=3"], "[run] has no setting 'alpha'; it belongs in [data]"),
        (["run", "--engine", "fast"], "engine 'fast' does not exist; known: "),
        (["run", "--loss", "huber"], "loss 'huber' does not exist; known: "),
        (["run", "--lr", "0.1"], "No such option: --lr; kedge calls it --eta\n"),
        (["compare", "--learning_rate", "0.1"], "No such option: --learning-rate; kedge calls it --eta\n"),
        (["sweep", "--epochs", "1"], "No such option: --epochs; kedge calls it --local-epochs\n"),
        (["run", "--batch", "1"], "No such option: --batch; kedge calls it --batch-size\n"),
        (["run", "--optimizer", "adam"], "No such option: --optimizer; kedge calls it --local-update\n"),
        (["run", "--num-clients", "3"], "No such option: --num-clients; kedge calls it --clients\n"),
        (["run", "--set", "runs.rounds=3"], "section 'runs' does not exist; did you mean 'run'?"),
        (["run", "--set", "rounds"], "--set is 'rounds', but must have the form key=value"),
        (["run", "--set", "algorithm.opening_batches=1.5"], "must be a whole number"),
        (["run", "missing.toml"], "the configuration missing.toml cannot be read"),
        (["run", "broken.toml"], "the configuration broken.toml is not TOML"),
        (["run", "--out", "used"], "out is used, but that directory is not empty; nothing was overwritten"),
        (["run", "--out", "broken.toml"], "out is broken.toml, but broken.toml is not a directory"),
        (["run", "--device", "nonsense"], "device is 'nonsense', but torch cannot use it"),
        (
            ["run", "--dataset", "mnist", "--data-dir", "nowhere"],
            "mnist is not in nowhere",
        ),
        (["compare", "--seeds", "0"], "seeds is 0, but must be a whole number from 1 to 1000"),
        (["compare", "--jobs", "0"], "jobs is 0, but must be a whole number of at least 1"),
        (["compare", "--cohort", "50"], "cohort is 50, but the federation has 40 clients"),
        (["compare", "--out", "used"], "out is used, but that directory is not empty; nothing was overwritten"),
        (["compare", "--target", "2"], "target is 2, but must be above 0 and at most 1, as in 0.93"),
        (["compare", "--algorithms", ","], "algorithms is empty"),
        (["compare", "--algorithms", "fedavg", "--set", "scaffold.eta=1"], "the comparison has only fedavg"),
        (["partition", "--dataset", "quadratics"], "quadratics has no labels"),
        (["nonsense"], "No such command"),
        (["run", "--device", "cpux"], "device is 'cpux', but torch cannot use it"),
        (["run", "--eval-every", "0"], "eval_every is 0"),
        (["run", "--workers", "0"], "workers is 0, but must be a whole number from 1 to 1024"),
        (["run", "--state-memory", "much"], "state_memory is 'much', but must be a size such as 500MB or 2GB"),
        (["run", "--set", "run.state_memory=-1"], "state_memory is -1, but must be a size such as 500MB or 2GB"),
        (["run", "--set", "run.local_epochs=inf"], "local_epochs is inf"),
        (["run", "--out", "x" * 300], "but it cannot be created: File name too long"),
        (["run", "--dataset", "quadratics", "--model", "lenet"], "quadratics brings its own model"),
        (["run", "--set", "data.sigma=3"], "data.sigma belongs to the data set quadratics"),
        (["compare", "flat.toml"], "algorithm is 3, but must be a section"),
        (["compare", "--algorithms", "fedavg,fedavg"], "algorithms names fedavg twice"),
        (["partition", "--out", "."], "but must name a file"),
        (["run", "--workers", "20"], "workers is 20, but must be at most shards, which is 16"),
        (["run", "--workers", "20", "--out", "new"], "workers is 20, but must be at most shards, which is 16"),
    ],
)
def test_a_wrong_input_is_one_sentence_and_exit_2(tmp_path, capsys, monkeypatch, arguments, sentence):
    monkeypatch.setattr("urllib.request.urlopen", _no_network)
    (tmp_path / "broken.toml").write_text("[run\n")
    (tmp_path / "flat.toml").write_text("algorithm = 3\n")
    (tmp_path / "rounds.toml").write_text("rounds = 10\n")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").write_text("precious")
    before = sorted(tmp_path.rglob("*"))
    assert execute(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("kedge: ")
    assert sentence in error
    assert error.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("arguments", [["runn"], ["theory", "veryfy"], ["flower", "nods"]])
def test_the_nearest_command_is_proposed_once(arguments, capsys):
    assert execute(arguments) == 2
    assert capsys.readouterr().err.count("Did you mean") == 1


def test_ctrl_c_exits_with_130_and_leaves_what_was_done(tmp_path):
    command = [sys.executable, "-c", "from kedge.cli import main; main()", "run", "--rounds", "1000000", "--out", "run"]
    with subprocess.Popen(
        [*command, "--eval-every", "1"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        file = tmp_path / "run" / "metrics.jsonl"
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not (file.exists() and file.stat().st_size > 500):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "continue with `kedge resume run`" in error
    assert metrics(tmp_path / "run")[0]["round"] == 1


def test_a_comparison_is_extended_repeated_and_never_replaced(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = ["compare", *QUICK, "--jobs", "1", "--out", "one"]
    assert execute([*command, "--algorithms", "fedavg", "--seeds", "2", "--set", "fedavg.eta=0.3"]) == 0
    capsys.readouterr()
    assert execute([*command, "--algorithms", "scaffold-m", "--seeds", "1"]) == 0
    table = capsys.readouterr().out
    assert "means over 2 seeds; ± is the standard deviation over them" in table
    assert [line.split()[:2] for line in table.splitlines() if line.startswith("fedavg")] == [["fedavg", "0.3"]]
    assert {path.name for path in (tmp_path / "one" / "runs").iterdir() if path.is_dir()} == {
        "fedavg-0", "fedavg-1", "scaffold-m-0", "scaffold-m-1",
    }  # fmt: skip
    assert execute(["compare", "one/compare.toml", "--jobs", "1", "--out", "two"]) == 0
    read = [
        [line.split(",")[:9] for line in (tmp_path / name / "summary.csv").read_text().splitlines()]
        for name in ("one", "two")
    ]
    assert read[0] == read[1]
    assert execute([*command, "--algorithms", "feddyn", "--local-steps", "7"]) == 2
    assert "the existing comparison is different: run.local_steps is" in capsys.readouterr().err


@pytest.mark.parametrize("named", ["evil.py:Evil", "evil.py:Evil.npz", "evil.py:Evil,x.npz", "x.npz,evil.py:Evil"])
def test_a_comparison_from_elsewhere_runs_no_code_without_consent(tmp_path, monkeypatch, capsys, named):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("open('executed', 'w').close()")
    (tmp_path / "compare.toml").write_text(f'[compare]\nalgorithms = ["{named}"]\nseeds = 1\n')
    assert execute(["compare", "compare.toml", "--out", "new"]) == 2
    assert "runs only if you trust it" in capsys.readouterr().err
    (tmp_path / "old" / "runs").mkdir(parents=True)
    (tmp_path / "compare.toml").rename(tmp_path / "old" / "compare.toml")
    assert execute(["compare", "--algorithms", "fedavg", "--out", "old"]) == 2
    assert "runs only if you trust it" in capsys.readouterr().err
    assert not (tmp_path / "executed").exists()


def test_a_comparison_that_cannot_be_read_is_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for text in ("[compare]\nseeds = 'two'", "[compare]\nnonsense = 1", "compare = 3", "[compare"):
        (tmp_path / "bad.toml").write_text(text)
        assert execute(["compare", "bad.toml"]) == 2
        assert capsys.readouterr().err.count("\n") == 1
