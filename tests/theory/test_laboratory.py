"""The rate laboratory: its worlds have the constants that they claim, its player plays what kedge plays."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

import kedge
from kedge.cli.program import execute
from kedge.theory.laboratory import EXPERIMENTS, QUICK, Finding, Panel, PlottedLine
from kedge.theory.laboratory.finding import fitted
from kedge.theory.laboratory.playing import play
from kedge.theory.laboratory.worlds import quadratic, robust

CHEAP = ["fixed-point", "speed-up"]


def single(world, x):
    """∇f_i of every client at one point."""
    rows = torch.arange(world.clients).unsqueeze(1)
    return world.gradients(x.expand(world.clients, 1, -1), rows)[:, 0]


def test_quadratics_have_the_heterogeneity_that_they_claim_and_an_f_that_does_not_depend_on_it():
    small, large = quadratic(zeta=2.0), quadratic(zeta=200.0)
    optimum = torch.zeros_like(small.start)
    for world in (small, large):
        own = single(world, optimum)
        assert float(own.square().sum(1).mean().sqrt()) == pytest.approx(world.zeta)
        assert own.mean(0).norm() < 1e-10
        assert world.smoothness == 1
    assert torch.allclose(small.mean_gradient(small.start[None]), large.mean_gradient(small.start[None]))
    assert small.constants(None, 4).delta == large.constants(None, 4).delta == small.gap


def test_the_gradients_of_robust_regression_are_those_of_its_loss_and_l_bounds_them():
    world = robust(4)
    x = world.start + torch.linspace(-1, 1, len(world.start))
    points = x.expand(4, -1).clone().requires_grad_()
    rest = torch.einsum("nsd,nd->ns", world.features, points) - world.targets
    loss = (rest.square() / (1 + rest.square())).mean(1).sum()
    (expected,) = torch.autograd.grad(loss, points)
    assert torch.allclose(single(world, x), expected)
    rng = torch.Generator().manual_seed(0)
    for _ in range(50):
        a, b = torch.randn(2, len(x), generator=rng, dtype=torch.float64)
        change = (single(world, a) - single(world, b)).norm(dim=1).max()
        assert change <= world.smoothness * (a - b).norm() * (1 + 1e-9)


@pytest.mark.parametrize("name", ["fedavg", "fedavg-m", "fedavg-m-vr", "scaffold", "scaffold-m", "scaffold-m-vr"])
def test_the_player_plays_what_the_simulator_plays(name):
    made = kedge.quadratics(5, 4, heterogeneity="large")

    class World:
        clients, sigma, start = 5, 0.0, made.model.x.detach()

        def gradients(self, points, rows):
            return torch.einsum("spij,spj->spi", made.hessians[rows], points - made.centers[rows])

        def mean_gradient(self, x):
            return self.gradients(x.expand(5, *x.shape), torch.arange(5)[:, None].expand(-1, len(x))).mean(0)

    algorithm = kedge.ALGORITHMS[name](eta=0.05)
    mine = play(algorithm, World(), 6, steps=3, replicas=2)
    theirs = kedge.simulate(
        made.model, made.federation, algorithm, 6, None, 3, None, loss=made.loss, callbacks=[kedge.theory.Diagnose()]
    )
    for replica in range(2):
        assert torch.allclose(mine.server.x[replica], theirs.server["x"], rtol=1e-9)
    for number, row in enumerate(theirs.history):
        assert float(mine.gradients[number, 0]) == pytest.approx(row["gradient_norm2"])
        assert float(mine.errors[number, 0]) == pytest.approx(row["momentum_error"], rel=1e-9, abs=1e-12)


def test_replicas_have_their_own_cohorts_and_noise_of_the_stated_size():
    world = quadratic(6, sigma=2.0)
    done = play(kedge.FedAvg(eta=1e-9, gamma=1e-9), world, 400, steps=1, cohort=6, replicas=5)
    assert float(done.errors.mean()) == pytest.approx(2.0**2 / 6, rel=0.1)
    sampled = play(kedge.FedAvg(eta=0.1), quadratic(6), 3, cohort=2, replicas=5).server.x
    assert len({tuple(x.tolist()) for x in sampled}) == 5


def test_rounds_to_a_target_are_those_after_which_it_stays_below():
    trace = play(kedge.FedAvg(eta=0.1), quadratic(zeta=0.0), 30, replicas=1)
    known = trace.gradients[:, 0]
    assert trace.rounds_to(float(known[10])) == 10
    assert trace.rounds_to(0.0) == math.inf
    assert trace.rounds_to(1e9) == 0


def test_a_fit_finds_an_exponent_and_says_how_sure_it_is():
    exact = fitted([1, 2, 4, 8], [3 * x**-0.5 for x in (1, 2, 4, 8)])
    assert exact.slope == pytest.approx(-0.5)
    assert exact.error < 1e-6
    rough = fitted([1, 2, 4, 8], [1, 0.9, 0.3, 0.4])
    assert rough.error > 0.2
    lengths = list(range(1, 13))
    many = [n**-0.5 * (1 + n % 3) for n in lengths]
    line = stats.linregress(np.log(lengths), np.log(many))
    assert fitted(lengths, many).error == pytest.approx(stats.t.ppf(0.975, 10) * line.stderr)


@pytest.mark.parametrize("name", ["heterogeneity", "every-bound", "constant-rate"])
def test_an_experiment_finds_what_the_docs_say(name):
    found = EXPERIMENTS[name](QUICK)
    assert found.holds
    assert found.name == name
    assert found.as_stated == (name != "constant-rate")


def test_verify_writes_a_report_with_a_figure_each(tmp_path, capsys):
    only = [part for name in CHEAP for part in ("--only", name)]
    assert execute(["theory", "verify", "--quick", *only, "--out", str(tmp_path / "report")]) == 0
    report = (tmp_path / "report" / "report.md").read_text()
    assert "`kedge theory verify --quick --only fixed-point --only speed-up`" in report
    for name in CHEAP:
        assert f"![{name}]({name}.png)" in report
        assert (tmp_path / "report" / f"{name}.png").stat().st_size > 1000
    capsys.readouterr()
    assert execute(["theory", "verify", "--out", str(tmp_path / "report")]) == 2
    assert "is not empty; nothing was overwritten" in capsys.readouterr().err
    assert execute(["theory", "verify", "--only", "nothing", "--out", str(tmp_path / "other")]) == 2
    assert not (tmp_path / "other").exists()


def test_an_assertion_that_fails_is_exit_1_and_still_reported(tmp_path, capsys, monkeypatch):
    panels = (
        Panel("map", "x", "y", map=((1.0, -1.0),), columns=(1, 2), rows=(0,)),
        Panel("line", "x", "y", (PlottedLine("a", [1, 2], [1, math.inf]),)),
    )
    wrong = Finding(
        "fixed-point", "Two is three.", holds=False, as_stated=False, sentences=("It is not.",), panels=panels
    )
    monkeypatch.setitem(EXPERIMENTS, "fixed-point", lambda scale: wrong)
    assert execute(["theory", "verify", "--only", "fixed-point", "--out", str(tmp_path / "r")]) == 1
    assert "fixed-point: the check failed (Two is three.)" in capsys.readouterr().out
    assert "**the check failed**" in (tmp_path / "r" / "report.md").read_text()
