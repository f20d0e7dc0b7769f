"""The public names."""

import inspect

import pytest

import kedge
from kedge.runs.config import algorithm_of, check


def test_every_public_name_exists_and_is_documented():
    for name in set(kedge.__all__) - {"Vector"}:  # torch's Tensor by another name
        thing = getattr(kedge, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert thing.__doc__, name


def test_algorithms_are_public_classes_under_their_ids():
    for kind in kedge.ALGORITHMS.values():
        assert getattr(kedge, kind.__name__) is kind


def test_simulate_has_the_promised_signature():
    parameters = inspect.signature(kedge.simulate).parameters
    promised = {
        "model": ..., "federation": ..., "algorithm": ..., "rounds": 100, "cohort": 10, "local_steps": 16,
        "batch_size": 32, "loss": None, "weight_decay": 0.0, "seed": 0, "eval_every": 1, "device": "cpu", "out": None,
    }  # fmt: skip
    assert list(parameters)[: len(promised)] == list(promised)
    for name, default in promised.items():
        assert default is ... or parameters[name].default == default


def test_fedcm_is_another_name_of_fedavg_m():
    assert kedge.find_algorithm("fedcm") is kedge.FedAvgM
    with pytest.raises(kedge.UsageError, match="did you mean 'scaffold-m'"):
        kedge.find_algorithm("scafold-m")


OWN = """
from __future__ import annotations
from dataclasses import dataclass
import kedge
from kedge.algorithm import hyper

@dataclass(frozen=True)
class Own(kedge.FedAvg):
    often: int = hyper(3, help="times")
"""


def test_an_algorithm_of_a_file_has_its_own_hyper_parameters(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(OWN)
    with pytest.raises(kedge.UsageError, match=r"own\.py has changed, or nobody has consented"):
        check({"algorithm": {"name": f"{file}:Own"}})
    kedge.find_algorithm(f"{file}:Own")  # who calls this has named it
    made = algorithm_of(check({"algorithm": {"name": f"{file}:Own", "eta": 1, "often": 2}}))
    assert (type(made.eta), type(made.often)) == (float, int)
    with pytest.raises(kedge.UsageError, match=r"often of Own is 1\.5, but must be a whole number"):
        check({"algorithm": {"name": f"{file}:Own", "often": 1.5}})
    with pytest.raises(kedge.UsageError, match="has no Other"):
        kedge.find_algorithm(f"{file}:Other")
    file.write_text("table = {}['Own']")
    with pytest.raises(kedge.UsageError, match="cannot be run: KeyError"):
        kedge.find_algorithm(f"{file}:Own")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: kedge.FedAvg(eta=0), "eta of FedAvg is 0, but must be above 0"),
        (lambda: kedge.FedAvg(eta=float("nan")), "must be a finite number"),
        (lambda: kedge.FedAvg(eta="big"), "must be a finite number"),
        (
            lambda: kedge.Scaffold(eta=0.1, opening_batches=1.5),
            "opening_batches of Scaffold is 1.5, but must be a whole",
        ),
        (lambda: kedge.BVRLSGD(eta=0.1, stage_rounds=2.5), "stage_rounds of BVRLSGD is 2.5, but must be a whole"),
        (lambda: kedge.FedAvgM.from_hat(eta_hat=0.1, beta=0), "beta of FedAvgM is 0, but must be above 0"),
        (lambda: kedge.ScaffoldM.from_hat(eta_hat=0.1, beta=0), "beta of ScaffoldM is 0, but must be above 0"),
        (lambda: kedge.cost("fedavg"), "algorithm is 'fedavg', but must be a kedge.Algorithm"),
        (lambda: kedge.build_model("mlp", 64, 10), "input_shape is 64, but must be a shape"),
        (lambda: kedge.FedAvgM(eta=0.1, beta=0), "beta of FedAvgM is 0, but must be above 0 and at most 1"),
        (lambda: kedge.ScaffoldM(eta=0.1, beta=1.5), "beta of ScaffoldM is 1.5"),
        (lambda: kedge.MBStorm(eta=0.1, opening_batches=0), "opening_batches of MBStorm is 0, but must be at least 1"),
        (lambda: kedge.CELSGD(eta=0.1, output="some"), "must be one of one, average"),
    ],
)
def test_a_hyper_parameter_out_of_range_is_named_with_its_rule(make, message):
    with pytest.raises(kedge.UsageError, match=message):
        make()
