"""Schedules, local updates, reply transforms and several inputs give what the simulator gives, to the bit.

Privacy is compared without its noise, which a federation draws from secret seeds.
"""

import runpy
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import kedge
from kedge.errors import RunWarning, UsageError
from kedge.flower.agreement import Agreement
from kedge.flower.server import Server
from tests.flower.grid import World, config, digits, mlp
from tests.flower.test_equal import assert_equal

WORLDS = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "examples" / "own_worlds.py"))

EXTRAS = [
    ("fedavg", {"algorithm.eta": "cosine(0.1, 0.01, rounds=3)", "run.weight_decay": "warmup(0.01, rounds=2)"}),
    ("scaffold-m", {"run.local_update": "Clip(0.5)"}),
    ("fedavg", {"run.local_update": "Adam()"}),
    ("fedavg", {"run.local_update": "Personal('3.')"}),
    ("fedavg", {"run.reply_transforms": "TopK(0.1)"}),
    ("scaffold-m", {"run.reply_transforms": "chain(TopK(0.2), Privacy(0.1, 0.0))"}),
    ("fedavg", {"run.reply_transforms": "Privacy(0.1, 0.0, mode='local')"}),
]


@pytest.mark.parametrize(("name", "extras"), EXTRAS, ids=lambda value: "" if isinstance(value, str) else str(value))
def test_extras_equal_the_simulator_to_the_bit(name, extras, tmp_path):
    world = World(tmp_path, digits(), mlp)
    server = world.server(config(name, tmp_path / "out", 3, 2) | extras)
    server.run()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "with personal layers no client has")
        assert_equal(world, server)


def test_clients_evaluate_the_model_with_their_personal_layers_and_the_server_evaluates_none(tmp_path):
    world = World(tmp_path, digits(), mlp)
    wanted = config("fedavg", tmp_path / "out", 3, 3, flower__eval_clients=True)
    world.server(wanted | {"run.local_update": "Personal('3.')"}).run()
    last = kedge.read_run(tmp_path / "out").rows[-1]
    assert not any(name.startswith("test_") for name in last)
    before = world.server(wanted | {"run.rounds": 2, "run.local_update": "Personal('3.')"})._agreed
    with pytest.warns(RunWarning, match="with personal layers"):
        played = kedge.simulate(
            mlp(), world.federation, before.algorithm, 2, engine="module", threads=1, **before.settings.values()
        )
    # All clients of this test have the server's test data, and received the model of the round before.
    features, labels = world.federation.test
    models = [played.simulation.client_model(client) for client in range(3)]
    right = [float((model(features).argmax(1) == labels).double().mean()) for model in models]
    assert last["cohort_accuracy"] == pytest.approx(sum(right) / 3)
    assert len(set(right)) > 1


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, left, right):
        return self.layer(torch.cat([left, right], 1))


@pytest.mark.parametrize("form", [tuple, dict])
def test_both_ends_evaluate_models_of_several_inputs(form, tmp_path):
    def halved(samples):
        x, labels = samples[0].double().numpy(), samples[1].numpy().astype(np.int16)  # as users have them
        return ((x[:, :32], x[:, 32:]) if form is tuple else {"left": x[:, :32], "right": x[:, 32:]}), labels

    whole = digits()
    data = kedge.Federation([halved(whole.client(client)) for client in range(3)], halved(whole.test))
    torch.manual_seed(0)
    model = TwoInputs()
    world = World(tmp_path, data, lambda: model)
    wanted = config("scaffold-m", tmp_path / "out", 2, 3, flower__eval_clients=True)
    grid = world.grid(wanted)
    grid.app = kedge.flower.client_app(
        model, lambda context: halved(whole.client(kedge.flower.client_number(context))),
        load_test=lambda context: halved(whole.test),
    )  # fmt: skip
    server = Server(grid, Agreement.read(wanted), model, halved(whole.test), sleep=lambda seconds: None)
    server.run()
    played = assert_equal(world, server)
    first, last = kedge.read_run(tmp_path / "out").rows
    assert last["test_loss"] == played.history[-1]["test_loss"]
    assert last["cohort_loss"] == pytest.approx(first["test_loss"])


def test_test_data_without_a_label_per_sample_is_one_sentence(tmp_path):
    world = World(tmp_path, digits(), mlp)
    agreed = Agreement.read(config("fedavg", tmp_path / "out", 1, 2))
    features, labels = world.federation.test
    with pytest.raises(UsageError, match="the test features have 50 rows, but there are 49 labels"):
        Server(world.grid({}), agreed, mlp(), (features, labels[1:]))


def test_inputs_of_any_structure_are_evaluated_by_the_server_and_by_the_clients(tmp_path):
    torch.manual_seed(0)
    model, federation, _ = WORLDS["lora"]()  # a dict of inputs, outputs with logits
    world = World(tmp_path, federation, lambda: model)
    wanted = config("fedavg", tmp_path / "out", 2, 5, flower__eval_clients=True, data__clients=5)
    world.server(wanted).run()
    first, last = kedge.read_run(tmp_path / "out").rows
    played = kedge.simulate(model, federation, kedge.FedAvg(eta=0.05), 2, 5, 3, 4, seed=5)
    assert last["test_loss"] == pytest.approx(played.history[-1]["test_loss"])
    assert last["test_accuracy"] == played.history[-1]["test_accuracy"]
    assert last["cohort_accuracy"] == first["test_accuracy"]  # all clients of this test have the server's test data
