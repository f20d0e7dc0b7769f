"""`kedge flower`: the app it writes, and what it refuses."""

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from flwr.app import Context, RecordDict

from docs.tables.settings import table
from kedge.cli.program import execute
from kedge.flower import node, warm
from kedge.flower.agreement import Agreement, FlowerSettings
from kedge.runs.config import check, federation_of, resolved


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "federation"]:
        monkeypatch.delitem(sys.modules, name)


def flattened(table, prefix=""):
    found = {}
    for key, value in table.items():
        found |= flattened(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def test_a_new_app_has_the_configuration_that_was_asked_for(tmp_path, monkeypatch):
    asked = ["--algorithm", "fedprox", "--set", "algorithm.mu=0.2", "--clients", "5", "--seed", "3", "--widths", "7,9"]
    assert execute(["flower", "new", "app", *asked]) == 0
    config = flattened(
        tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    )
    assert {type(value) for value in config.values()} <= {str, int, float, bool}
    agreed = Agreement.read(config)
    assert agreed.algorithm.mu == 0.2
    assert agreed.clients == 5
    # What the server writes to config.toml is what `kedge run` resolves.
    again = resolved(
        check({name: {k: v for k, v in part.items() if v is not None} for name, part in agreed.sections.items()})
    )
    assert again["model"]["widths"] == [7, 9]
    assert again["run"]["seed"] == 3
    monkeypatch.syspath_prepend(str(tmp_path / "app"))
    from federation import client_app, server_app, task  # the app that was just written

    context = Context(1, 1, {"client": 2}, RecordDict(), config)
    features, labels = task.load_data(context)
    assert len(features) == len(labels) > 0
    assert [p.shape[0] for p in task.model(context).parameters()] == [7, 7, 9, 9, 10, 10]
    assert callable(client_app.app)
    assert callable(server_app.app)


def test_a_new_app_divides_the_data_and_evaluates_as_the_simulator_does(tmp_path, monkeypatch):
    asked = ["--clients", "5", "--client-tests", "0.25", "--set", "run.eval_clients=true"]
    assert execute(["flower", "new", "app", *asked]) == 0
    config = flattened(
        tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    )
    agreed = Agreement.read(config)
    assert agreed.flower.eval_clients
    sections = {name: {k: v for k, v in part.items() if v is not None} for name, part in agreed.sections.items()}
    there = federation_of(check(sections))
    monkeypatch.syspath_prepend(str(tmp_path / "app"))
    from federation import task  # the app that was just written

    for client in range(5):
        context = Context(1, 1, {"client": client}, RecordDict(), config)
        for (x, y), (features, labels) in (
            (task.load_data(context), there.client(client)),
            (task.load_own_test(context), there.client_tests.client(client)),
            (task.load_test(context), there.test),
        ):
            assert torch.equal(x, features)
            assert torch.equal(y, labels)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["new", "full"], "full exists and is not an empty directory; nothing was overwritten"),
        (["new", "app", "--set", "run.nonsense=1"], "[run] has no setting 'nonsense'"),
        (["new", "app", "--dataset", "quadratics"], "the data set is quadratics, but a federation needs one that has"),
        (["demo", "--dataset", "quadratics"], "the data set is quadratics, but a federation needs one that has"),
        (["demo", "--out", "full"], "out is full, but that directory is not empty; nothing was overwritten"),
        (["demo", "--nodes", "0"], "data.clients is 0, but must be a whole number of at least 1"),
        (["node", "--", "--isolation", "process"], "--isolation is given, but `kedge flower node` decides that itself"),
    ],
)
def test_what_is_refused_is_one_sentence(arguments, sentence, tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert execute(["flower", *arguments]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_the_page_lists_the_settings():
    page = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
    assert table(FlowerSettings) in page


def test_a_node_falls_back_to_flowers_own_where_it_was_not_tried(monkeypatch):
    own, executor = node.command_lines(["--insecure", "--port", "9000"])
    assert own == ["flower-supernode", "--insecure", "--port", "9000", "--isolation", "process"]
    assert executor[-1] == "127.0.0.1:9000"
    monkeypatch.setattr(warm, "version", lambda name: "1.42.0")
    assert node.command_lines(["--insecure"]) == (["flower-supernode", "--insecure"], None)


def test_a_node_finds_flowers_program_where_its_environment_is_not_active():
    done = subprocess.run(
        [sys.executable, "-m", "kedge", "flower", "node", "--", "--nonsense"], env=os.environ | {"PATH": os.defpath},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "flower-supernode: error: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_node_whose_second_process_cannot_start_ends_the_first(tmp_path, monkeypatch):
    sleeper = tmp_path / "flower-supernode"
    sleeper.write_text("#!/bin/sh\nexec sleep 60\n")
    sleeper.chmod(0o755)
    monkeypatch.setattr(node, "program_path", lambda: f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(node, "command_lines", lambda arguments: (["flower-supernode"], [str(tmp_path / "missing")]))
    started, popen = [], subprocess.Popen

    def start(*arguments, **options):
        started.append(popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(node.subprocess, "Popen", start)
    with pytest.raises(FileNotFoundError):
        node.run_node([])
    assert [process.poll() for process in started] == [-signal.SIGTERM]


FORKED = """
import os, sys
from kedge.flower.warm import end_with
def answer():
    print("said")
    {last}
if os.fork() == 0:
    end_with(answer)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.parametrize(
    ("last", "code", "error"), [("", 0, ""), ("sys.exit(3)", 3, ""), ("raise ValueError('why')", 1, "ValueError: why")]
)
def test_what_a_fork_says_before_it_ends_is_seen(last, code, error):
    program = [sys.executable, "-c", FORKED.format(last=last)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (code, "said\n")
    assert done.stderr.strip().endswith(error)
    assert bool(done.stderr) == bool(error)


def test_a_node_without_flowers_program_is_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(node, "program_path", lambda: str(tmp_path))
    assert execute(["flower", "node", "--", "--insecure"]) == 2
    assert "there is no program flower-supernode, which Flower installs" in capsys.readouterr().err
