"""The proof's quantities in a run, against their definitions; and that looking changes nothing."""

import math

import pytest
import torch

import kedge
from kedge.theory import Diagnose
from kedge.theory.diagnostics import mean_drift, sampled_steps

COLUMNS = {"gradient_norm2", "momentum_error", "gradient_angle", "client_drift", "first_step_norm2"}
COSTS = {"diagnosis_gradients"}
K, ETA, BETA = 5, 0.05, 0.3


@pytest.fixture(scope="module")
def made():
    return kedge.quadratics(6, 4, heterogeneity="large")


def played(made, algorithm, rounds=4, every=1, **more):
    settings = {"cohort": 3, "local_steps": K, "batch_size": None, "loss": made.loss} | more
    look = [Diagnose(every)] if every else []
    return kedge.simulate(made.model, made.federation, algorithm, rounds=rounds, callbacks=look, **settings)


def gradients(made, x):
    """∇f_i(x) of every client."""
    return torch.einsum("nij,nj->ni", made.hessians, x - made.centers)


def drift(made, x, rule):
    """U and Ξ by definition: K exact steps of every client from x."""
    own = x.expand(len(made.centers), -1)
    total, first = 0.0, rule(own)
    for _ in range(K):
        total += float((own - x).square().sum(1).mean())
        own = own - ETA * rule(own)
    return total / K, float((ETA * first).square().sum(1).mean())


def own_gradients(made, points):
    return torch.einsum("nij,nj->ni", made.hessians, points - made.centers)


def test_the_quantities_of_fedavg_m_are_those_of_the_proof(made):
    before, after = (played(made, kedge.FedAvgM(eta=ETA, beta=BETA), rounds) for rounds in (3, 4))
    x, g = before.server["x"], after.server["g"]
    row = after.history[-1]
    gradient = gradients(made, x).mean(0)
    assert row["gradient_norm2"] == pytest.approx(float(gradient @ gradient))
    assert row["momentum_error"] == pytest.approx(float((gradient - g).square().sum()))
    cosine = float(gradient @ g / gradient.norm() / g.norm())
    assert row["gradient_angle"] == pytest.approx(math.degrees(math.acos(cosine)))
    drifted, first = drift(made, after.server["x"], lambda p: BETA * own_gradients(made, p) + (1 - BETA) * g)
    assert row["client_drift"] == pytest.approx(drifted)
    assert row["first_step_norm2"] == pytest.approx(first)
    assert set(row) >= COLUMNS | COSTS
    assert "control_error" not in row


def test_the_control_error_of_scaffold_m_is_that_of_the_proof(made):
    before, after = (played(made, kedge.ScaffoldM(eta=ETA, beta=BETA), rounds) for rounds in (3, 4))
    x, row = before.server["x"], after.history[-1]
    controls = torch.stack([after.client(i)["c_i"] for i in range(6)])
    assert row["control_error"] == pytest.approx(float((controls - gradients(made, x)).square().sum(1).mean()))
    c, g = after.server["c"], after.server["g"]
    drifted, first = drift(
        made, after.server["x"], lambda p: BETA * (own_gradients(made, p) - controls + c) + (1 - BETA) * g
    )
    assert row["client_drift"] == pytest.approx(drifted)
    assert row["first_step_norm2"] == pytest.approx(first)


def test_without_a_kept_momentum_it_is_the_step_divided_by_its_rate(made):
    rows = [played(made, kedge.FedAvg(eta=ETA, gamma=gamma)).history[0] for gamma in (None, ETA * K)]
    assert rows[0]["momentum_error"] == pytest.approx(rows[1]["momentum_error"])
    momentum = played(made, kedge.FedAvgM(eta=ETA, beta=1.0)).history[0]
    assert rows[0]["momentum_error"] == pytest.approx(momentum["momentum_error"])


@pytest.mark.parametrize("algorithm", [kedge.FedAvgM(eta=ETA), kedge.ScaffoldMVR(eta=ETA), kedge.Mime(eta=ETA)])
def test_looking_changes_no_bit_and_charges_nothing(made, algorithm):
    noisy = kedge.quadratics(6, 4, sigma=1.0)
    plain, looked = (played(noisy, algorithm, every=every, batch_size=8) for every in (0, 1))
    assert torch.equal(plain.server["x"], looked.server["x"])
    for one, other in zip(plain.history, looked.history, strict=True):
        assert {**one, "seconds": 0} == {**{name: other[name] for name in one}, "seconds": 0}
        assert other["diagnosis_gradients"] > 0


def test_the_cost_is_what_the_questions_took(made):
    row = played(made, kedge.FedAvg(eta=ETA), rounds=1, batch_size=16).history[0]
    passes = 6 * 64 / 16
    assert row["diagnosis_gradients"] == 2 * passes + 6 * (1 + 2 + 3 + 4)  # ∇f, the first step, and K-1 drifts


def test_every_says_which_rows_and_the_last_always_is(made):
    rows = played(made, kedge.FedAvg(eta=ETA), rounds=7, every=3).history
    assert [row["round"] for row in rows if "client_drift" in row] == [3, 6, 7]
    rows = played(made, kedge.FedAvg(eta=ETA), rounds=7, every=3, eval_every=2).history
    assert [row["round"] for row in rows if "client_drift" in row] == [6, 7]


def test_what_an_algorithm_does_not_have_is_not_a_column(made):
    assert "client_drift" not in played(made, kedge.Mime(eta=ETA)).history[-1]  # two exchanges
    assert "momentum_error" not in played(made, kedge.FedAdam(eta=ETA)).history[-1]  # no server rate in that sense
    assert "client_drift" not in played(made, kedge.FedAvg(eta=ETA), local_epochs=1.0).history[-1]


def test_a_resumed_run_diagnoses_the_same(made, tmp_path):
    class Stop:
        def on_round(self, run):
            if run.round == 3:
                run.stop()

    algorithm, whole = kedge.ScaffoldM(eta=ETA), {}
    for name, stops in (("whole", []), ("broken", [Stop()])):
        given = {"cohort": 3, "local_steps": K, "batch_size": None, "loss": made.loss, "out": tmp_path / name}
        for resume, more in ((False, stops), (True, [])):
            look = [Diagnose(2), *more]
            result = kedge.simulate(
                made.model, made.federation, algorithm, rounds=6, resume=resume, callbacks=look, **given
            )
        whole[name] = [{**row, "seconds": 0} for row in result.history]
    assert whole["whole"] == whole["broken"]


def test_few_steps_give_the_mean_drift_of_many():
    assert sampled_steps(1) == []
    assert sampled_steps(8) == list(range(1, 8))
    assert sampled_steps(16)[-1] == 15
    assert mean_drift({}, 1) == 0
    for steps in (2, 8, 16, 100):
        exact = sum((k * (1 - 0.3 * k / steps)) ** 2 for k in range(steps)) / steps
        drifts = {k: (k * (1 - 0.3 * k / steps)) ** 2 for k in sampled_steps(steps)}
        assert len(drifts) <= 7
        assert mean_drift(drifts, steps) == pytest.approx(exact, rel=0.03)


def test_every_must_be_a_count():
    with pytest.raises(kedge.UsageError, match="every is 0, but must be a whole number of at least 1"):
        Diagnose(0)
