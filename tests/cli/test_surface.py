"""What a user can do to the command line by accident: huge numbers, odd names, streams and signals that break."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from kedge.cli.program import execute

QUICK = ["--rounds", "3", "--clients", "10", "--cohort", "3", "--local-steps", "2", "--set", "model.widths=[8]"]
CHEAP = ["--rounds", "3", "--clients", "4", "--cohort", "2", "--local-steps", "2", "--dataset", "quadratics"]
CHEAP += ["--batch-size", "full", "--threads", "1"]
"""Without scikit-learn, which takes a second to load."""
DIGITS = "9" * 5000
HEX = "0x" + "f" * 5000


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def start(*arguments, **options):
    command = [sys.executable, "-m", "kedge", *arguments]
    return subprocess.run(command, capture_output=options.pop("capture", True), timeout=120, **options)


COUNTS = ["data.clients", "data.shards_per_client", "data.test_samples", "run.rounds", "run.cohort", "run.local_steps",
          "run.batch_size", "run.seed", "run.eval_every", "run.workers", "run.threads", "run.shards",
          "run.state_memory", "run.checkpoint_every", "algorithm.opening_batches"]  # fmt: skip
REALS = ["data.alpha", "data.holdout", "algorithm.eta", "algorithm.beta", "algorithm.gamma", "run.weight_decay",
         "run.local_epochs", "run.lost_replies", "model.dropout"]  # fmt: skip


@pytest.mark.parametrize("value", [DIGITS, HEX, "-" + DIGITS, "9" * 400, f'"{DIGITS}"', f'"{"9" * 400}"', "1e400"])
@pytest.mark.parametrize("key", [*COUNTS, *REALS, "model.widths", "algorithm.name"])
def test_a_number_of_thousands_of_digits_is_one_sentence_and_exit_2(key, value, tmp_path, capsys):
    (tmp_path / "c.toml").write_text("[{}]\n{} = {}\n".format(*key.split("."), value))
    for arguments in (["run", "--set", f"{key}={value}"], ["run", "c.toml"], ["sweep", "--grid", f"{key}={value}"]):
        assert execute(arguments) == 2
        refused(capsys)


def refused(capsys):
    said = capsys.readouterr().err
    assert said.startswith("kedge: ")
    assert said.count("\n") == 1
    assert len(said) < 2500
    assert [path.name for path in Path().iterdir() if path.name != "c.toml"] == []


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["data.dataset=quadratics", "data.clients=10000000"], "quadratics of 10000000 clients and dim 20 needs"),
        (["data.dataset=quadratics", "data.dim=1000000"], "quadratics of 40 clients and dim 1000000 needs"),
        (["data.dataset=synthetic", "data.clients=1000000000"], "synthetic of 1000000000 users needs"),
        (["model.widths=[1000000000000]"], "mlp of 74000000000000 parameters needs"),
        ([f"model.widths=[{','.join(['1'] * 2000)}]"], "widths has 2000 entries, but"),
        (["run.local_steps=1000000000"], "local_steps is 1000000000, but must be a whole number from 1 to 1000000"),
        (["run.local_epochs=1e9"], "local_epochs is 1e+09"),
        (["algorithm.opening_batches=1000000000000"], "one client's 1000000000000 minibatches needs"),
        (["run.weight_decay=1e300"], "weight_decay is 1e+300, but must be at most 1e+30"),
        (["algorithm.gamma=1e300"], "gamma of ScaffoldM is 1e+300, but must be at most 1e+30"),
        (["run.device=meta"], "device is 'meta', but it holds no numbers"),
        (["run.shards=1000000000"], "shards is 1000000000, but must be a whole number from 1 to 65536"),
        (["run.workers=100000", "run.shards=65536"], "workers is 100000, but must be a whole number from 1 to 1024"),
        (["run.threads=1000000"], "threads is 1000000, but must be a whole number from 1 to 1024"),
        (["run.checkpoint_every=" + "9" * 50 + "s"], "checkpoint_every is "),
        (["run.rounds=" + "[" * 2000], "run.rounds is "),
        (["run.rounds=" + "[" * 200 + "]" * 200], "run.rounds is "),
        (["data.data_dir='a\udcff'"], "must be UTF-8"),
        (["algorithm.name='a\0b.py:C'"], "'a\\x00b.py:C"),
    ],
)
def test_what_cannot_fit_is_refused_before_it_is_tried(settings, sentence, capsys):
    began = time.process_time()
    assert execute(["run", *(part for text in settings for part in ("--set", text))]) == 2
    assert sentence in capsys.readouterr().err
    assert time.process_time() - began < 5
    assert not [path for path in Path().rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["compare", "--seeds", "1000000000"], "seeds is 1000000000, but must be a whole number from 1 to 1000"),
        (["sweep", "--grid", "algorithm.eta=1", "--seeds", "1000000000"], "seeds is 1000000000, but"),
        (["sweep", *(part for name in ("eta", "beta", "gamma", "a", "b", "c") for part in
                     ("--grid", f"algorithm.{name}={','.join(map(str, range(1, 11)))}"))],
         "--grid has 1e+06 points, but at most 100000 can be tried"),
        (["sweep", "--grid", "algorithm.eta=1,2", "--seeds", "90000"], "the sweep has 180000 runs, but"),
        (["run", "--rounds", DIGITS], "Invalid value for '--rounds'"),
        (["run", "nested.toml"], "the configuration nested.toml is not TOML: it is nested too deeply"),
        (["run", "keys.toml"], "keys.toml"),
    ],
)  # fmt: skip
def test_a_command_that_asks_for_too_much_is_refused(arguments, sentence, tmp_path, capsys):
    (tmp_path / "nested.toml").write_text(f"a = {'[' * 5000}")
    (tmp_path / "keys.toml").write_text(f"{'a.' * 5000}a = 1")
    assert execute(arguments) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    assert len(said) < 2500


def test_a_name_is_not_taken_for_markup(tmp_path, capsys):
    for name in ("x[/y]", "[bold]x", ":smile:"):
        assert execute(["run", *QUICK, "--out", name]) == 0
        assert f"Written to {name};" in capsys.readouterr().out
        assert execute(["resume", name]) == 0
        assert f"The run in {name} is finished" in capsys.readouterr().out
        assert execute(["run", "--out", name]) == 2
        assert f"out is {name}, but" in capsys.readouterr().err
    diverging = ["compare", *QUICK, "--algorithms", "fedavg", "--seeds", "1", "--jobs", "1", "--out", "[/c]"]
    assert execute(diverging) == 0
    assert "Written to [/c]:" in capsys.readouterr().out


def test_a_sentence_has_one_line_and_no_commands_for_the_terminal(capsys):
    assert execute(["resume", "a\nb\x1b[2Jc"]) == 2
    assert capsys.readouterr().err == "kedge: a b\\x1b[2Jc does not exist\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_under_the_standard_output_is_said_and_loses_no_run(tmp_path):
    with Path("/dev/full").open("wb") as full:
        done = start("run", *CHEAP, "--out", "run", stdout=full, stderr=subprocess.PIPE, capture=False)
    assert done.returncode == 1
    assert done.stderr.decode() == "kedge: standard output cannot be written: No space left on device\n"
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["round"] == 3


@pytest.mark.skipif(os.name != "posix", reason="pipes break differently")
def test_a_reader_that_leaves_early_ends_no_run_and_gets_no_traceback(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    for arguments in (["run", *CHEAP, "--out", "run"], ["--help"]):
        done = start(*arguments, stdout=writer, stderr=subprocess.PIPE, capture=False)
        assert (done.returncode, done.stderr) == (0, b"")
    os.close(writer)
    assert (tmp_path / "run" / "summary.json").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are not bytes everywhere")
def test_names_that_are_not_utf8_are_taken_and_printed_as_they_are(tmp_path):
    name = b"a\xffb"
    done = start("run", *CHEAP, "--out", name)
    assert done.returncode == 0, done.stderr
    assert b"Written to a\xffb;" in done.stdout
    assert (tmp_path / os.fsdecode(name) / "summary.json").exists()
    done = start("resume", b"c\xff")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"kedge: c\xff does not exist")


NAMELESS = ["setpriv", "--reuid=54321", "--clear-groups", "--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
"""Run as a user that the system does not know, who may read the interpreter wherever it is."""


@pytest.mark.skipif(
    shutil.which("setpriv") is None or subprocess.run([*NAMELESS, "true"], capture_output=True).returncode != 0,
    reason="only root can become a user without a name",
)
def test_a_user_without_a_home_or_a_name_runs_what_needs_no_files():
    with tempfile.TemporaryDirectory() as name:  # where others may go, unlike pytest's own
        Path(name).chmod(0o777)
        _as_nobody(Path(name))


def _as_nobody(place):
    environment = {key: value for key, value in os.environ.items() if key not in ("HOME", "USER", "LOGNAME")}

    def homeless(*arguments):
        command = [*NAMELESS, sys.executable, "-m", "kedge", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, cwd=place)

    done = homeless("run", *CHEAP, "--out", "run")
    assert (done.returncode, done.stderr) == (0, "")
    done = homeless("run", "--dataset", "mnist", "--out", "other")
    assert done.returncode == 2
    assert done.stderr.startswith("kedge: there is no home directory to look for data in; set --data-dir or KEDGE_DATA")
    assert not (place / "~").exists()


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="there is no SIGHUP")
@pytest.mark.parametrize("ignored", [False, True])
def test_a_closed_terminal_stops_a_run_after_its_round_unless_told_to_ignore_it(tmp_path, ignored):
    program = f"import signal; signal.signal(1, signal.{'SIG_IGN' if ignored else 'SIG_DFL'}); "
    command = [sys.executable, "-c", program + "from kedge.cli import main; main()", "run", *CHEAP[2:]]
    command += ["--rounds", "1000000", "--eval-every", "1", "--out", "run"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        file, deadline = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 100
        while time.monotonic() < deadline and not (file.exists() and file.stat().st_size > 500):
            time.sleep(0.02)
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGHUP)
        if ignored:
            time.sleep(0.5)
            assert process.poll() is None
            process.kill()
            return
        _, error = process.communicate(timeout=60)
    assert process.returncode == 129
    assert "interrupted after round" in error
    rounds = len(file.read_text().splitlines())
    assert (tmp_path / "run" / "checkpoint" / f"round-{rounds:08d}.json").exists()


LONG = "x" * 5000


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", LONG],
        ["watch", LONG],
        ["export", LONG],
        ["reproduce", "all", "--scale", "smoke", "--out", LONG],
        ["run", "--dataset", "mnist", "--data-dir", LONG, "--out", "run"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_path_that_cannot_be_entered_is_one_sentence(arguments, tmp_path, capsys):
    assert execute(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("kedge: x")
    assert error.endswith("cannot be used: File name too long\n")
    assert not list(tmp_path.iterdir())


def test_so_is_a_folder_that_belongs_to_somebody_else(monkeypatch, capsys):
    is_dir = Path.is_dir

    def asked(path):
        if path.name == "theirs":
            raise PermissionError(13, "Permission denied", str(path))
        return is_dir(path)

    monkeypatch.setattr(Path, "is_dir", asked)
    assert execute(["report", "theirs"]) == 2
    assert capsys.readouterr().err == "kedge: theirs cannot be used: Permission denied\n"
