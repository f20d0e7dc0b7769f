"""Your own data, models, losses and metrics in a configuration; runs made in Python, as the command line sees them."""

import csv
import io
import json
import zipfile

import numpy as np
import pytest
import torch

import kedge
from kedge.cli.program import execute
from kedge.own_code import PLACES, CodePlace, consent_ends
from kedge.runs.config import check
from kedge.runs.own import places

SOURCE = """
import numpy as np
import kedge
from torch import nn

def load(clients=6, seed=0, shift=0.0):
    rng = np.random.default_rng(seed)
    parts = [(rng.normal(shift, size=(20, 5)).astype("float32"), rng.integers(0, 3, 20)) for _ in range(clients)]
    return kedge.Federation(parts, test=parts[0])

def make_model(input_shape, classes, hidden=4):
    return nn.Sequential(nn.Linear(*input_shape, hidden), nn.Tanh(), nn.Linear(hidden, classes))

def loss(output, y):
    return nn.functional.cross_entropy(output, y, label_smoothing=0.1)

def right(outputs, targets):
    return float((outputs.argmax(1) == targets).double().mean())

def wrong_share(outputs, targets):
    return 1 - right(outputs, targets)

number = 3
def wrong(): return 3
def broken(): raise RuntimeError("no data today")
def needy(secret): return secret
"""

SHORT = ["--rounds", "4", "--cohort", "2", "--local-steps", "2", "--batch-size", "4", "--eval-every", "2"]


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").write_text(SOURCE)
    with consent_ends():
        yield tmp_path / "my.py"


def rows(path):
    lines = (path / "metrics.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name != "seconds"} for line in lines]


def test_own_data_model_loss_and_metric_run_and_repeat_from_the_command_line(file, tmp_path, capsys):
    mine = [
        "--dataset",
        "my.py:load",
        "--model",
        "my.py:make_model",
        "--loss",
        "my.py:loss",
        "--metrics",
        "my.py:right",
    ]
    more = ["--set", "model.hidden=7", "--set", "data.shift=0.5", "--clients", "5"]
    assert execute(["run", *mine, *more, *SHORT, "--out", "one"]) == 0
    assert "test right" in capsys.readouterr().out
    found = rows(tmp_path / "one")
    assert all(row["test_right"] == pytest.approx(row["test_accuracy"]) for row in found)
    config = kedge.read_run(tmp_path / "one").config
    assert config["data"] == {"dataset": f"{file}:load", "clients": 5, "shift": 0.5, "sha256": config["data"]["sha256"]}
    assert config["model"]["hidden"] == 7
    assert execute(["run", "one/config.toml", "--out", "two"]) == 2
    assert "runs only if you trust it" in capsys.readouterr().err
    assert execute(["run", "one/config.toml", "--trust", "--out", "two"]) == 0
    assert rows(tmp_path / "two") == found
    file.write_text(SOURCE + "\n# changed\n")
    assert execute(["run", "one/config.toml", "--trust", "--out", "three"]) == 2
    assert "has changed since the configuration was written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "name", "key"), [("--loss", "loss", "model.loss_sha256"), ("--metrics", "right", "run.metrics_sha256")]
)
def test_an_edited_loss_or_metric_is_noticed_by_run_resume_and_reuse(file, tmp_path, capsys, option, name, key):
    mine = [option, f"my.py:{name}", *SHORT]
    compare = ["compare", "--algorithms", "fedavg", "--seeds", "1", "--jobs", "1", "--out", "both", *mine]
    sweep = ["sweep", "--grid", "algorithm.eta=0.1", "--seeds", "1", "--jobs", "1", "--out", "grid", *mine]
    for command in (["run", *mine, "--out", "one"], compare, sweep):
        assert execute(command) == 0
    section, _, of = key.partition(".")
    assert kedge.read_run(tmp_path / "one").config[section][of] == CodePlace(file, name).sha256()
    capsys.readouterr()
    file.write_text(SOURCE + "\n# changed\n")
    for command in (["resume", "one", "--rounds", "6"], ["run", "one/config.toml", "--out", "two"]):
        assert execute([*command, "--trust"]) == 2
        assert "my.py has changed since the configuration was written: its SHA-256 is" in capsys.readouterr().err
    for command in (compare, sweep):
        assert execute(command) == 2
        error = capsys.readouterr().err
        assert "has changed since" in error
        assert error.count("\n") == 1
    assert execute(["run", "one/config.toml", "--trust", *mine, "--out", "two"]) == 0  # named again, so meant


@pytest.mark.parametrize("ending", [".npz", ",x.npz"])
@pytest.mark.parametrize("key", PLACES)
def test_code_that_looks_like_an_archive_does_not_run_without_consent(file, tmp_path, capsys, key, ending):
    section, _, name = key.partition(".")
    file.write_text("open('executed', 'w').close()")
    (tmp_path / "c.toml").write_text(f'[{section}]\n{name} = "my.py:load{ending}"\n')
    for command in ("run", "compare", "sweep"):
        assert execute([command, "c.toml", "--out", "new", *["--grid", "algorithm.eta=1"] * (command == "sweep")]) == 2
        assert "names my.py:load" in capsys.readouterr().err
    for command in ("diagnose", "partition"):
        assert execute([command, "c.toml"]) == 2
        assert "names my.py:load" in capsys.readouterr().err
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("path", ["a:b/c.npz", "a,b/c:d.npz", "a:b,c.npz"])
def test_the_path_of_an_archive_may_have_colons_and_commas(path):
    assert places(path) == []


@pytest.fixture
def at_home(tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 5)).astype("float32"), rng.integers(0, 3, 60)
    return tmp_path / "home", archive(tmp_path / "home" / "d.npz", X=x, y=y, x_test=x, y_test=y)


def test_an_archive_in_the_home_directory_is_found_again(at_home, tmp_path, monkeypatch):
    home, file = at_home
    quick = ["--dataset", "~/d.npz", "--data-dir", "~/data", "--clients", "4", *SHORT]
    assert execute(["run", *quick, "--out", "one"]) == 0
    written = kedge.read_run(tmp_path / "work" / "one").config["data"]
    assert (written["dataset"], written["data_dir"]) == (file, str(home / "data"))
    assert execute(["sweep", *quick, "--grid", "algorithm.eta=0.1", "--seeds", "1", "--jobs", "1", "--out", "s"]) == 0
    grid = ["--grid", "data.dataset=~/d.npz", "--holdout", "0.1"]
    assert execute(["sweep", *quick[2:], *grid, "--seeds", "1", "--jobs", "1", "--out", "t"]) == 0
    federation, model = (
        kedge.load_federation("~/d.npz", clients=4, data_dir="~/data"),
        kedge.build_model("mlp", (5,), 3),
    )
    assert federation.origin["dataset"] == file
    assert federation.origin["data_dir"] == str(home / "data")
    run = {"cohort": 2, "local_steps": 1, "batch_size": 4, "out": tmp_path / "two"}
    kedge.simulate(model, federation, kedge.FedAvg(eta=0.1), rounds=2, **run)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for name in ("work/one", "two"):
        assert execute(["resume", str(tmp_path / name), "--rounds", "5"]) == 0


def test_a_run_may_get_another_metric_but_not_change_one(file, tmp_path, capsys):
    compare = ["compare", "--algorithms", "fedavg", "--seeds", "1", "--jobs", "1", "--out", "both", *SHORT]
    assert execute([*compare, "--metrics", "my.py:right"]) == 0
    assert execute([*compare, "--metrics", "my.py:right,my.py:wrong_share", "--rounds", "6"]) == 0
    hashes = kedge.read_run(tmp_path / "both" / "runs" / "fedavg-0").config["run"]["metrics_sha256"].split(",")
    assert hashes == 2 * [CodePlace(file, "right").sha256()]
    assert "test_wrong_share" in rows(tmp_path / "both" / "runs" / "fedavg-0")[-1]
    with pytest.raises(kedge.UsageError, match="metrics does not name 2 files"):
        check({"run": {"metrics": "my.py:right", "metrics_sha256": "abc,def"}})


@pytest.mark.parametrize("name", ["loss", "right"])
def test_the_fingerprint_of_a_run_has_the_file_of_its_loss_and_of_its_metrics(file, tmp_path, name):
    place = CodePlace(file, name)
    federation, model = kedge.load_federation("digits", clients=4), kedge.build_model("mlp", (64,), 10, widths=[4])

    def play(rounds, resume=False):
        place.trust()
        own = {"loss": place.load()} if name == "loss" else {"metrics": {name: place.load()}}
        run = {"cohort": 2, "local_steps": 1, "batch_size": 4, "out": tmp_path / "run", "resume": resume}
        return kedge.simulate(model, federation, kedge.FedAvg(eta=0.1), rounds=rounds, **run, **own)

    play(1)
    play(2, resume=True)
    file.write_text(SOURCE + "\n# changed\n")
    key = "loss file" if name == "loss" else "metric right"
    with pytest.raises(kedge.UsageError, match=f"has a different configuration: {key} is"):
        play(3, resume=True)


def test_it_is_bit_identical_for_any_number_of_threads_and_after_an_extension(file, tmp_path):
    mine = ["--dataset", "my.py:load", "--model", "my.py:make_model", *SHORT]
    assert execute(["run", *mine, "--threads", "1", "--out", "one"]) == 0
    assert execute(["run", *mine, "--threads", "3", "--out", "three"]) == 0
    assert execute(["run", *mine, "--rounds", "2", "--out", "half"]) == 0
    assert execute(["resume", "half", "--rounds", "4", "--trust"]) == 0
    assert rows(tmp_path / "one") == rows(tmp_path / "three") == rows(tmp_path / "half")
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "three", "half")]
    assert models[0] == models[1] == models[2]


def test_compare_and_sweep_take_them_too(file, tmp_path, capsys):
    mine = ["--dataset", "my.py:load", "--model", "my.py:make_model", *SHORT, "--jobs", "1"]
    compare = ["compare", "--algorithms", "fedavg,scaffold-m", "--seeds", "1", "--out", "both", *mine]
    assert execute(compare) == 0
    grid = ["--grid", "model.hidden=2,3", "--seeds", "1", "--metric", "test_right", "--metrics", "my.py:right"]
    assert execute(["sweep", *grid, *mine, "--out", "grid"]) == 0
    assert "Best: --set model.hidden=" in capsys.readouterr().out
    assert execute(["sweep", *grid[:-1], "my.py:number", *mine, "--out", "other"]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dataset", "my.py:wrong"], "my.py:wrong returned a int, but must return a kedge.Federation"),
        (["--dataset", "my.py:number"], "my.py:number is 3, but must be a function"),
        (["--dataset", "my.py:broken"], "my.py:broken failed: RuntimeError: no data today"),
        (["--dataset", "my.py:needy"], "my.py:needy needs secret, but nothing sets it"),
        (["--dataset", "my.py:load", "--alpha", "1"], "my.py:load does not take alpha; it takes clients, seed, shift"),
        (["--model", "my.py:make_model", "--set", "model.depth=2"], "my.py:make_model does not take depth"),
        (["--model", "my.py"], "model 'my.py' is a file; name what is in it too, as in 'my.py:make'"),
        (["--model", "my.py:wrong"], "my.py:wrong returned a int, but must return a torch.nn.Module"),
        (["--loss", "mae"], "loss 'mae' does not exist"),
        (["--loss", "my.py:number"], "my.py:number is 3, but must be a function loss(output, y)"),
        (["--metrics", "f1"], "run.metrics is 'f1', but must be file.py:function"),
        (["--set", "data.nonsense=1"], "[data] has no setting 'nonsense'"),
        (["--set", "model.nonsense=1"], "[model] has no setting 'nonsense'"),
        (["--dataset", "none.npz"], "the data set none.npz does not exist"),
        (["--set", "data.sha256=abc"], "data.sha256 is set, but digits is not a file"),
        (["--set", "model.loss_sha256=abc"], "model.loss_sha256 is set, but None is not a file"),
    ],
)
def test_what_is_wrong_is_one_sentence(file, capsys, arguments, message):
    assert execute(["run", *arguments, *SHORT, "--out", "run"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def archive(path, **arrays):
    np.savez(path, **arrays)
    return str(path)


def test_an_archive_of_arrays_is_divided_like_any_data_set(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 4)), rng.integers(0, 3, 60)
    plain = kedge.load_federation(archive(tmp_path / "plain.npz", x_train=x, y_train=y, x_test=x, y_test=y), clients=5)
    assert (len(plain), len(plain.test[1]), plain.features.dtype) == (5, 60, torch.float32)
    users = kedge.load_federation(archive(tmp_path / "users.npz", X=x, y=x[:, 0], users=np.repeat(["a", "b", "c"], 20)))
    assert (list(users.sizes), users.test) == ([20, 20, 20], None)


def test_a_strange_archive_is_refused_and_nothing_in_it_runs(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (exec, ("raise SystemExit('it ran')",))

    pickled = tmp_path / "pickled.npz"
    np.savez(pickled, features=np.array([Bomb()], dtype=object), labels=[0], allow_pickle=True)
    huge = tmp_path / "huge.npz"
    with zipfile.ZipFile(huge, "w", zipfile.ZIP_DEFLATED) as made:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (1 << 50,)})
        made.writestr("features.npy", header.getvalue())
    x = np.zeros((4, 2))
    for path, message in [
        (pickled, "cannot be read: Object arrays cannot be loaded"),
        (huge, "cannot be read"),
        (archive(tmp_path / "a.npz", features=x), "has no array labels or y_train or y; it has features"),
        (archive(tmp_path / "b.npz", features=x, labels=[1]), "needs one label per sample"),
        (archive(tmp_path / "c.npz", features=x, labels=[1] * 4, test_labels=[1]), "only one of test_features"),
        (archive(tmp_path / "d.npz", features=x, labels=[1] * 4, users=["a"]), "has users of shape"),
        (archive(tmp_path / "e.npz", features=["a", "b"], labels=[1, 1]), "are not an array of numbers"),
    ]:
        with pytest.raises(kedge.UsageError, match=message):
            kedge.load_federation(str(path), clients=1)


def test_a_run_made_in_python_is_resumed_by_the_command_line_to_the_bit(tmp_path, capsys):
    federation = kedge.load_federation("digits", clients=6, partition="iid")
    model = kedge.build_model("mlp", (64,), 10, widths=[4])
    settings = {"cohort": 2, "local_steps": 2, "batch_size": 4}
    algorithm = kedge.ScaffoldM(eta=kedge.schedules.cosine(0.1, 0.01, rounds=4), beta=0.3)

    class Enough:
        def on_round(self, run):
            if run.round == 2:
                run.stop()

    kedge.simulate(model, federation, algorithm, rounds=4, out=tmp_path / "run", callbacks=[Enough()], **settings)
    whole = kedge.simulate(model, federation, algorithm, rounds=4, out=tmp_path / "whole", **settings)
    assert execute(["resume", str(tmp_path / "run")]) == 0
    assert rows(tmp_path / "run") == rows(tmp_path / "whole")
    assert execute(["run", str(tmp_path / "whole" / "config.toml"), "--out", str(tmp_path / "again")]) == 0
    assert rows(tmp_path / "again") == [{k: v for k, v in row.items() if k != "seconds"} for row in whole.history]


def test_a_run_made_in_python_that_cannot_be_rebuilt_says_what_is_missing(tmp_path, capsys):
    x = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
    federation = kedge.Federation([(x, x[:, :1])] * 3, test=(x, x[:, :1]))
    settings = {"rounds": 1, "cohort": 2, "batch_size": 2, "loss": torch.nn.MSELoss(), "out": tmp_path / "run"}
    kedge.simulate(torch.nn.Linear(3, 1), federation, kedge.FedAvg(eta=0.1), **settings)
    for command in (["resume", str(tmp_path / "run")], ["run", str(tmp_path / "run" / "config.toml")]):
        assert execute(command) == 2
        error = capsys.readouterr().err
        for part in ("not made by kedge.load_federation", "the model Linear", "the loss is MSELoss", "resume=True"):
            assert part in error
        assert error.count("\n") == 1


def test_own_metrics_are_columns_of_a_comparison_and_rows_of_its_figure(file, tmp_path, capsys):
    mine = ["--metrics", "my.py:right", "--algorithms", "fedavg,scaffold", "--seeds", "2", "--jobs", "1"]
    assert execute(["compare", *mine, *SHORT, "--out", "both"]) == 0
    printed = capsys.readouterr().out
    assert " right " in printed
    assert "…" not in printed  # in a pipe no column is cut
    with (tmp_path / "both" / "summary.csv").open(newline="") as table:
        for row in csv.DictReader(table):
            assert float(row["final_test_right"]) == pytest.approx(float(row["final_accuracy"]))
    assert "test right" in (tmp_path / "both" / "curves.svg").read_text()
