"""`kedge reproduce` as a user meets it."""

import csv
import json
import signal

import pytest

from kedge.cli.program import execute
from kedge.reproduce.conduct import UnfinishedError


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_figure_by_one_command_then_again_without_running(tmp_path, capsys):
    assert execute(["reproduce", "mlp-full", "--jobs", "1"]) == 0
    printed = capsys.readouterr()
    folder = tmp_path / "experiments" / "results" / "mlp-full" / "smoke"
    assert "## Claims" in printed.out
    assert "digits instead of CIFAR-10" in printed.out
    assert "evidence of nothing" in printed.out
    for name in ("figure.png", "budgets.png", "summary.csv", "curves.csv", "grid.csv", "verdict.md"):
        assert (folder / name).stat().st_size > 100
    verdict = (folder / "verdict.md").read_text(encoding="utf-8")
    assert "`kedge reproduce mlp-full --scale smoke`" in verdict
    assert str(tmp_path) not in verdict
    before = {file: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    assert execute(["reproduce", "mlp-full", "--jobs", "1"]) == 0
    assert "accuracy" not in capsys.readouterr().err  # no run was played
    assert {file: file.read_bytes() for file in folder.iterdir() if file.is_file()} == before


def test_a_run_is_repeated_from_its_configuration(tmp_path):
    assert execute(["reproduce", "mlp-partial", "--jobs", "1", "--out", "results"]) == 0
    folder = tmp_path / "results" / "mlp-partial" / "smoke"
    config = folder / "configs" / "tuned--1-of-10-clients--scaffold-m.toml"
    assert execute(["run", str(config), "--seed", "1", "--out", "again"]) == 0
    last = json.loads((tmp_path / "again" / "metrics.jsonl").read_text().splitlines()[-1])
    with (folder / "curves.csv").open() as file:
        wanted = [row for row in csv.DictReader(file) if (row["line"], row["seed"]) == ("scaffold-m", "1")]
    row = next(row for row in wanted if row["protocol"] == "tuned" and int(row["round"]) == last["round"])
    assert row["test_loss"] == f"{last['test_loss']:.6g}"
    assert row["test_accuracy"] == f"{last['test_accuracy']:.6g}"


def test_a_sweep_is_drawn_over_its_setting(tmp_path):
    assert execute(["reproduce", "participation", "--jobs", "1", "--out", "results"]) == 0
    assert (tmp_path / "results" / "participation" / "smoke" / "figure.png").stat().st_size > 1000


def test_the_list_has_every_figure_and_its_cost(capsys):
    assert execute(["reproduce", "--list"]) == 0
    printed = capsys.readouterr().out
    assert "mnist-many" in printed
    assert "laptop" in printed


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "no figure is given"),
        (["mnist-may"], "figure 'mnist-may' does not exist; did you mean 'mnist-many'"),
        (["mnist-many", "--scale", "lap"], "scale 'lap' does not exist; did you mean 'laptop'"),
        (["fashion", "--scale", "laptop", "--data-dir", "nowhere"], "fashion-mnist is not in nowhere"),
    ],
)
def test_what_is_wrong_is_one_sentence(arguments, sentence, capsys, monkeypatch):
    monkeypatch.setattr("urllib.request.urlopen", _no_network)
    assert execute(["reproduce", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_all_leaves_out_what_has_no_data_and_says_so(capsys, monkeypatch):
    monkeypatch.setattr("urllib.request.urlopen", _no_network)
    monkeypatch.setattr("kedge.cli.reproduce.names", lambda: ["fashion", "mnist-many"])
    assert execute(["reproduce", "all", "--scale", "laptop", "--data-dir", "nowhere"]) == 2
    error = capsys.readouterr().err
    assert "fashion is left out: fashion-mnist is not in nowhere" in error
    assert "left out, as reported above: fashion, mnist-many" in error


def test_a_stopped_command_says_how_it_goes_on(capsys, monkeypatch):
    def interrupted(*args):
        signal.raise_signal(signal.SIGTERM)
        raise UnfinishedError

    monkeypatch.setattr("kedge.cli.reproduce.conduct", interrupted)
    assert execute(["reproduce", "mlp-full", "--out", "place"]) == 143
    assert "continue with `kedge reproduce mlp-full --scale smoke --out place`" in capsys.readouterr().err


def test_figures_that_others_are_compared_with_come_first(capsys, monkeypatch):
    order = []
    monkeypatch.setattr("kedge.cli.reproduce._one", lambda plan, *rest: order.append(plan.experiment.name))
    assert execute(["reproduce", "all", "--scale", "paper"]) == 0
    assert order.index("resnet-mild") < order.index("resnet-severe")


def _no_network(*args, **kwargs):
    raise OSError("no network")


def test_a_figure_without_a_scale_says_which_it_has(capsys):
    assert execute(["reproduce", "mlp-full", "--scale", "overnight"]) == 2
    assert "mlp-full has no scale overnight, but smoke, laptop, paper" in capsys.readouterr().err
