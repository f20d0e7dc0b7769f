"""Own metrics, tests of the clients' own, and what a result shows."""

import os
import runpy
import signal
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import kedge

RNG = np.random.default_rng(0)


def digits_like(clients=5, samples=20, **options):
    parts = [(RNG.normal(size=(samples, 6)).astype("float32"), RNG.integers(0, 3, samples)) for _ in range(clients)]
    test = (RNG.normal(size=(3000, 6)).astype("float32"), RNG.integers(0, 3, 3000))
    return kedge.Federation(parts, test, **options)


def play(federation, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    settings = {"rounds": 4, "cohort": 2, "local_steps": 2, "batch_size": 4, "eval_every": 2} | options
    return kedge.simulate(model, federation, kedge.ScaffoldM(eta=0.1), **settings)


def accuracy(outputs, targets):
    return (outputs.argmax(1) == targets).float().mean()


def test_metrics_become_columns_and_change_no_bit(tmp_path):
    torchmetrics = pytest.importorskip("torchmetrics")
    from sklearn.metrics import f1_score

    federation = digits_like()
    theirs = torchmetrics.F1Score(task="multiclass", num_classes=3, average="macro")
    metrics = {
        "own_accuracy": accuracy,
        "f1": lambda outputs, targets: f1_score(targets, outputs.argmax(1), average="macro"),
        "theirs": theirs,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = play(federation, metrics=metrics, out=tmp_path / "run", eval_clients=True)
    plain = play(federation)
    assert torch.equal(result.server["x"], plain.server["x"])
    for row in result.history:
        assert row["test_own_accuracy"] == pytest.approx(row["test_accuracy"])
        assert row["test_f1"] == pytest.approx(row["test_theirs"])
        assert {"clients_f1", "clients_f1_worst_decile", "clients_theirs"} <= set(row)
    assert kedge.read_run(tmp_path / "run").rows == result.history
    theirs.update(torch.eye(3), torch.arange(3))  # still the user's own
    assert len(result.evaluate_clients()) == 5


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"loss": accuracy}, "a metric is called 'loss', but its name must be a word other than loss"),
        ({"two words": accuracy}, "a metric is called 'two words'"),
        ({"f1": 3}, "the metric f1 is 3, but must be a function"),
        ([accuracy], "but must be a dict of names and functions"),
        ({"f1": lambda o, t: "good"}, "the metric f1 returned 'good', but it must be one number"),
        ({"f1": lambda o, t: o}, r"the metric f1 returned a tensor of shape \(3000, 3\), but it must be one number"),
        ({"f1": lambda o, t: 1 / 0}, r"the metric f1 fails on outputs and targets of shapes \(3000, 3\) and \(3000,\)"),
    ],
)
def test_a_wrong_metric_is_named(metrics, message):
    with pytest.raises(kedge.UsageError, match=message):
        play(digits_like(), metrics=metrics)


def test_metrics_need_something_to_be_evaluated_on():
    federation = kedge.Federation([(np.zeros((4, 6), "float32"), np.arange(4) % 3)] * 2)
    with pytest.raises(kedge.UsageError, match="the federation has no test set"):
        play(federation, metrics={"own": accuracy})
    assert "clients_own" in play(federation, metrics={"own": accuracy}, eval_clients=True).history[-1]


def test_a_share_of_every_client_is_split_off_for_its_test():
    whole, divided = (digits_like(client_tests=share) for share in (None, 0.25))
    assert whole.client_tests is None
    assert list(divided.sizes) == [15] * 5
    assert list(divided.client_tests.sizes) == [5] * 5
    for i in range(5):
        rows = torch.cat([divided.client(i)[0], divided.client_tests.client(i)[0]])
        assert len(rows.unique(dim=0)) == 20
    row = play(divided, eval_clients=True).history[-1]
    assert {"clients_test_loss", "clients_test_accuracy", "clients_test_accuracy_worst_decile"} <= set(row)
    assert "clients_loss" not in row


def test_test_sets_of_the_clients_may_be_given_by_name():
    parts = {name: (np.full((4, 6), i, "float32"), np.arange(4) % 3) for i, name in enumerate(["ann", "bob"])}
    tests = {name: (np.full((2, 6), 10 + i, "float32"), np.arange(2)) for i, name in enumerate(["bob", "ann"])}
    federation = kedge.Federation(parts, client_tests=tests)
    assert federation.names == ("ann", "bob")
    assert float(federation.client_tests.client(0)[0][0, 0]) == 11
    result = play(federation, eval_clients=True)
    each = result.evaluate_clients()
    values = [one["loss"] for one in each]
    assert result.history[-1]["clients_test_loss"] == pytest.approx(np.mean(values))
    assert result.history[-1]["clients_test_loss_worst_decile"] == pytest.approx(max(values))


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        (1.5, "client_tests is 1.5, but must be test sets or a share between 0 and 1"),
        (True, "client_tests is True, but must be"),
        ([(np.zeros((1, 6), "float32"), [0])], "client_tests has 1 test sets, but there are 5 clients"),
        ({"ann": (np.zeros((1, 6), "float32"), [0])}, "its keys are not those of clients"),
        ([(np.zeros((1, 7), "float32"), [0])] * 5, r"client_tests has features of shape \(7,\)"),
    ],
)
def test_wrong_test_sets_are_refused(tests, message):
    with pytest.raises(kedge.UsageError, match=message):
        digits_like(client_tests=tests)


def test_a_result_is_short_and_can_be_tabled_and_drawn(tmp_path):
    result = play(digits_like())
    assert repr(result).startswith("Result(ScaffoldM after 4 rounds: test_loss ")
    assert len(repr(result)) < 200
    assert len(repr(result.simulation)) < 250
    table = result.to_pandas()
    assert list(table["round"]) == [2, 4]
    picture = result.plot()
    picture.savefig(tmp_path / "curves.png")
    assert all(tick == int(tick) for tick in picture.axes[0].get_xticks())
    assert result.plot("step_norm")._repr_png_()[:4] == b"\x89PNG"
    with pytest.raises(kedge.UsageError, match="the history has no column 'f1'; it has round, test_loss"):
        result.plot("f1")


def test_ctrl_c_returns_what_there_is_and_the_run_can_be_resumed(tmp_path, capfd):
    class Impatient:
        def on_round(self, run):
            if run.round == 2:
                os.kill(os.getpid(), signal.SIGINT)

    federation = digits_like()
    assert threading.current_thread() is threading.main_thread()
    stopped = play(federation, callbacks=[Impatient()], out=tmp_path / "run")
    assert stopped.simulation.round == 2
    assert "stopping after this round" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    resumed = play(federation, out=tmp_path / "run", resume=True)
    assert torch.equal(resumed.server["x"], play(federation).server["x"])


def test_the_worst_tenth_of_an_error_is_the_largest_and_a_collection_of_torchmetrics_has_several_names():
    import torchmetrics

    rng = np.random.default_rng(0)
    parts = [(x, x[:, :1] * place) for place in range(5) for x in [rng.normal(size=(6, 3)).astype("float32")]]
    own = {"mae": lambda outputs, targets: (outputs - targets).abs().mean()}
    settings = {"rounds": 1, "cohort": 5, "batch_size": 3, "loss": nn.MSELoss(), "eval_clients": True}
    federation = kedge.Federation(parts, test=parts[0])
    result = kedge.simulate(nn.Linear(3, 1), federation, kedge.FedAvg(eta=0.01), metrics=own, **settings)
    values = [each["mae"] for each in result.evaluate_clients()]
    assert result.history[-1]["clients_mae_worst_decile"] == pytest.approx(max(values))
    assert max(values) > min(values)
    several = torchmetrics.MetricCollection([torchmetrics.MeanSquaredError(), torchmetrics.MeanAbsoluteError()])
    row = kedge.simulate(nn.Linear(3, 1), federation, kedge.FedAvg(eta=0.01), metrics=several, **settings).history[-1]
    assert row["test_MeanSquaredError"] == pytest.approx(row["test_loss"], rel=1e-5)
    assert {"test_MeanAbsoluteError", "clients_MeanAbsoluteError_worst_decile"} <= set(row)


KILLED = """
import os, signal, sys
import numpy as np, torch
from sklearn.metrics import f1_score
from torch import nn
import kedge

def f1(outputs, targets):
    return f1_score(targets, outputs.argmax(1), average="macro")

class Killer:
    def on_round(self, run):
        if run.round == 6:
            os.kill(os.getpid(), signal.SIGKILL)

def play(threads=1, callbacks=(), **options):
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    parts = {name: (rng.normal(size=(20, 4)).astype("float32"), rng.integers(0, 3, 20)) for name in "abcdefg"}
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    stop = kedge.callbacks.EarlyStopping("clients_test_f1", patience=5)
    algorithm = kedge.ScaffoldM(eta=lambda round: 0.3 / (1 + round), beta=kedge.schedules.cosine(0.2, 0.8, rounds=9))
    federation = kedge.Federation(parts, test=parts["a"], client_tests=0.3)
    return kedge.simulate(
        model, federation, algorithm, rounds=40, cohort=3, batch_size=4, local_steps=3, metrics={"f1": f1},
        eval_clients=True, threads=threads, checkpoint_every=2, callbacks=[stop, *callbacks], **options,
    )

if __name__ == "__main__":
    play(out=sys.argv[1], callbacks=[Killer()])
"""


def test_metrics_client_tests_schedules_and_early_stopping_are_exact_on_any_threads_and_after_a_kill(tmp_path):
    file = tmp_path / "killed.py"
    file.write_text(KILLED)
    ended = subprocess.run([sys.executable, file, tmp_path / "run"], check=False)
    assert ended.returncode == -signal.SIGKILL
    play = runpy.run_path(str(file))["play"]
    whole, three, resumed = play(), play(threads=3), play(out=tmp_path / "run", resume=True)
    assert 6 < whole.simulation.round < 40
    for other in (three, resumed):
        assert torch.equal(other.server["x"], whole.server["x"])
        rows = ([{k: v for k, v in row.items() if k != "seconds"} for row in each.history] for each in (whole, other))
        assert next(rows) == next(rows)
