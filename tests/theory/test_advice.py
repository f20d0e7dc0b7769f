"""What measured constants mean, in words."""

import math
from dataclasses import replace

import pytest

import kedge
from kedge.cli.diagnose import command
from kedge.cli.program import execute
from kedge.theory import Measured, advise, try_rates
from kedge.theory.measuring import At

POINT = At(0, 1.0, 1.0, 0.1, 1.0, 10.0, 4.0, 10.0, 1.0, 2.0, 2.0)
KNOWN = Measured(
    L=10.0, L_mean=4.0, L_sample=10.0, sigma=0.1, zeta=1.0, delta=1.0, G0=2.0, G=2.0, hessian_dissimilarity=1.0,
    intervals={}, points=(POINT,), gradients=100.0, clients=20, cohort=4, local_steps=10, batch_size=16,
)  # fmt: skip
CHEAP = ["--dataset", "quadratics", "--clients", "4", "--cohort", "2", "--local-steps", "2", "--rounds", "5"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"hessian_dissimilarity": 0.0, "zeta": 10.0}, "client sampling"),
        ({"hessian_dissimilarity": 4.0, "zeta": 10.0}, "drift"),
        ({"sigma": 100.0}, "noise"),
        ({"sigma": 0.0, "zeta": 0.0}, "none"),
        ({"cohort": None, "hessian_dissimilarity": 0.0, "sigma": 0.0}, "none"),  # all clients, equal curvatures
    ],
)
def test_the_largest_error_is_the_problem(changes, problem):
    advice = advise(replace(KNOWN, **changes))
    assert advice.problem == problem
    assert ("largest error" in advice.reasons[0]) == (problem != "none")


def test_the_errors_are_those_of_the_lemmas():
    errors = advise(KNOWN).errors
    assert errors["noise"] == pytest.approx(0.1**2 / 40)
    assert errors["client sampling"] == pytest.approx(16 / (4 * 19))
    assert errors["drift"] == 1.0  # a step of 0.3 with ten local steps: more than ζ² it cannot be
    assert advise(replace(KNOWN, L_mean=400.0)).errors["drift"] == pytest.approx((0.003 * 5) ** 2)
    assert advise(replace(KNOWN, clients=1, cohort=1)).errors["client sampling"] == 0


def test_control_variables_are_for_clients_that_differ_and_come_back():
    assert advise(KNOWN, rounds=100).algorithm is kedge.ScaffoldM
    seldom = advise(KNOWN, rounds=5)
    assert seldom.algorithm is kedge.FedAvgM
    assert "only 1 rounds on average" in seldom.reasons[1]
    alike = advise(replace(KNOWN, zeta=0.1), rounds=100)
    assert alike.algorithm is kedge.FedAvgM
    assert "differ little more than their minibatches" in alike.reasons[1]
    assert advise(replace(KNOWN, sigma=0.0)).algorithm is kedge.ScaffoldM
    assert advise(replace(KNOWN, sigma=0.0, zeta=0.0)).algorithm is kedge.FedAvgM


def test_steps_are_shorter_where_curvature_is_larger():
    flat, steep = advise(KNOWN), advise(replace(KNOWN, L=100.0, L_mean=40.0))
    for kind, values in flat.settings.items():
        assert values["eta"] == pytest.approx(10 * steep.settings[kind]["eta"])
    assert flat.make() == kedge.ScaffoldM(eta=0.3, beta=0.5)


def test_a_trial_finds_the_rate_that_works_and_survives_one_that_diverges():
    made = kedge.quadratics(4, 5, heterogeneity="mild")
    rules = kedge.Settings(cohort=2, local_steps=4, batch_size=None)
    trial = try_rates(made.model, made.federation, kedge.FedAvg(eta=0.3), rules, 10, made.loss)
    assert list(trial.losses) == sorted(trial.losses)
    assert {0.1, 0.3, 0.9} <= set(trial.losses)
    assert trial.eta == min(trial.losses, key=trial.losses.get)
    assert trial.gradients == len(trial.losses) * 10 * 2 * 4
    short = try_rates(made.model, made.federation, kedge.FedAvg(eta=0.001), rules, 10, made.loss)
    assert list(short.losses) == pytest.approx([0.00033, 0.001, 0.003, 0.009, 0.027])  # past the edge, twice
    assert short.eta == max(short.losses)
    wild = try_rates(made.model, made.federation, kedge.FedAvg(eta=1e6), rules, 60, made.loss)
    assert math.inf in wild.losses.values()
    falling = kedge.FedAvg(eta=kedge.schedules.cosine(0.3, 0.1, rounds=10))
    assert try_rates(made.model, made.federation, falling, rules, 10, made.loss) == trial  # as at its start


def test_the_command_compares_with_the_start_values():
    text = command(advise(KNOWN), ["--alpha", "0.3"])
    assert text.startswith("kedge compare --alpha 0.3 --algorithms fedavg,fedavg-m,scaffold,scaffold-m ")
    assert "--set scaffold-m.eta=0.3 --set scaffold-m.beta=0.5" in text


def test_diagnose_prints_what_a_comparison_then_takes(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert execute(["diagnose", *CHEAP, "--set", "data.sigma=1"]) == 0
    said = capsys.readouterr().out
    for words in ("ζ, how far the clients' gradients differ", "Squared errors", "Start with ", "minibatch gradients"):
        assert words in said
    line = said.splitlines()[-1]
    assert line.startswith("kedge compare --dataset quadratics --clients 4 ")
    assert execute([*line.split()[1:], "--seeds", "1", "--jobs", "1"]) == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["diagnose", *CHEAP, "--cohort", "9"], "cohort is 9, but the federation has 4 clients"),
        (["diagnose", "--dataset", "nothing"], "data set 'nothing' does not exist"),
        (["run", *CHEAP, "--settings", "best"], "settings is 'best', but must be own or theory"),
        (["run", *CHEAP, "--settings", "theory", "--eta", "1"], "eta is set, but --settings theory chooses"),
        (["run", *CHEAP, "--settings", "theory", "--algorithm", "fedavg"], "fedavg has no theorem in the paper"),
        (["run", *CHEAP, "--settings", "theory", "--algorithm", "fedavg-m"], "needs every client in every round"),
        (["run", *CHEAP[:4], "--settings", "theory", "--local-epochs", "1"], "local_epochs is set, but the theorems"),
    ],
)
def test_what_cannot_be_is_one_sentence(arguments, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert execute(arguments) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["scaffold-m", "scaffold-m-vr"])
def test_a_run_with_the_settings_of_the_theorem_keeps_its_bound(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["run", *CHEAP, "--settings", "theory", "--algorithm", name, "--diagnose", "1", "--eval-every", "1"]
    assert execute([*arguments, "--set", "data.sigma=1", "--out", "run"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    bound = float(said.partition("It bounds the mean of E|∇f|² by ")[2].split()[0].rstrip("."))
    run = kedge.read_run("run")
    assert run.config["algorithm"]["gamma"] < 1 / 24 / 0.5
    assert sum(row["gradient_norm2"] for row in run.rows) / len(run.rows) <= bound


def test_a_run_with_so_few_rounds_that_the_opening_costs_more_takes_the_settings_all_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = ["run", *CHEAP, "--settings", "theory", "--rounds", "1", "--local-steps", "1", "--cohort", "1"]
    assert execute([*one, "--algorithm", "scaffold-m", "--out", "run"]) == 0
