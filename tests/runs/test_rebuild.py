"""What a run made in Python writes down: a configuration that repeats it, or what is missing for that."""

import pytest
import torch

import kedge
from kedge.cli.program import execute


def federation(**options):
    return kedge.load_federation("digits", clients=8, alpha=0.3, seed=0, **options)


def model(classes=10):
    return kedge.build_model("mlp", (64,), classes, widths=[4])


def missing(out, built, data):
    kedge.simulate(built, data, kedge.FedAvg(eta=0.1), rounds=1, cohort=2, local_steps=1, batch_size=4, out=out)
    return kedge.read_run(out).config.get("python", {}).get("missing", [])


def test_what_kedge_made_and_nobody_changed_is_complete(tmp_path):
    assert missing(tmp_path / "a", model(), federation()) == []
    assert missing(tmp_path / "b", model(), federation(holdout=0.2, test_samples=20)) == []


def trained(built):
    with torch.no_grad():
        next(built.parameters()).mul_(0.5)
    return built


def frozen(built):
    next(built.parameters()).requires_grad_(False)
    return built


@pytest.mark.parametrize("change", [trained, frozen, lambda _: model(12)])
def test_a_model_that_building_it_again_would_not_make_is_missing(tmp_path, change):
    [said] = missing(tmp_path / "run", change(model()), federation())
    assert said == "the model is not the one that kedge.build_model makes for this data with this seed"


def test_a_model_of_another_precision_is_missing(tmp_path):
    assert len(missing(tmp_path / "run", model().double(), federation())) == 1


def scaled(data):
    data.features.mul_(2)
    return data


def shortened(data):
    data.test = tuple(part[:7] for part in data.test)
    return data


@pytest.mark.parametrize("change", [scaled, shortened])
def test_data_that_were_changed_after_loading_are_missing(tmp_path, change):
    said = missing(tmp_path / "run", model(), change(federation()))
    assert said == ["the federation was changed after kedge.load_federation"]


def test_a_run_that_is_extended_says_how_many_rounds_it_plays(tmp_path):
    data, out = federation(), tmp_path / "run"

    def play(rounds, callbacks=()):
        run = {
            "cohort": 2,
            "local_steps": 1,
            "batch_size": 4,
            "callbacks": callbacks,
            "out": out,
            "resume": out.exists(),
        }
        kedge.simulate(model(), data, kedge.FedAvg(eta=0.1), rounds=rounds, **run)
        return kedge.read_run(out).config["run"]["rounds"]

    class Stop:
        def on_round(self, run):
            if run.round == 5:
                run.stop()

    assert play(2) == 2
    assert play(4) == 4
    assert play(9, [Stop()]) == 9
    assert execute(["resume", str(out)]) == 0
    assert kedge.read_run(out).rows[-1]["round"] == 9
