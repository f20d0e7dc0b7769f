"""`kedge resume`, and how a run is stopped."""

import os
import signal
import tomllib

import pytest

from kedge.cli.program import execute
from kedge.files import PART
from kedge.runs import simulate
from tests.faults import Left

QUICK = [
    "--dataset", "quadratics", "--clients", "6", "--cohort", "3", "--local-steps", "2", "--batch-size", "full",
    "--eta", "0.01", "--eval-every", "1", "--checkpoint-every", "2",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def send(monkeypatch):
    """Send this process signals in the middle of a round."""
    advance = simulate.Simulation.advance

    def at(round, *numbers):
        def play(run, **options):
            if run.round == round:
                for number in numbers:
                    os.kill(os.getpid(), number)
            advance(run, **options)

        monkeypatch.setattr(simulate.Simulation, "advance", play)

    return at


def run(out, rounds=6):
    return execute(["run", *QUICK, "--rounds", str(rounds), "--out", out])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_round_and_leaves_a_checkpoint(tmp_path, capfd, send, number, code):
    assert run("whole") == 0
    send(2, number)
    assert run("run") == code
    assert "kedge: interrupted after round 3; continue with `kedge resume run`\n" in capfd.readouterr().err
    assert (tmp_path / "run" / "checkpoint" / "round-00000003.json").exists()
    send(100)
    assert execute(["resume", "run"]) == 0
    assert "scaffold-m after 6 rounds" in capfd.readouterr().out
    assert Left.by(tmp_path / "run") == Left.by(tmp_path / "whole")


def test_a_second_ctrl_c_stops_at_once_and_the_run_can_be_resumed(tmp_path, capfd, send):
    assert run("whole") == 0
    send(2, signal.SIGINT, signal.SIGINT)
    assert run("run") == 130
    assert "interrupted" in capfd.readouterr().err
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2
    send(100)
    assert execute(["resume", "run"]) == 0
    assert Left.by(tmp_path / "run") == Left.by(tmp_path / "whole")


def test_a_signal_in_the_last_round_changes_nothing(send):
    send(5, signal.SIGTERM)
    assert run("run") == 0


def test_handlers_are_put_back(send):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    send(1, signal.SIGTERM)
    run("run")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_an_unfinished_run_is_offered_to_be_resumed(capsys, send):
    send(1, signal.SIGTERM)
    run("run")
    capsys.readouterr()
    assert run("run") == 2
    sentence = "out is run, but that directory holds an unfinished run; continue it with `kedge resume run`"
    assert capsys.readouterr().err == f"kedge: {sentence}\n"


def test_a_finished_run_says_so_and_can_be_extended(tmp_path, capsys):
    assert run("whole") == 0
    assert run("run", rounds=4) == 0
    line = capsys.readouterr().out.splitlines()[-2]
    assert execute(["resume", "run"]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[0] == line
    assert "The run in run is finished; `kedge resume run --rounds N` extends it." in printed
    assert execute(["resume", "run", "--rounds", "6", "--threads", "2"]) == 0
    assert Left.by(tmp_path / "run") == Left.by(tmp_path / "whole")
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert config == tomllib.loads((tmp_path / "whole" / "config.toml").read_text())
    for _ in range(2):
        assert execute(["resume", "run", "--rounds", "3"]) == 2
        assert "rounds is 3, but the run in run has already played 6" in capsys.readouterr().err
        (tmp_path / "run" / "summary.json").unlink(missing_ok=True)  # then it counts as unfinished


def test_a_diverged_run_says_so(capsys):
    assert execute(["run", *QUICK, "--eta", "1e30", "--local-steps", "12", "--out", "run"]) == 1
    capsys.readouterr()
    assert execute(["resume", "run"]) == 1
    assert capsys.readouterr().err == "kedge: scaffold-m in run diverged in round 1\n"


def test_a_damaged_checkpoint_is_a_sentence_and_the_one_before_is_taken(tmp_path, capsys):
    assert run("run") == 0
    (tmp_path / "run" / "summary.json").unlink()
    (tmp_path / "run" / "checkpoint" / "round-00000006.safetensors").write_bytes(b"")
    assert execute(["resume", "run"]) == 0
    error = capsys.readouterr().err
    assert error.startswith("kedge: run/checkpoint/round-00000006.safetensors is damaged (it has 0 bytes instead of ")
    assert error.endswith("): the run resumes from round 4\n")


def test_a_changed_configuration_is_refused(tmp_path, capsys):
    assert run("run") == 0
    (tmp_path / "run" / "summary.json").unlink()
    file = tmp_path / "run" / "config.toml"
    file.write_text(file.read_text().replace("seed = 0", "seed = 1"))
    assert execute(["resume", "run"]) == 2
    assert "has a different configuration: seed is 0 there, but 1 here" in capsys.readouterr().err


def test_a_write_that_fails_is_one_sentence_and_exit_1(capsys, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kedge.files.os.fsync", full)
    assert run("run") == 1
    assert capsys.readouterr().err == "kedge: run/fingerprint.json cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["resume"], "Missing argument"),
        (["resume", "nowhere"], "nowhere does not exist"),
        (["resume", "empty"], "empty has no config.toml, so it is not a directory of `kedge run`"),
        (["resume", "empty.toml"], "empty.toml is a file, but must be a run's directory"),
        (["export-model", "nowhere"], "nowhere does not exist"),
        (["export-model", "empty.toml"], "empty.toml is a file, but must be a run's directory"),
        (["resume", "many"], "repeat the `kedge compare` command with --out many to resume"),
        (["resume", "grid"], "repeat the `kedge sweep` command with --out grid to resume"),
        (["run", "first"], "the configuration first is a directory; did you mean first/config.toml?"),
        (["compare", "many"], "the configuration many is a directory; did you mean many/compare.toml?"),
        (["run", "empty"], "the configuration empty is a directory; it must be a file"),
        (["run", "--checkpoint-every", "often"], "checkpoint_every is 'often', but must be a number of rounds"),
        (["run", "--checkpoint-every", "-1"], "checkpoint_every is '-1', but must be a number of rounds"),
    ],
)
def test_a_wrong_input_is_one_sentence_and_exit_2(tmp_path, capsys, arguments, sentence):
    (tmp_path / "empty").mkdir()
    for file in ("empty.toml", "first/config.toml", "many/compare.toml", "grid/sweep.toml"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    assert execute(arguments) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("content", ["{", "{}", "[]"])
def test_a_summary_that_cannot_be_read_is_named(tmp_path, capsys, content):
    assert run("run") == 0
    (tmp_path / "run" / "summary.json").write_text(content)
    assert execute(["resume", "run"]) == 2
    assert "summary.json cannot be read" in capsys.readouterr().err


def test_a_directory_in_which_only_the_configuration_was_begun_counts_as_empty(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / f"config.toml{PART}").write_text("[da")
    assert run("run") == 0
