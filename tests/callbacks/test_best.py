"""Early stopping and the best model depend on the history alone, so a resumed run agrees with an uninterrupted one."""

import math

import pytest
import torch
from safetensors import safe_open

import kedge
from kedge.callbacks import EarlyStopping, KeepBest
from kedge.callbacks.best import BEST

PROBLEM = kedge.quadratics(clients=4, dim=3, sigma=1.0, samples=12, seed=1)


class Scripted:
    """Gives every evaluated round a value of its own."""

    def __init__(self, *values):
        self.values = values

    def on_evaluate(self, run, row):
        row["score"] = self.values[int(row["round"]) - 1]


def play(*callbacks, rounds=8, **options):
    settings = {"rounds": rounds, "cohort": 2, "local_steps": 1, "batch_size": 4, "loss": PROBLEM.loss} | options
    return kedge.simulate(PROBLEM.model, PROBLEM.federation, kedge.FedAvg(eta=0.01), callbacks=callbacks, **settings)


@pytest.mark.parametrize(
    ("options", "values", "stops"),
    [
        ({"patience": 2}, [1, 2, 2, 2, 3, 4, 5, 6], 4),
        ({"patience": 3}, [1, 2, 2, 2, 3, 4, 5, 6], 8),
        ({"patience": 2, "higher": False}, [1, 2, 3, 0, 0, 0, 0, 0], 3),
        ({"patience": 2, "min_delta": 1.0}, [1, 1.5, 2.5, 3.1, 3.2, 3.3, 9, 9], 5),
    ],
)
def test_a_run_stops_when_patience_ends(options, values, stops):
    result = play(Scripted(*values), EarlyStopping("score", **options))
    assert result.simulation.round == stops


@pytest.mark.parametrize(
    ("values", "best"), [([0.5, 0.9, math.nan, 0.7], (2, 0.9)), ([math.nan, 0.2, 0.1, 0.1], (2, 0.2))]
)
def test_nan_is_never_the_best(values, best, tmp_path):
    kept = KeepBest("score")
    play(Scripted(*values), kept, rounds=4, out=tmp_path / "run")
    assert (kept.round, kept.value) == best
    with safe_open(tmp_path / "run" / BEST, "pt") as file:
        assert file.metadata()["round"] == str(best[0])


def test_a_loss_is_better_if_lower():
    assert play(EarlyStopping("test_loss", patience=1, min_delta=1e9), eval_every=1).simulation.round == 2


def test_early_stopping_and_the_best_model_survive_an_interruption(tmp_path):
    class Enough:
        def on_round(self, run):
            if run.round == 3:
                run.stop()

    values = [1, 5, 2, 3, 4, 4, 4, 9]
    stop, best = EarlyStopping("score", patience=4), KeepBest("score")
    whole = play(Scripted(*values), stop, best)
    play(Scripted(*values), EarlyStopping("score", patience=4), KeepBest("score"), Enough(), out=tmp_path / "run")
    again = KeepBest("score")
    resumed = play(Scripted(*values), EarlyStopping("score", patience=4), again, out=tmp_path / "run", resume=True)
    assert resumed.simulation.round == whole.simulation.round == 6
    assert torch.equal(resumed.server["x"], whole.server["x"])
    assert (again.round, again.value) == (best.round, best.value) == (2, 5)
    assert torch.equal(again.model.x, best.model.x)
    assert not torch.equal(best.model.x, whole.model.x)
    (tmp_path / "run" / BEST).write_bytes(b"damaged")
    later = KeepBest("score")
    play(Scripted(*values), later, out=tmp_path / "run", resume=True)
    assert (later.round, later.value) == (8, 9)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EarlyStopping(patience=0), "patience is 0, but must be a whole number of at least 1"),
        (lambda: EarlyStopping(min_delta=-1), "min_delta is -1, but must be finite"),
        (lambda: play(KeepBest("f1")), "metric is 'f1', but a row has only round"),
    ],
)
def test_a_wrong_setting_is_named(make, message):
    with pytest.raises((kedge.UsageError, kedge.CallbackError), match=message):
        make()
