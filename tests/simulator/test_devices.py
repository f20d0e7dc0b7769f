"""Other devices than the CPU, as far as can be seen without one: a tensor on `meta` has no data to wait for."""

import pytest
import torch
from torch import nn

import kedge
from kedge.simulator import Settings, Simulation
from tests.cases import CASES
from tests.simulator.test_cnn_engine import NETWORKS, images
from tests.simulator.test_simulation import model, small
from tests.test_contract import algorithm, named


def normed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


def without_labels(monkeypatch):
    """Leave out what reads the labels, once, before the first round."""
    monkeypatch.setattr("kedge.client.trial.check_labels", lambda *_: None)
    monkeypatch.setattr("kedge.client.trial.count_ignored", lambda *_: 0)


@pytest.mark.parametrize(("engine", "module"), [("fused-mlp", model()), ("module", model()), ("module", normed())])
@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_round_stays_on_its_device_and_never_waits_for_it(case, engine, module, monkeypatch):
    without_labels(monkeypatch)
    method = algorithm(case)
    # Few of everything: what `meta` does not have built in it works out in Python, slowly.
    settings = Settings(cohort=None if method.full_participation else 2, local_steps=2, batch_size=4)
    run = Simulation(module, small(clients=3), method, settings, device="meta", engine=engine)
    for _ in range(3):
        run.advance()  # reading a number of a meta tensor is an error
    assert {vector.device.type for vector in [*run.server.values(), *run.client(0).values(), run.moment.buffers]} == {
        "meta"
    }
    assert run.moment.gradients > 0


def test_large_groups_of_clients_share_their_operations_on_a_device(monkeypatch):
    without_labels(monkeypatch)
    settings = Settings(cohort=6, local_steps=3, batch_size=4)
    run = Simulation(model(), small(), kedge.ScaffoldM(eta=0.1), settings, device="meta")
    assert run.description() == "engine: fused-mlp, 1 thread"
    assert run._crew.pool.engines[0].group(4) >= 6


def test_convolutions_never_wait_for_their_device(monkeypatch):
    without_labels(monkeypatch)
    settings = Settings(cohort=3, local_steps=3, batch_size=4)
    run = Simulation(NETWORKS["pooled"](), images(), kedge.ScaffoldMVR(eta=0.1), settings, device="meta")
    assert run.description() == "engine: fused-cnn, 1 thread"
    for _ in range(3):
        run.advance()
