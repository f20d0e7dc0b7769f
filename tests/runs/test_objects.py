"""Comparisons and sweeps of objects, as the commands of the same names do them."""

import math
import os
import signal

import numpy as np
import pytest
import torch
from torch import nn

import kedge

SETTINGS = {"rounds": 6, "cohort": 2, "local_steps": 2, "batch_size": 4, "eval_every": 2}


def problem(seed=0):
    rng = np.random.default_rng(seed)
    parts = [rng.normal(size=(20, 5)).astype("float32") for _ in range(4)]
    test = rng.normal(size=(60, 5)).astype("float32")
    return kedge.Federation([(x, x[:, :3].argmax(1)) for x in parts], test=(test, test[:, :3].argmax(1)))


def linear(seed):
    torch.manual_seed(seed)
    return nn.Linear(5, 3)


def test_a_comparison_holds_every_result_and_says_what_was_compared(tmp_path):
    algorithms = {"slow": kedge.FedAvg(eta=0.01), "m": kedge.ScaffoldM(eta=0.1, beta=0.3)}
    found = kedge.compare(linear, problem(), algorithms, seeds=2, out=tmp_path, **SETTINGS)
    assert [row["algorithm"] for row in found.rows()] == ["slow", "m"]
    row = found.rows()[1]
    assert (row["eta"], row["beta"], row["seeds"]) == (0.1, 0.3, 2)
    finals = [result.history[-1]["test_accuracy"] for result in found.results["m"]]
    assert row["test_accuracy"] == pytest.approx(np.mean(finals))
    assert row["test_accuracy_std"] == pytest.approx(np.std(finals, ddof=1))
    text = repr(found)
    assert "± is the standard deviation over the seeds" in text
    assert len(text.splitlines()) == 4
    plain = kedge.simulate(linear(1), problem(), kedge.ScaffoldM(eta=0.1, beta=0.3), **SETTINGS, seed=1)
    assert torch.equal(found.results["m"][1].server["x"], plain.server["x"])
    again = kedge.compare(linear, problem(), algorithms, seeds=2, out=tmp_path, **SETTINGS)
    assert again.rows() == found.rows()
    assert list(found.to_pandas()["algorithm"]) == ["slow", "m"]
    assert found.plot("test_loss")._repr_png_()


def test_a_run_that_diverges_is_told_apart():
    made = kedge.quadratics(clients=4, dim=3)
    found = kedge.compare(made.model, made.federation, [kedge.FedAvg(eta=1e30)], seeds=1, loss=made.loss, **SETTINGS)
    assert found.rows()[0]["diverged"] == 1
    assert "diverged" in repr(found)


class Column:
    """Adds a column, with a value for every run."""

    def __init__(self, *values):
        self.values = iter(values)

    def on_start(self, run):
        self.value = next(self.values)

    def on_evaluate(self, run, row):
        row["own"] = self.value


def test_nan_in_another_column_does_not_make_a_point_diverged():
    settings = SETTINGS | {"callbacks": [Column(1.0, 1.0, *[math.nan] * 4)]}
    found = kedge.sweep(linear, problem(), kedge.FedAvg, {"eta": [0.001, 0.5]}, seeds=2, **settings)
    assert found.best == {"eta": 0.5}
    assert [result.history[-1]["own"] for result in found.final.results] == pytest.approx([math.nan] * 2, nan_ok=True)
    assert found.final.row()["seeds"] == 2


@pytest.mark.parametrize("worst", [math.nan, math.inf, -math.inf])
def test_a_point_is_not_chosen_for_a_value_that_is_not_finite(worst):
    grid, settings = {"eta": [0.001, 0.5]}, SETTINGS | {"seeds": 2, "metric": "own"}
    own = settings | {"callbacks": [Column(worst, 1.0, *[0.1] * 4)]}
    found = kedge.sweep(linear, problem(), kedge.FedAvg, grid, **own)
    assert found.best == {"eta": 0.5}
    assert [row["own"] for row in found.rows()] == [pytest.approx(0.1), None]
    own = settings | {"callbacks": [Column(*[worst] * 4)]}
    with pytest.raises(kedge.UsageError, match="no point of the grid has a finite own, so there is no best one"):
        kedge.sweep(linear, problem(), kedge.FedAvg, grid, **own)


def test_a_sweep_of_which_all_diverge_says_so():
    made = kedge.quadratics(clients=4, dim=3)
    with pytest.raises(kedge.UsageError, match="every point of the grid diverged"):
        kedge.sweep(
            made.model, made.federation, kedge.FedAvg, {"eta": [1e29, 1e30]}, seeds=1, holdout=0, metric="test_loss",
            loss=made.loss, **SETTINGS,
        )  # fmt: skip


def test_a_run_that_a_callback_stopped_has_not_diverged():
    class Enough:
        def on_round(self, run):
            if run.round == 3:
                run.stop()

    settings = SETTINGS | {"callbacks": [Enough()]}
    found = kedge.sweep(linear, problem(), kedge.FedAvg, {"eta": [0.001, 0.5]}, seeds=1, **settings)
    assert found.best == {"eta": 0.5}


def test_ctrl_c_ends_a_comparison_which_resumes(tmp_path):
    class Impatient:
        def on_round(self, run):
            if run.round == 3:
                os.kill(os.getpid(), signal.SIGINT)

    methods = [kedge.FedAvg(eta=0.1)]
    with pytest.raises(KeyboardInterrupt):
        kedge.compare(linear, problem(), methods, seeds=2, out=tmp_path, callbacks=[Impatient()], **SETTINGS)
    resumed = kedge.compare(linear, problem(), methods, seeds=2, out=tmp_path, **SETTINGS)
    assert resumed.rows() == kedge.compare(linear, problem(), methods, seeds=2, **SETTINGS).rows()


def test_a_sweep_chooses_on_held_out_samples_and_reports_the_test_set():
    data = problem()
    grid = {"eta": [0.001, 0.5], "local_steps": [1, 4]}
    settings = {key: value for key, value in SETTINGS.items() if key != "local_steps"}
    found = kedge.sweep(linear, data, kedge.FedAvgM(eta=1.0, beta=0.5), grid, seeds=2, holdout=0.2, **settings)
    assert found.best["eta"] == 0.5
    assert len(found.rows()) == 4
    assert "held_out_accuracy" in found.rows()[0]
    assert found.final.algorithm == kedge.FedAvgM(eta=0.5, beta=0.5)
    assert len(found.final.results[0].simulation.federation.test[1]) == 60
    assert "chosen on 0.2 of every client's samples" in repr(found)
    on_test = kedge.sweep(linear, data, kedge.FedAvgM, {"eta": [0.5]}, seeds=1, holdout=0, **SETTINGS)
    assert "chosen on the test set" in repr(on_test)


def test_held_out_samples_are_the_same_for_every_seed_and_never_trained_on():
    data = problem()
    one, two = data.held_out(0.25), data.held_out(0.25)
    assert torch.equal(one.test[0], two.test[0])
    trained = torch.cat([one.client(i)[0] for i in range(4)])
    assert len(torch.cat([trained, one.test[0]]).unique(dim=0)) == 80
    assert (list(one.sizes), len(one.test[1])) == ([15] * 4, 20)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: kedge.compare(linear, problem(), []), "algorithms is empty"),
        (lambda: kedge.compare(linear, problem(), [kedge.FedAvg(eta=1), kedge.FedAvg(eta=2)]), "holds fedavg twice"),
        (lambda: kedge.compare(linear, problem(), {"a": "fedavg"}), "algorithms holds 'fedavg', but must hold"),
        (lambda: kedge.compare(linear, problem(), [kedge.FedAvg]), "algorithms holds <class .*FedAvg'>, but must hold"),
        (
            lambda: kedge.compare(linear, problem(), kedge.FedAvg(eta=1)),
            "algorithms is FedAvg.*must be a dict or a list",
        ),
        (
            lambda: kedge.sweep(linear, problem(), kedge.FedAvg, {"local_steps": [1]}),
            "FedAvg needs eta, but the grid has",
        ),
        (lambda: kedge.sweep(linear, problem(), kedge.FedAvg, {}), "grid is empty"),
        (lambda: kedge.sweep(linear, problem(), kedge.FedAvg, {"eta": 0.1}), "grid has eta=0.1, but must list"),
        (lambda: kedge.sweep(linear, problem(), kedge.FedAvg, {"seed": [1]}), "grid names seed"),
        (lambda: kedge.sweep(linear, problem(), kedge.FedAvg, {"eta": [1.0]}, holdout=2), "holdout is 2, but must be"),
        (
            lambda: kedge.sweep(linear, problem(), kedge.FedAvg, {"eta": [0.1]}, metric="test_f1", seeds=1, **SETTINGS),
            "metric 'test_f1' does not exist",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence(make, message):
    with pytest.raises(kedge.UsageError, match=message):
        make()


def test_a_sweep_that_chooses_by_the_clients_own_test_sets_holds_those_back_too():
    data = problem()
    own = kedge.Federation([data.client(i) for i in range(len(data))], test=data.test, client_tests=0.2)
    held = own.held_out(0.25)
    trained, tests = (
        torch.cat([each.client(i)[0] for i in range(len(own))]) for each in (held, own.client_tests)
    )  # fmt: skip
    chosen_on = torch.cat([held.client_tests.client(i)[0] for i in range(len(own))])
    everything = torch.cat([trained, chosen_on, tests])
    assert len(everything) == len(everything.unique(dim=0)) == int(data.sizes.sum())
    assert torch.equal(chosen_on, held.test[0])
    settings = SETTINGS | {"metric": "clients_test_accuracy", "eval_clients": True, "seeds": 1}
    found = kedge.sweep(linear, own, kedge.FedAvg, {"eta": [0.5]}, **settings)
    on_held = kedge.simulate(linear(0), own.held_out(0.1), kedge.FedAvg(eta=0.5), eval_clients=True, **SETTINGS)
    assert found.rows()[0]["clients_held_out_accuracy"] == on_held.history[-1]["clients_test_accuracy"]


def test_a_client_with_one_sample_holds_none_out():
    parts = [(np.full((n, 5), float(n), "float32"), np.zeros(n, int)) for n in (1, 2, 9)]
    held = kedge.Federation(parts).held_out(0.3)
    assert list(held.sizes) == [1, 1, 6]
    assert len(held.test[1]) == 4
    with pytest.raises(kedge.UsageError, match=r"holdout is 0\.3, but no client has more than one sample"):
        kedge.Federation(parts[:1]).held_out(0.3)
    lonely = kedge.Federation(parts, client_tests=parts)
    with pytest.raises(kedge.UsageError, match=r"holdout is 0\.3, but client 0 has only one sample to train on"):
        lonely.held_out(0.3)


def test_a_grid_may_be_an_array_and_a_metric_that_does_not_exist_is_noticed_at_the_first_point():
    found = kedge.sweep(linear, problem(), kedge.FedAvg, {"eta": np.logspace(-2, -1, 2)}, seeds=1, **SETTINGS)
    assert {row["eta"] for row in found.rows()} == {0.01, 0.1}
    played = []

    def model(seed):
        played.append(seed)
        return linear(seed)

    with pytest.raises(kedge.UsageError, match="metric 'test_f1' does not exist"):
        kedge.sweep(model, problem(), kedge.FedAvg, {"eta": [0.1, 0.2]}, metric="test_f1", seeds=1, **SETTINGS)
    assert played == [0]
