"""Inputs of any structure, lazy data and labels of any kind: trained, bit-identical on any threads and when resumed."""

import random
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset as Table
from torch import nn

import kedge
from kedge.client import Client
from kedge.samples import Eager, Lazy

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
NAMES = runpy.run_path(str(EXAMPLES / "own_worlds.py"))
WORLDS = NAMES["WORLDS"]


def play(world, **options):
    torch.manual_seed(0)
    model, federation, more = world()
    settings = {"rounds": 4, "cohort": 2, "local_steps": 3, "batch_size": 4, "eval_every": 2} | more | options
    return kedge.simulate(model, federation, settings.pop("algorithm", kedge.ScaffoldM(eta=0.1)), **settings)


class Enough:
    def on_round(self, run):
        if run.round == 2:
            run.stop()


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.__name__)
def test_a_world_learns_and_is_bit_identical_on_any_threads_and_when_resumed(world, tmp_path):
    one = play(world, threads=1, rounds=30, eval_every=15)
    start, end = one.history[0], one.history[-1]
    assert end["test_loss"] < start["test_loss"] or end["test_loss"] < 0.1
    three = play(world, threads=3, rounds=30, eval_every=15)
    play(world, callbacks=[Enough()], out=tmp_path / "run", rounds=30, eval_every=15)
    resumed = play(world, out=tmp_path / "run", resume=True, rounds=30, eval_every=15)
    for other in (three, resumed):
        assert torch.equal(one.server["x"], other.server["x"])
        rows = ([{k: v for k, v in row.items() if k != "seconds"} for row in each.history] for each in (one, other))
        assert next(rows) == next(rows)


@pytest.mark.parametrize("method", [kedge.FedAvgMVR(eta=0.05), kedge.Mime(eta=0.05), kedge.Stem(eta=0.05)], ids=repr)
def test_every_gradient_of_a_step_sees_the_same_transforms(method):
    """At a second point, the very samples of the first: otherwise variance reduction would add noise."""
    result = play(NAMES["augmentation"], algorithm=method, cohort=None, threads=2)
    again = play(NAMES["augmentation"], algorithm=method, cohort=None, threads=1)
    assert torch.equal(result.server["x"], again.server["x"])


def test_lazy_samples_are_keyed_and_leave_the_callers_random_state_alone():
    class Noise(torch.utils.data.Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, i):
            drawn = [random.random(), float(np.random.rand()), float(torch.rand(()))]  # noqa: NPY002
            return torch.tensor(drawn), i % 2

    before = random.getstate(), torch.get_rng_state()
    lazy = Lazy([Noise(), Noise()], [3, 3])
    first, second, again = (lazy.take(torch.tensor([0, 5]), seed)[0] for seed in (1, 2, 1))
    assert torch.equal(first, again)
    assert not (first == second).any()
    assert before[0] == random.getstate()
    assert torch.equal(before[1], torch.get_rng_state())
    federation = kedge.Federation([Noise(), Noise()], lazy=True)
    assert repr(federation) == "Federation(2 clients, 6 samples of shape (3,), made when needed, no test set)"
    assert torch.equal(federation.client(1)[0], federation.client(1)[0])


def test_the_transforms_differ_from_epoch_to_epoch():
    seen = []

    class Watched(NAMES["Shaky"]):
        def __getitem__(self, i):
            image, label = super().__getitem__(i)
            seen.append((i, float(image.sum())))
            return image, label

    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 2))
    federation = kedge.Federation([Watched(0)], lazy=True)
    seen.clear()
    kedge.simulate(model, federation, kedge.FedAvg(eta=0.1), rounds=2, cohort=1, local_steps=2, batch_size=None)
    last = [value for i, value in seen if i == 3][-4:]
    assert len(set(last)) == 4


def test_a_dict_is_keyword_arguments_and_a_tuple_positional_ones():
    rng = np.random.default_rng(0)
    a, b, y = rng.integers(0, 20, 12), rng.normal(size=(12, 6)).astype("float32"), rng.normal(size=12).astype("float32")
    results = []
    for features in ((a, b), {"film": b, "user": a}):
        torch.manual_seed(0)
        federation = kedge.Federation([(features, y)] * 2, test=(features, y))
        settings = {"rounds": 2, "cohort": None, "batch_size": 4, "loss": nn.MSELoss()}
        results.append(kedge.simulate(NAMES["Towers"](), federation, kedge.FedAvg(eta=0.01), **settings))
    assert torch.equal(results[0].server["x"], results[1].server["x"])
    assert results[0].history[-1]["test_loss"] == results[1].history[-1]["test_loss"]


def test_ignored_labels_count_nowhere():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(10, 4)).astype("float32"), rng.integers(0, 3, 10)
    hidden = y.copy()
    hidden[4:] = -100

    def end(labels, rows):
        torch.manual_seed(0)
        federation = kedge.Federation([(x[rows], labels[rows])], test=(x, hidden))
        settings = {"rounds": 3, "cohort": 1, "batch_size": None}
        return kedge.simulate(nn.Linear(4, 3), federation, kedge.FedAvg(eta=0.1), **settings)

    some, all_ = end(y, slice(0, 4)), end(hidden, slice(0, 10))
    torch.testing.assert_close(some.server["x"], all_.server["x"], rtol=1e-5, atol=1e-6)
    row, model = all_.history[-1], all_.model
    with torch.no_grad():
        right = float((model(torch.from_numpy(x[:4])).argmax(1) == torch.from_numpy(y[:4])).double().mean())
    assert row["test_accuracy"] == pytest.approx(right)
    everything = kedge.Federation([(x, np.full(10, -100))], test=(x, y))
    kedge.simulate(nn.Linear(4, 3), everything, kedge.FedAvg(eta=0.1), rounds=1, cohort=1, batch_size=2)


def test_a_client_alone_computes_with_the_same_inputs():
    model, federation, _ = NAMES["lora"]()
    settings = kedge.Settings(cohort=2, batch_size=4, local_steps=2)
    run = kedge.Simulation(model, federation, kedge.FedAvg(eta=0.1), settings)
    client = Client(3, model, *federation.client(3), kedge.FedAvg(eta=0.1), settings)
    question = run._rounds.question(run.moment, kedge.FullGradient(), 0, 0)
    alone = client.answer(question, client.initial_state())
    assert torch.equal(alone.up.gradient, run.ask(kedge.FullGradient(), [3]).mean["gradient"])
    assert isinstance(federation.samples, Eager)


def trained(labels):
    return kedge.simulate(nn.Linear(3, 2), kedge.Federation([(some(2, 3), labels)]), kedge.FedAvg(eta=1), **ONE)


ONE = {"cohort": 1, "batch_size": 1, "rounds": 1}


def some(*shape):
    return np.zeros(shape, "float32")


def fitted(model, labels, loss=None):
    return kedge.simulate(model, kedge.Federation([(some(2, 3), labels)]), kedge.FedAvg(eta=1), loss=loss, **ONE)


TABLE = Table.from_dict({"x": [[0.0, 1.0]], "y": [0]})


class Ragged(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, i):
        return np.zeros(3 + i), 0


class Double(torch.utils.data.Dataset):
    """Items of float64, as NumPy makes them."""

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return np.ones(3) * i, i % 2


def test_lazy_samples_and_test_sets_of_the_same_dataset_have_the_same_dtype():
    parts = [Double(), Double()]
    federation = kedge.Federation(parts, test=Double(), client_tests=parts, lazy=True)
    row = kedge.simulate(
        nn.Linear(3, 2), federation, kedge.FedAvg(eta=0.1), rounds=1, cohort=2, batch_size=2, eval_clients=True
    ).history[-1]
    assert {"test_loss", "clients_test_loss"} <= set(row)


def test_a_client_is_found_by_its_name():
    model, federation, _ = NAMES["users"]()
    assert torch.equal(federation.client("bob")[0], federation.client(1)[0])
    result = kedge.simulate(model, federation, kedge.Scaffold(eta=0.1), rounds=2, cohort=3, batch_size=4)
    assert torch.equal(result.client("eve")["c_i"], result.client(2)["c_i"])
    answer = result.simulation.ask(kedge.FullGradient(), ["bob"])
    assert torch.equal(answer.each("bob")["gradient"], answer.mean["gradient"])
    with pytest.raises(kedge.UsageError, match="client is 'zoe', but no client of the federation has that name"):
        federation.client("zoe")
    with pytest.raises(kedge.UsageError, match="client is 'ann', but no client"):
        NAMES["tokens"]()[1].client("ann")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fitted(nn.Linear(3, 1), [0.5, 1.5], nn.MSELoss()), r"output is \(1, 1\), but the labels are \(1,\)"),
        (lambda: fitted(nn.Linear(3, 2), [0, 1], "mse"), "loss is 'mse', but must be a function"),
        (lambda: fitted(nn.Linear(3, 2), [0, 1], nn.MSELoss), "loss is <class .*MSELoss'>, but must be a function"),
        (
            lambda: fitted(nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)), [True, False], nn.BCEWithLogitsLoss()),
            "the labels are whole numbers, so give them as floats",
        ),
        (lambda: fitted(nn.LazyLinear(2), [0, 1]), "the model has parameters without a shape"),
        (
            lambda: kedge.simulate(
                nn.Linear(3, 2), kedge.Federation([Ragged()], lazy=True), kedge.FedAvg(eta=1), cohort=1, batch_size=2
            ),
            r"several shapes: \(3,\) with a label \(\); \(4,\) with a label",
        ),
        (
            lambda: kedge.Federation({"ann": (some(2, 3), [0, 1]), "bob": (some(2, 4), [0, 1])}),
            "client 'bob' has features of shape .* but client 'ann' has",
        ),
        (lambda: kedge.Federation({"bob": (some(2, 3) + np.nan, [0, 1])}), "client 'bob' has NaN in its features"),
        (lambda: kedge.Federation([TABLE]), "client 0 is a table of Hugging Face's datasets; use Federation.from_data"),
        (lambda: kedge.Federation([({}, [0])]), "client 0's features are a dict, but it must have names and arrays"),
        (lambda: kedge.Federation([({"a": some(2, 3)}, [0])]), "client 0 has 2 samples, but 1 labels"),
        (lambda: kedge.Federation([({"a": some(1, 3)}, [0]), ({"b": some(1, 3)}, [0])]), "has features {b}"),
        (lambda: kedge.Federation([(some(1, 3), [0])], lazy=True), "client 0 is a tuple and not a Dataset"),
        (lambda: kedge.Federation([], lazy=True), "a federation has 0 clients"),
        (
            lambda: kedge.Federation([NAMES["Shaky"](0)], lazy=True, client_tests=0.5),
            "lazy samples cannot be divided; give a test set per client",
        ),
        (
            lambda: trained([0, -1]),
            "label -1 is out of range: classes count from 0, and -100 is ignored",
        ),
        (
            lambda: trained([0, 2]),
            "label 2 is out of range: the model has 2 outputs",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_sentence(make, message):
    with pytest.raises(kedge.UsageError, match=message):
        make()
