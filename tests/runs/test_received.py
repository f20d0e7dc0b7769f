"""A directory that was received from somebody: it is data, and harms nothing."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save

import kedge
from kedge.cli.program import execute
from kedge.errors import RunWarning
from kedge.files import locked
from kedge.runs.live import StopWhen
from tests.faults import Left
from tests.runs.test_resume import after, play

QUICK = [
    "--dataset", "quadratics", "--clients", "4", "--batch-size", "full", "--set", "run.cohort=2",
    "--set", "run.local_steps=1",
]  # fmt: skip
MINE = (
    "from pathlib import Path\nfrom kedge import FedAvg\nPath('executed').touch()\nclass Mine(FedAvg):\n    'Mine.'\n"
)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(out, *options):
    return execute(["run", *QUICK, "--rounds", "2", "--eta", "0.01", "--out", out, *options])


def compare(out, *options):
    return execute(["compare", *QUICK, "--algorithms", "fedavg", "--seeds", "1", "--rounds", "2", "--jobs", "1",
                    "--out", out, *options])  # fmt: skip


def swept(out, *options):
    return ["sweep", *QUICK, "--metric", "test_loss", "--seeds", "1", "--rounds", "2", "--jobs", "1",
            "--out", out, *options]  # fmt: skip


def sweep(out, *options):
    return execute(swept(out, *options))


# Code


def poisoned(file, name):
    file.write_text(file.read_text().replace('name = "fedavg"', f'name = "{name}"'))


@pytest.mark.parametrize("kind", ["run", "compare", "sweep"])
def test_what_a_directory_names_does_not_run(tmp_path, capsys, kind):
    (tmp_path / "mine.py").write_text(MINE)
    place = f"{tmp_path}/mine.py:Mine"
    if kind == "run":
        assert run("d", "--algorithm", "fedavg") == 0
        (tmp_path / "d" / "summary.json").unlink()
        poisoned(tmp_path / "d" / "config.toml", place)
        again = [["resume", "d"], ["resume", "d", "--rounds", "3"], ["run", "d/config.toml", "--out", "new"]]
    elif kind == "compare":
        assert compare("d") == 0
        poisoned(tmp_path / "d" / "runs" / "fedavg-0" / "config.toml", place)
        again = [["compare", *QUICK, "--algorithms", "fedavg", "--seeds", "1", "--rounds", "2", "--out", "d"]]
    else:
        assert sweep("d", "--algorithm", "fedavg", "--grid", "algorithm.eta=0.01") == 0
        poisoned(tmp_path / "d" / "runs" / "eta0.01-seed0" / "config.toml", place)
        again = [swept("d", "--algorithm", "fedavg", "--grid", "algorithm.eta=0.01")]
    capsys.readouterr()
    for command in again:
        assert execute(command) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert place in error
    assert not (tmp_path / "executed").exists()
    assert not (tmp_path / "new").exists()


def test_what_a_sweep_names_does_not_run(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(MINE)
    for number, (grid, there, forged, refusal) in enumerate((
        ("algorithm.eta=0.01", 'name = "fedavg"', f'name = "{tmp_path}/mine.py:Mine"', "algorithm.name is "),
        ("algorithm.name=fedavg", "name=fedavg", f"name=fedavg,{tmp_path}/mine.py:Mine", "runs only if you trust it"),
    )):  # fmt: skip
        named = ["--algorithm", "fedavg"] if "eta" in grid else []
        assert sweep(f"s{number}", *named, "--grid", grid) == 0
        file = tmp_path / f"s{number}" / "sweep.toml"
        assert there in file.read_text()
        file.write_text(file.read_text().replace(there, forged))
        capsys.readouterr()
        assert sweep(f"s{number}", *named, "--grid", grid) == 2
        assert refusal in capsys.readouterr().err
        assert not (tmp_path / "executed").exists()


def test_what_the_command_line_names_runs_and_its_configuration_only_with_trust(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(MINE)
    assert run("one", "--algorithm", "mine.py:Mine") == 0
    text = (tmp_path / "one" / "config.toml").read_text()
    assert f'sha256 = "{hashlib.sha256(MINE.encode()).hexdigest()}"' in text
    assert execute(["run", "one/config.toml", "--out", "two"]) == 2
    assert "names" in capsys.readouterr().err
    assert execute(["run", "one/config.toml", "--out", "two", "--trust"]) == 0
    assert execute(["run", "one/config.toml", "--out", "three", "--algorithm", "mine.py:Mine"]) == 0
    assert execute(["run", "one/config.toml", "--out", "four", "--algorithm", "fedavg"]) == 0
    assert execute(["resume", "one", "--rounds", "3"]) == 2
    assert execute(["resume", "one", "--rounds", "3", "--trust"]) == 0


def test_every_command_runs_the_model_that_its_command_line_names(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(
        "import pathlib, torch\npathlib.Path('executed').touch()\ndef net(): return torch.nn.Linear(64, 10)\n"
    )
    (tmp_path / "c.toml").write_text('[data]\ndataset = "digits"\n[model]\nname = "mine.py:net"\n')
    few = ["--clients", "4", "--cohort", "2", "--rounds", "2", "--local-steps", "1"]
    assert execute(["diagnose", "c.toml", *few, "--no-trial"]) == 2
    assert "runs only if you trust it" in capsys.readouterr().err
    assert not (tmp_path / "executed").exists()
    for named in (["--model", "mine.py:net"], ["c.toml", "--trust"]):
        assert execute(["diagnose", *few, "--no-trial", *named]) == 0
        (tmp_path / "executed").unlink(missing_ok=True)
    for command in (["new", "app"], ["demo"]):
        assert execute(["flower", *command, "--model", "mine.py:net"]) == 2
        assert "an app is written for built-in data, models and algorithms" in capsys.readouterr().err
    assert not (tmp_path / "executed").exists()


def test_a_file_that_has_changed_is_not_taken_for_the_one_that_ran(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(MINE)
    assert run("one", "--algorithm", "mine.py:Mine") == 0
    assert compare("c", "--algorithms", "mine.py:Mine") == 0
    (tmp_path / "mine.py").write_text(MINE + "# another\n")
    capsys.readouterr()
    for command in (["resume", "one", "--trust", "--rounds", "3"], ["run", "one/config.toml", "--trust"]):
        assert execute(command) == 2
        assert "mine.py has changed since the configuration was written" in capsys.readouterr().err
    assert compare("c", "--algorithms", "mine.py:Mine") == 2
    assert "mine.py has changed since" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["notes.txt", "model.safetensors", "folder.py", "pipe.py"])
def test_only_regular_files_of_python_run(tmp_path, capsys, name):
    if name == "folder.py":
        (tmp_path / name).mkdir()
    elif name == "pipe.py":
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).write_text(MINE)
    assert run("out", "--algorithm", f"{name}:Mine") == 2
    assert name in capsys.readouterr().err
    assert not (tmp_path / "executed").exists()


def test_processes_inherit_the_consent(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    options = ["--algorithms", "fedavg,mine.py:Mine", "--seeds", "1", "--rounds", "2", "--jobs", "2", "--out", "c"]
    assert execute(["compare", *QUICK, *options]) == 0
    assert kedge.read_run("c/runs/Mine-0").finished


# Links


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.toml.part", "config.toml",
                                  "summary.json", "summary.json.part", "model.safetensors", "model.safetensors.part",
                                  "checkpoint", "checkpoint/round-00000003.json.part"])  # fmt: skip
def test_a_link_in_a_directory_is_refused_and_its_target_stays(tmp_path, capsys, name):
    assert run("d") == 0
    precious = tmp_path / "precious"
    if name == "checkpoint":
        shutil.move(tmp_path / "d" / name, precious)
    else:
        precious.write_text("mine\n")
    (tmp_path / "d" / name).unlink(missing_ok=True)
    (tmp_path / "d" / name).symlink_to(precious)
    before = sorted(precious.iterdir()) if precious.is_dir() else precious.read_bytes()
    kedge.read_run("d")
    capsys.readouterr()
    assert execute(["resume", "d", "--rounds", "3"]) == 2
    sentence = f"d/{name} is a symbolic link, and kedge follows no links inside a run directory"
    assert capsys.readouterr().err == f"kedge: {sentence}\n"
    assert before == (sorted(precious.iterdir()) if precious.is_dir() else precious.read_bytes())


@pytest.mark.parametrize("name", ["runs", "runs/fedavg-0", "summary.csv", "summary.csv.part", "curves.png.part"])
def test_a_link_in_a_comparison_is_refused(tmp_path, capsys, name):
    assert compare("c") == 0
    target = tmp_path / "elsewhere"
    if (tmp_path / "c" / name).is_dir():
        shutil.move(tmp_path / "c" / name, target)
    else:
        target.write_text("mine")
        (tmp_path / "c" / name).unlink(missing_ok=True)
    (tmp_path / "c" / name).symlink_to(target)
    before = {file: file.read_bytes() for file in [target, *target.rglob("*")] if file.is_file()}
    capsys.readouterr()
    assert compare("c") == 2
    assert capsys.readouterr().err.endswith("follows no links inside a run directory\n") or name.endswith(".part")
    assert {file: file.read_bytes() for file in before} == before


def test_the_directory_itself_may_be_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    assert run("link") == 0
    assert execute(["resume", "link", "--rounds", "3"]) == 0
    assert kedge.read_run("disk").summary["round"] == 3


# Directories that several mean


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "kedge", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def test_of_two_runs_that_mean_one_directory_one_is_refused_and_without_out_all_have_their_own(tmp_path):
    started = [start("run", *QUICK, "--rounds", "2", "--out", "same", "--seed", str(seed)) for seed in range(2)]
    started += [start("run", *QUICK, "--rounds", "2") for _ in range(2)]
    said = [process.communicate(timeout=240)[1] for process in started]
    codes = [process.returncode for process in started]
    assert sorted(codes[:2]) == [0, 2], said
    assert codes[2:] == [0, 0], said
    assert len(kedge.read_run("same").rows) == 2
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [
        "quadratics-scaffold-m-1", "quadratics-scaffold-m-2",
    ]  # fmt: skip


def test_a_directory_is_taken_before_the_data_is_loaded(tmp_path, capsys, monkeypatch):
    def load(*_):
        assert execute(["run", *QUICK, "--out", "same"]) == 2
        raise kedge.UsageError("no data")

    monkeypatch.setattr("kedge.cli.run.problem_of", load)
    assert run("same") == 2
    assert capsys.readouterr().err == "kedge: same is in use: another process is writing to it\nkedge: no data\n"
    assert not (tmp_path / "same").exists()


def test_a_refused_sweep_or_comparison_changes_nothing_of_the_one_that_runs(tmp_path, capsys):
    assert sweep("s", "--grid", "algorithm.eta=0.01") == 0
    assert compare("c") == 0
    files = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    with locked(tmp_path / "s"), locked(tmp_path / "c"):
        capsys.readouterr()
        assert sweep("s", "--grid", "algorithm.eta=0.01,0.02") == 2
        assert compare("c") == 2
        assert capsys.readouterr().err.count("is in use: another process is writing to it\n") == 2
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == files


# Checkpoints


def forge(path, **changes):
    """Change a manifest and give it a checksum that is right."""
    content = json.loads(path.read_text()) | changes
    content.pop("sha256")
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(content | {"sha256": digest}))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    path = tmp_path_factory.mktemp("stopped")
    play(path / "whole")
    play(path / "run", callbacks=[StopWhen(after(4))])
    return path


def resumed(stopped, folder, spoil):
    path = shutil.copytree(stopped / "run", folder / "run")
    spoil(path / "checkpoint")
    with pytest.warns(RunWarning, match="is damaged"):
        play(path, resume=True)
    assert Left.by(path) == Left.by(stopped / "whole")


LAST = "round-00000004.json"
ESCAPES = ["../../precious", "/etc/passwd", "rows-00000004-0000.safetensors/../../x", "", "notes.txt"]


@pytest.mark.parametrize("changes", [
    {"round": -1}, {"round": 3}, {"round": "4"}, {"round": None}, {"seconds": float("nan")}, {"seconds": "x"},
    {"records": -1}, {"records": 2.5}, {"fingerprint": []}, {"written_with": 3}, {"whole": -1}, {"files": []},
    {"files": {}}, {"files": [3]}, {"extra": 1}, {"format": 0}, {"format": "2"}, {"format": True}, {"round": 10**9},
    *({"files": [{"name": name, "bytes": 1, "sha256": "0" * 64, "rows": 0}]} for name in ESCAPES),
])  # fmt: skip
def test_a_forged_manifest_is_damaged(stopped, tmp_path, changes):
    resumed(stopped, tmp_path, lambda path: forge(path / LAST, **changes))


def rewrite(path, name, change):
    """Change the tensors of a file, with checksums that are right."""
    content = save(change(load_file(path / name)))
    (path / name).write_bytes(content)
    files = json.loads((path / LAST).read_text())["files"]
    about = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    forge(path / LAST, files=[file | about if file["name"] == name else file for file in files])


@pytest.mark.parametrize("change", [
    lambda state: {}, lambda state: state | {"server.x": torch.zeros(3)}, lambda state: state | {"more": torch.ones(1)},
    lambda state: state | {"round": torch.tensor(10**9)}, lambda state: state | {"round": torch.tensor([4])},
    lambda state: state | {"bytes_down": torch.tensor(-1)}, lambda state: state | {"bytes_up": torch.tensor(2**62)},
    lambda state: state | {"gradients": torch.tensor(float("nan"), dtype=torch.float64)},
])  # fmt: skip
def test_a_forged_state_is_damaged(stopped, tmp_path, change):
    resumed(stopped, tmp_path, lambda path: rewrite(path, "round-00000004.safetensors", change))


@pytest.mark.parametrize("change", [
    lambda rows: {},
    lambda rows: rows | {"clients": rows["clients"] + 99},
    lambda rows: rows | {"clients": -rows["clients"] - 1},
    lambda rows: rows | {"client.c_i": rows["client.c_i"][:1]},
    lambda rows: rows | {"client.c_i": rows["client.c_i"].float()},
])  # fmt: skip
def test_forged_rows_are_damaged(stopped, tmp_path, change):
    resumed(stopped, tmp_path, lambda path: rewrite(path, "rows-00000004-0000.safetensors", change))


def test_what_is_no_tensors_is_damaged(stopped, tmp_path):
    def spoil(path):
        name = "round-00000004.safetensors"
        (path / name).write_bytes(b"not tensors")
        files = json.loads((path / LAST).read_text())["files"]
        about = {"bytes": 11, "sha256": hashlib.sha256(b"not tensors").hexdigest()}
        forge(path / LAST, files=[file | about if file["name"] == name else file for file in files])

    resumed(stopped, tmp_path, spoil)


def test_a_thousand_million_rounds_are_gone_back_to_at_once(stopped, tmp_path):
    path = shutil.copytree(stopped / "run", tmp_path / "run")
    rewrite(path / "checkpoint", "round-00000004.safetensors", lambda state: state | {"round": torch.tensor(10**9)})
    shutil.move(path / "checkpoint" / LAST, path / "checkpoint" / "round-1000000000.json")
    forge(path / "checkpoint" / "round-1000000000.json", round=10**9)
    began = time.monotonic()
    with pytest.raises(kedge.UsageError, match="has already played 1000000000"):
        play(path, resume=True)
    result = play(path, rounds=10**9 + 1, resume=True)
    assert time.monotonic() - began < 20
    assert len(result.cohorts) == 10**9 + 1
    assert len(result.cohorts[123_456_789]) == 3
    assert result.cohorts[:4] == play(None, rounds=4).cohorts


@settings(max_examples=40)
@given(st.binary(max_size=60) | st.sampled_from([b"[" * 100_000, b"null", b"{}", b"\xff\xfe", b"9" * 5000]))
def test_any_bytes_for_a_manifest_are_damaged(stopped, content):
    with TemporaryDirectory() as folder:
        resumed(stopped, Path(folder), lambda path: (path / LAST).write_bytes(content))


# What is missing


def test_a_missing_model_of_a_finished_run_is_written_again(tmp_path, capsys):
    assert run("d") == 0
    model = tmp_path / "d" / "model.safetensors"
    before = model.read_bytes()
    model.unlink()
    assert kedge.read_run("d").problems == ("d/model.safetensors is missing",)
    capsys.readouterr()
    assert execute(["resume", "d"]) == 0
    assert "d/model.safetensors is missing; it is rewritten" in capsys.readouterr().err
    assert model.read_bytes() == before
    assert compare("c") == 0
    model = tmp_path / "c" / "runs" / "fedavg-0" / "model.safetensors"
    model.unlink()
    assert compare("c") == 0
    assert model.exists()


# What a run is of


def test_a_configuration_that_was_edited_before_the_first_checkpoint_is_noticed(tmp_path, capsys):
    code = "from kedge.cli import main; import kedge.runs.simulate as s, os; s.Recording.add = lambda *_: os._exit(9)"
    command = [sys.executable, "-c", f"{code}; main()", "run", *QUICK, "--eta", "0.01", "--out", "d"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 9
    file = tmp_path / "d" / "config.toml"
    file.write_text(file.read_text().replace("eta = 0.01", "eta = 0.02"))
    assert execute(["resume", "d"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("kedge: d/fingerprint.json has a different configuration: algorithm is 'ScaffoldM(eta=0.01")
    file.write_text(file.read_text().replace("eta = 0.02", "eta = 0.01"))
    assert execute(["resume", "d"]) == 0


@pytest.mark.parametrize("key", ["features", "labels", "test features", "test labels"])
def test_finished_runs_of_other_data_are_not_mixed_with_these(tmp_path, capsys, key):
    options = ["--clients", "10", "--rounds", "1", "--local-steps", "1", "--seeds", "2", "--jobs", "1", "--out", "c"]
    command = ["compare", *options, "--set", "model.widths=[2]", "--algorithms"]
    assert execute([*command, "fedavg"]) == 0
    file = tmp_path / "c" / "runs" / "fedavg-1" / "fingerprint.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: "0123456789abcdef"}))  # as of other files
    capsys.readouterr()
    assert execute([*command, "fedavg,scaffold-m"]) == 2
    error = capsys.readouterr().err
    assert f"fedavg-1/fingerprint.json has a different configuration: {key} is '0123456789abcdef' there, but " in error
    assert not (tmp_path / "c" / "runs" / "scaffold-m-0").exists()


def test_runs_of_an_older_version_say_less_and_go_on(tmp_path, capsys):
    assert compare("c") == 0
    (tmp_path / "c" / "runs" / "fedavg-0" / "fingerprint.json").unlink()
    assert compare("c") == 0
    assert "1 finished runs have no fingerprint.json" in capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="there are no terminals of this kind")
@pytest.mark.parametrize(("answer", "code"), [(b"y\n", 0), (b"n\n", 2)])
def test_on_a_terminal_the_user_is_asked(tmp_path, answer, code):
    (tmp_path / "mine.py").write_text(MINE)
    assert run("d", "--algorithm", "mine.py:Mine") == 0
    (tmp_path / "executed").unlink()
    ours, theirs = os.openpty()
    with subprocess.Popen([sys.executable, "-m", "kedge", "resume", "d"], stdin=theirs, stderr=theirs) as process:
        os.write(ours, answer)
        assert process.wait(120) == code
    asked = os.read(ours, 10_000).decode()
    os.close(ours)
    os.close(theirs)
    assert "a file that will run with your rights. Run it? [y/N]" in " ".join(asked.split())
    assert (tmp_path / "executed").exists() == (code == 0)
