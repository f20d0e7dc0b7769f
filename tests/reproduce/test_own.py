"""Your own experiment: a TOML file with your own data, models and algorithms, as a user meets it."""

import csv
import json
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

import kedge
from kedge.cli.program import execute
from kedge.own_code import CodePlace, consent_ends
from kedge.reproduce.conduct import UnfinishedError, conduct
from kedge.reproduce.experiment import read_own
from kedge.reproduce.plan import Plan
from kedge.reproduce.rehearsal import check_plan, guessing

DOCS = Path(__file__).parents[2] / "docs"

SOURCE = """
from dataclasses import dataclass

import numpy as np
from torch import nn

import kedge

def load(clients=6, seed=0, labels=4):
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(0).normal(size=(labels, 5))
    def part():
        y = rng.integers(0, labels, 24)
        return (centres[y] + rng.normal(size=(24, 5))).astype("float32"), y
    return kedge.Federation([part() for _ in range(clients)], test=part())

def untested(seed=0):
    return kedge.Federation([(np.zeros((8, 5), "float32"), [0, 1] * 4)] * 6)

def numbers(seed=0):
    x = np.random.default_rng(seed).normal(size=(20, 5)).astype("float32")
    return kedge.Federation([(x, x[:, :1])] * 6, test=(x, x[:, :1]))

def make_model(input_shape, classes, hidden=4):
    return nn.Sequential(nn.Linear(*input_shape, hidden), nn.Tanh(), nn.Linear(hidden, classes))

@dataclass(frozen=True)
class Mine(kedge.FedAvgM):
    pass
"""

STUDY = """
title = "Our data"
algorithms = ["fedavg", "my.py:Mine"]
protocols = ["tuned"]

[base.data]
dataset = "my.py:load"

[base.model]
name = "my.py:make_model"

[base.run]
local_steps = 2
batch_size = 4
rounds = 4

[panels."3 of 6 clients"]
run.cohort = 3

[tuned]
eta = [0.1, 0.5]
beta = [0.5]

[scales.smoke]
seeds = 2
points = 4
tuning = { seeds = 1, budget = 2, extend = 0, points = 2 }

[[claims]]
text = "Mine is better."
pairs = [["Mine", "fedavg"]]
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").write_text(SOURCE)
    (tmp_path / "study.toml").write_text(STUDY)
    return tmp_path


def refused(capsys, *arguments):
    """Return the one sentence with which a command ends."""
    assert execute(["reproduce", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    assert "Traceback" not in error
    return error


def test_own_data_model_and_algorithm_reach_verdict_and_figures_and_the_same_command_runs_nothing_again(place, capsys):
    command = ["reproduce", "study.toml", "--jobs", "1", "--out", "results", "--trust"]
    assert execute(command) == 0
    printed = capsys.readouterr()
    folder = place / "results" / "study" / "smoke"
    assert "Mine over fedavg" in printed.out
    for name in ("figure.png", "budgets.png", "summary.csv", "curves.csv", "grid.csv", "verdict.md", "report.html"):
        assert (folder / name).stat().st_size > 100
    verdict = (folder / "verdict.md").read_text(encoding="utf-8")
    assert "`kedge reproduce study.toml --scale smoke`" in verdict
    assert "A diverged run counts as 25 %." in verdict
    assert "the paper" not in verdict
    assert str(place) not in verdict
    before = {file: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    assert execute(command) == 0
    assert "accuracy" not in capsys.readouterr().err  # no run was played
    assert {file: file.read_bytes() for file in folder.iterdir() if file.is_file()} == before
    config = folder / "configs" / "tuned--3-of-6-clients--mine.toml"
    assert execute(["run", str(config), "--seed", "1", "--out", "again", "--trust"]) == 0
    last = json.loads((place / "again" / "metrics.jsonl").read_text().splitlines()[-1])
    with (folder / "curves.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if (row["line"], row["seed"]) == ("Mine", "1")]
    assert rows[-1]["test_loss"] == f"{last['test_loss']:.6g}"


def test_a_stopped_command_says_how_it_goes_on(capsys, monkeypatch):
    def interrupted(*args):
        signal.raise_signal(signal.SIGTERM)
        raise UnfinishedError

    monkeypatch.setattr("kedge.cli.reproduce.conduct", interrupted)
    assert execute(["reproduce", "study.toml", "--out", "place", "--trust"]) == 143
    assert "continue with `kedge reproduce study.toml --scale smoke --out place --trust`" in capsys.readouterr().err


def test_code_that_the_file_names_runs_only_with_consent(place, capsys):
    for named, less in [
        ("my.py:load", ""),
        ("my.py:make_model", 'dataset = "my.py:load"'),
        ("my.py:Mine", "dataset|name"),
    ]:
        text = STUDY if not less else re.sub(r'(?m)^(?:dataset|name) = "my.py:load"$', "", STUDY)
        text = text if less != "dataset|name" else text.replace('name = "my.py:make_model"', "")
        (place / "study.toml").write_text(text)
        (place / "my.py").write_text("raise SystemExit('it ran')")
        assert f"study.toml names {named}, but that file runs only if you trust it" in refused(capsys, "study.toml")
    for layer in ('[scales.smoke.set]\nmodel.loss = "my.py:x"', '[lines.x]\nrun.metrics = "my.py:x"'):
        plain = STUDY.replace('"my.py:Mine"', '"fedavg-m"').replace("Mine", "fedavg-m")
        plain = plain.replace('dataset = "my.py:load"', "").replace('name = "my.py:make_model"', "")
        (place / "study.toml").write_text(f"{plain}\n{layer}\n")
        assert "names my.py:x, but that file runs only if you trust it" in refused(capsys, "study.toml")
    assert not (place / "experiments").exists()


def conducted(out, processes, ends=None):
    ended = 0

    def watch(event):
        nonlocal ended
        ended += event.ended is not None and not event.found

    plan = Plan(read_own(Path("study.toml")), "smoke", own=True)
    check_plan(plan)
    conduct(plan, out, processes, lambda title, jobs: watch, lambda: ended == ends, "command")
    folder = out / "study" / "smoke"
    files = [path for path in folder.glob("*.*") if path.suffix not in (".svg", ".html")]
    return {path.relative_to(folder): path.read_bytes() for path in files}


@pytest.fixture
def trusted(place):
    with consent_ends():
        CodePlace(Path("my.py"), "load").trust()
        yield


@pytest.mark.usefixtures("trusted")
def test_interrupted_or_in_several_processes_it_is_the_same_to_the_bit(tmp_path):
    whole = conducted(tmp_path / "whole", 1)
    for ends in (1, 2):
        with pytest.raises(UnfinishedError):
            conducted(tmp_path / "pieces", 1, ends)
    assert conducted(tmp_path / "pieces", 1) == whole
    assert conducted(tmp_path / "several", 2) == whole


def test_an_edited_file_is_noticed_instead_of_mixing_results(place, capsys):
    command = ["study.toml", "--jobs", "1", "--trust"]
    assert execute(["reproduce", *command]) == 0
    capsys.readouterr()
    (place / "my.py").write_text(SOURCE + "\n# changed\n")
    error = refused_after_count(capsys, command)
    assert "has changed since" in error
    (place / "my.py").write_text(SOURCE)
    (place / "study.toml").write_text(STUDY.replace("batch_size = 4", "batch_size = 5"))
    assert "run.batch_size is 4 there, but 5 here" in refused_after_count(capsys, command)


def refused_after_count(capsys, command):
    """Return the sentence with which a command ends that has first said how many runs there are."""
    assert execute(["reproduce", *command]) == 2
    count, sentence, *rest = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"study: \d+ runs", count)
    assert rest == []
    return sentence


@pytest.mark.usefixtures("trusted")
def test_guessing_is_derived_from_the_data_of_every_panel_or_declared(place):
    x, y = np.eye(40), [0, 1] * 20
    np.savez(place / "two.npz", x_train=x, y_train=y, x_test=x, y_test=y)

    def chances(text):
        (place / "study.toml").write_text(text)
        return guessing(Plan(read_own(Path("study.toml")), "smoke", own=True))

    assert chances(STUDY) == {"3 of 6 clients": 0.25}
    more = STUDY + '\n[panels.seven]\ndata.labels = 7\n[panels.digits]\ndata.dataset = "digits"\n'
    more += '[panels.two]\ndata.dataset = "two.npz"\ndata.clients = 2\ndata.partition = "iid"\nrun.cohort = "all"\n'
    found = {"3 of 6 clients": 0.25, "seven": 1 / 7, "digits": 0.1, "two": 0.5}
    assert chances(more) == found
    assert chances(f"chance = 0.3\n{more}") == dict.fromkeys(found, 0.3)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("title =", "titel =", "title of the experiment study is wrong: Field required"),
        ("[tuned]", "colour = 1\n[tuned]", "of the experiment study is wrong"),
        ("[tuned]", "[tuned]\ncolour = 1", "tuned.colour of the experiment study is wrong: Extra inputs are not"),
        ("[tuned]", '[tuned]\n"a\\nb" = 1', r"'tuned.a\nb' of the experiment study is wrong"),
        ("[base.data]", "[base.date]", "section 'date' does not exist; did you mean 'data'?"),
        ("rounds = 4", 'rounds = "4"', "run.rounds is '4', but must be a whole number"),
        ("rounds = 4", "round = 4", "[run] has no setting 'round'; did you mean 'rounds'?"),
        ("rounds = 4", "rounds = 1" + "0" * 30, "run.rounds is 1"),
        ("rounds = 4", "seed = 4", "run.seed is set in study, but a scale says how many seeds there are"),
        ("rounds = 4", "eval_every = 4", "run.eval_every is set in study, but a scale says how many points"),
        ("[base.run]", "[base.algorithm]\neta = 1.0\n[base.run]", "algorithm.eta is set in study, but the grid"),
        ("[base.run]", "[base.algorithm]\nbeta = 'x'\n[base.run]", "algorithm.beta is 'x' in study, but must be a"),
        ("[base.run]", "[base.algorithm]\nmuu = 1\n[base.run]", "hyper-parameter of study 'muu' does not exist"),
        ("eta = [0.1, 0.5]", "eta = []", "tuned.eta of the experiment study is wrong: List should have at least 1"),
        ("eta = [0.1, 0.5]", "eta = [inf]", "tuned.eta.0 of the experiment study is wrong"),
        ("eta = [0.1, 0.5]", "eta = [-1.0]", "tuned.eta.0 of the experiment study is wrong"),
        ("eta = [0.1, 0.5]", 'eta = ["0.1"]', "tuned.eta.0 of the experiment study is wrong"),
        ("eta = [0.1, 0.5]", "eta = [0.1, 0.1]", "the grid of fedavg in study has a point twice"),
        ("eta = [0.1, 0.5]", f"eta = {[0.1 + i for i in range(31)]}", "List should have at most 30 items"),
        ("beta = [0.5]", "", "Mine has a beta, but tuned.beta of study has no values"),
        ("beta = [0.5]", "beta = [2.0]", "beta of Mine is 2, but must be above 0 and at most 1"),
        ("seeds = 2\n", "seeds = 0\n", "scales.smoke.seeds of the experiment study is wrong"),
        ("seeds = 2\n", "seeds = 1000000000\n", "scales.smoke.seeds of the experiment study is wrong"),
        ("seeds = 2\n", "seeds = true\n", "scales.smoke.seeds of the experiment study is wrong"),
        ("seeds = 2\n", "only = []\n", "scales.smoke.only of the experiment study is wrong"),
        ("seeds = 2\n", 'only = ["x"]\n', "panel of study 'x' does not exist"),
        ("seeds = 2\n", 'protocols = ["second"]\n', "protocols of study is ['second'], but tuned must be among them"),
        ("seeds = 2\n", 'protocols = ["tuned", "equal"]\n', "one rate for all, but no section equal"),
        ("[scales.smoke]", "[scales.huge]", "of the experiment study is wrong"),
        ("[scales.smoke]", "[scales.laptop]", "study.toml has no scale smoke, but laptop"),
        ('text = "Mine is better."', "", "claims.0.text of the experiment study is wrong: Field required"),
        ('pairs = [["Mine", "fedavg"]]', "", "claims.0.pairs of the experiment study is wrong: Field required"),
        ('pairs = [["Mine", "fedavg"]]', "pairs = [[1, 2]]", "claims.0.pairs.0.0 of the experiment study is wrong"),
        ('"Mine", "fedavg"', '"Mine", "fedavk"', "line of study 'fedavk' does not exist; did you mean 'fedavg'?"),
        ('text = "Mine', 'more_than_in = "../../x: y"\ntext = "Mine', "figure in a claim of study '../../x' does not"),
        ("title =", 'name = "../escaped"\ntitle =', "name of the experiment study is wrong"),
        ("title =", 'name = "/etc"\ntitle =', "name of the experiment study is wrong"),
        ("title =", 'name = ".."\ntitle =', "name of the experiment study is wrong"),
        ("title =", 'name = "mnist-many"\ntitle =', "is called mnist-many, but kedge's own figures use that name"),
        ('title = "Our data"', 'title = "\\u001b[2J"', "title of the experiment study is wrong"),
        ('algorithms = ["fedavg", "my.py:Mine"]', "", "line of study 'Mine' does not exist"),
        ('"fedavg", "my.py:Mine"', '"fedavg", "my.py:Mine", "mine"', "2 lines would be 'mine' in the names of files"),
        ('"fedavg", "my.py:Mine"', '"fedavg", "my.py:Mine", "sgd"', "algorithm 'sgd' does not exist"),
        ("[tuned]", "[lines.x]\nrun.cohort = 2\n[tuned]", "the line x of study names no algorithm"),
        ("[tuned]", '[panels."3 of 6 Clients"]\n[tuned]', "2 panels would be '3-of-6-clients' in the names of files"),
        ("[tuned]", '[panels."../.."]\n[tuned]', "of the experiment study is wrong"),
        ("[tuned]", "[panels.x]\ncohort = 2\n[tuned]", "settings must have the form section.name"),
        ("[tuned]", f"[panels.{'x' * 300}]\n[tuned]", "of the experiment study is wrong"),
        ("protocols =", 'sweep = "run.chort"\nprotocols =', "sweep of study 'run.chort' does not exist"),
        (
            "protocols =",
            'sweep = "run.device"\nprotocols =',
            "sweep of study is run.device, but in 3 of 6 clients that",
        ),
        (
            "protocols =",
            'free_step = ["fedavg"]\nprotocols =',
            "fedavg is in free_step of study, but tuned.step has no",
        ),
        ("protocols =", "chance = 1.5\nprotocols =", "chance of the experiment study is wrong"),
        ("my.py:load", "my.py:untested", "has no test set"),
        (
            'my.py:load"\n\n[base.model]',
            'my.py:numbers"\n\n[base.model]\nloss = "mse"',
            "the data of study has no accuracy, but an experiment needs labels of classes",
        ),
        ("my.py:load", "gone.py:load", "gone.py, which does not exist"),
        ("my.py:load", "none.npz", "the data set none.npz does not exist"),
        ("rounds = 4", "local_update = \"Personal('0.')\"", "has personal layers, but then no model is evaluated"),
        ('"my.py:load"', '"my.py:load"\nsha256 = "abc"', "my.py has changed since the configuration was written"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_leaves_no_trace(place, capsys, old, new, message):
    assert old in STUDY
    (place / "study.toml").write_text(STUDY.replace(old, new, 1))
    assert execute(["reproduce", "study.toml", "--trust"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert message in lines[-1]
    assert all(re.fullmatch(r"study: \d+ runs", line) for line in lines[:-1])
    assert sorted(path.name for path in place.iterdir()) == ["my.py", "study.toml"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe", "the configuration study.toml is not TOML"),
        (b"title", "the configuration study.toml is not TOML"),
        (b"x = " + b"[" * 5000, "the configuration study.toml is not TOML: it is nested too deeply"),
        (
            b"chance = 1" + b"0" * 400,
            "chance is a number with about 400 digits, but a whole number has at most 63 bits",
        ),
        (b"", "title of the experiment study is wrong: Field required"),
        (None, "the configuration study.toml cannot be read"),
    ],
)
def test_a_file_that_is_no_experiment_is_one_sentence(place, capsys, content, message):
    (place / "study.toml").unlink()
    if content is not None:
        (place / "study.toml").write_bytes(content)
    assert message in refused(capsys, "study.toml", "--trust")


def test_a_file_whose_name_cannot_be_a_directory_needs_another(place, capsys):
    shutil.copy("study.toml", ".hidden.toml")
    assert "name of the experiment .hidden is wrong" in refused(capsys, ".hidden.toml", "--trust")
    shutil.copy("study.toml", "all.toml")
    assert "is called all, but kedge's own figures use that name" in refused(capsys, "all.toml", "--trust")


@pytest.mark.usefixtures("trusted")
def test_more_runs_than_anybody_can_wait_for_are_refused_before_they_are_listed(place):
    many = ", ".join(f"{i / 100}" for i in range(1, 31))
    text = STUDY.replace("eta = [0.1, 0.5]", f"eta = [{many}]").replace("beta = [0.5]", f"beta = [{many}]")
    text += "".join(f"\n[panels.p{i}]\n" for i in range(90))
    (place / "study.toml").write_text(text)
    with pytest.raises(kedge.UsageError, match="study has up to 164164 runs, but at most 100000 are possible"):
        check_plan(Plan(read_own(Path("study.toml")), "smoke", own=True))


def test_an_experiment_without_claims_on_plain_arrays_needs_no_code_and_dollars_are_no_formulas(place, capsys):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 5)).astype("float32"), rng.integers(0, 2, 80)
    np.savez(place / "data.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    text = STUDY.partition("[[claims]]")[0].replace("my.py:load", "data.npz").replace(', "my.py:Mine"', "")
    text = text.replace('name = "my.py:make_model"', "").replace("[base.data]", "[base.data]\nclients = 6")
    text = text.replace('"Our data"', r"'Cost in $\frac and $'").replace("3 of 6 clients", "a $b$ $")
    (place / "study.toml").write_text(text)
    assert execute(["reproduce", "study.toml", "--jobs", "1"]) == 0
    printed = capsys.readouterr().out
    assert "The experiment makes none." in printed
    assert "A diverged run counts as 50 %." in printed


def test_the_experiment_of_the_page_runs_as_pasted(place, capsys):
    page = (DOCS / "reproduce.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"(?s)^## Your own experiment$(.*?)^## ", page, re.M)
    (text,) = re.findall(r"(?s)^```toml\n(.*?)^```$", section, re.M)
    shutil.copytree(DOCS / "examples", place / "docs" / "examples")
    (place / "my-study.toml").write_text(text)
    assert execute(["reproduce", "my-study.toml", "--trust", "--jobs", "1", "--out", "results"]) == 0
    assert "FedProxM over fedavg-m" in capsys.readouterr().out
    assert set(read_own(Path("my-study.toml")).scales) == {"smoke", "laptop"}
