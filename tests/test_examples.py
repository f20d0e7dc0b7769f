"""The examples of the documents do what the documents say."""

import runpy
from pathlib import Path

import torch

import kedge
from kedge.cli.program import execute

EXAMPLES = Path(__file__).parent.parent / "docs" / "examples"
EXAMPLE = EXAMPLES / "fedprox_m.py"


def test_an_algorithm_of_ones_own_takes_at_most_30_lines():
    assert len(EXAMPLE.read_text().splitlines()) <= 30
    kind = runpy.run_path(str(EXAMPLE))["FedProxM"]
    made = kedge.quadratics(clients=4, dim=3, sigma=1.0, samples=8)
    run = {"rounds": 3, "cohort": 2, "local_steps": 3, "batch_size": 2, "loss": made.loss}
    ours = kedge.simulate(made.model, made.federation, kind(eta=0.1, beta=0.3, mu=0.0), **run)
    theirs = kedge.simulate(made.model, made.federation, kedge.FedAvgM(eta=0.1, beta=0.3), **run)
    torch.testing.assert_close(ours.server["x"], theirs.server["x"], rtol=0, atol=1e-14)
    held = kedge.simulate(made.model, made.federation, kind(eta=0.1, beta=0.3, mu=5.0), **run)
    start = made.model.x.detach()
    assert (held.server["x"] - start).norm() < (theirs.server["x"] - start).norm()


def test_it_runs_from_the_command_line_beside_the_built_in_ones(tmp_path, capsys):
    command = [
        "compare",
        "--algorithms",
        f"fedavg-m,{EXAMPLE}:FedProxM",
        "--rounds",
        "2",
        "--seeds",
        "1",
        "--eta",
        "0.1",
    ]
    assert execute([*command, "--jobs", "1", "--out", str(tmp_path / "both"), "--set", "FedProxM.mu=0.5"]) == 0
    assert "FedProxM" in capsys.readouterr().out
    assert "mu = 0.5" in (tmp_path / "both" / "runs" / "FedProxM-0" / "config.toml").read_text()


def test_a_place_that_holds_no_algorithm_is_named(tmp_path, capsys):
    (tmp_path / "empty.py").write_text("x = 1\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    for place, sentence in [
        ("nowhere.py:A", "names the file nowhere.py, which does not exist"),
        (f"{tmp_path}/empty.py:A", "has no A"),
        (f"{tmp_path}/empty.py:x", "is not a kedge.Algorithm"),
        (f"{tmp_path}/broken.py:A", "cannot be run: ZeroDivisionError"),
    ]:
        assert execute(["run", "--algorithm", place]) == 2
        assert sentence in capsys.readouterr().err


def test_a_callback_that_logs_the_error_of_the_momentum_takes_twenty_lines():
    source = EXAMPLES / "gradient_error.py"
    text = source.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 20
    assert text[text.index("class GradientError") :].strip() in (EXAMPLES.parent / "callbacks.md").read_text("utf-8")
    watcher = runpy.run_path(str(source))["GradientError"](every=2)
    made = kedge.quadratics(clients=4, dim=3, heterogeneity="mild")
    settings = {"rounds": 4, "cohort": None, "local_steps": 1, "batch_size": None, "loss": made.loss}
    # One exact step of everybody at beta = 1: the direction is the gradient itself.
    kedge.simulate(made.model, made.federation, kedge.FedAvgM(eta=0.1, beta=1.0), callbacks=[watcher], **settings)
    assert list(watcher.values) == [2, 4]
    assert max(watcher.values.values()) < 1e-12
    kedge.simulate(made.model, made.federation, kedge.FedAvgM(eta=0.1, beta=0.1), callbacks=[watcher], **settings)
    assert min(watcher.values.values()) > 1e-6
