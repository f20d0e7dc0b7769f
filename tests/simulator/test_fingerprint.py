"""The fingerprint: whatever changes the result changes it, and the same run in another process has the same."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import kedge
from kedge.simulator.fingerprint import SMALL, checksum, code, data_fingerprint, fingerprint
from kedge.simulator.simulation import Settings, Simulation

LARGE = torch.randint(-100, 100, (SMALL // 4 + 77,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)


@settings(max_examples=40)
@given(st.integers(0, len(LARGE) - 1), st.integers(0, 31))
def test_any_bit_of_large_data_counts(place, bit):
    other = LARGE.clone()
    other[place] ^= -(2**31) if bit == 31 else 2**bit
    assert checksum(other) != checksum(LARGE)


@settings(max_examples=40)
@given(st.integers(0, len(LARGE) - 1), st.integers(0, len(LARGE) - 1))
def test_so_does_the_order(one, another):
    other = LARGE.clone()
    other[[one, another]] = LARGE[[another, one]]
    assert (checksum(other) == checksum(LARGE)) == torch.equal(other, LARGE)


def test_and_the_shape_and_the_type():
    values = [torch.zeros(6), torch.zeros(2, 3), torch.zeros(3, dtype=torch.int64), torch.zeros(7)]
    assert len({checksum(value) for value in values}) == 4
    images = torch.randn(5, 3, 4, 4)
    assert checksum(images) == checksum(images.to(memory_format=torch.channels_last))


def half(x):
    return x / 2


class Own(nn.Module):
    """A model."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.line = nn.Linear(3, 2)
        self.scale = scale

    def forward(self, x):
        return self.line(self.scale * half(x))


class Other(Own):
    """Another."""

    def forward(self, x):
        return self.line(self.scale * half(x)) + 1


def made(model, loss=None, features=None, test=None, method=None):
    torch.manual_seed(0)
    nn.init.ones_(model.line.weight)
    nn.init.zeros_(model.line.bias)
    features = torch.ones(6, 3) if features is None else features
    federation = kedge.Federation([(features, torch.tensor([0, 1] * 3))] * 2, test)
    run = Simulation(
        model, federation, method or kedge.FedAvg(eta=0.1), Settings(cohort=2, batch_size=2),
        loss or nn.functional.cross_entropy,
    )  # fmt: skip
    run.close()
    return fingerprint(run, federation)


def hooked():
    model = Own()
    model.register_forward_hook(lambda module, given, output: 2 * output)
    return model


def patched():
    model = Own()
    model.forward = lambda x: model.line(x)
    return model


class Deep(Own):
    """Two layers of one size, and dropout."""

    def __init__(self, untrained=None, switched=None):
        super().__init__()
        self.first, self.second, self.drop = nn.Linear(3, 3), nn.Linear(3, 3), nn.Dropout()
        for layer in (self.first, self.second):
            nn.init.eye_(layer.weight)
            nn.init.zeros_(layer.bias)
        if untrained is not None:
            getattr(self, untrained).requires_grad_(False)
        if switched is not None:
            getattr(self, switched).eval()

    def forward(self, x):
        return self.line(self.drop(self.second(self.first(x))))


def scaled(factor):
    return lambda output, y: factor * nn.functional.cross_entropy(output, y)


TEST = (torch.zeros(1000, 3), torch.zeros(1000, dtype=torch.int64))
FLIPPED = (TEST[0], torch.arange(1000) == 501)


@pytest.mark.parametrize(
    ("one", "other", "key"),
    [
        (lambda: made(Own()), lambda: made(Own(2.0)), "model code"),
        (lambda: made(Own()), lambda: made(hooked()), "model code"),
        (lambda: made(Own()), lambda: made(patched()), "model code"),
        (lambda: made(Own(), scaled(1)), lambda: made(Own(), scaled(2)), "loss code"),
        (
            lambda: made(Own(), lambda output, y: output.sum()),
            lambda: made(Own(), lambda output, y: output.mean()),
            "loss code",
        ),
        (
            lambda: made(Own(), partial(scaled(1))),
            lambda: made(Own(), partial(scaled(2))),
            "loss code",
        ),
        (lambda: made(Own()), lambda: made(Own(), features=torch.ones(6, 3) + torch.eye(6, 3)), "features"),
        (lambda: made(Own(), test=TEST), lambda: made(Own(), test=(FLIPPED[0], FLIPPED[1].long())), "test labels"),
        (lambda: made(Own()), lambda: made(Own(), test=TEST), "test features"),
        (lambda: made(Deep("first")), lambda: made(Deep("second")), "frozen"),
        (lambda: made(Deep("first", "drop")), lambda: made(Deep("first")), "frozen"),
    ],
)
def test_what_changes_the_result_is_the_first_difference(one, other, key):
    one, other = one(), other()
    assert next(name for name in one if one[name] != other[name]) == key


def test_another_forward_or_helper_is_another_code(monkeypatch):
    before = code(Own())
    assert code(Other()) != before
    monkeypatch.setattr(sys.modules[__name__], "half", lambda x: x / 3)
    assert code(Own()) != before
    assert code(nn.Linear(2, 2)) == code(kedge.FedAvg) == code(nn.functional.cross_entropy) == "built in"


SCRIPT = """
from dataclasses import dataclass
import kedge
from tests.simulator.test_fingerprint import Own, made, scaled, TEST

@dataclass(frozen=True)
class Mine(kedge.FedAvg):
    often: int = kedge.hyper(3, help="times")
    def opening(self):
        return () if self.often in {"a", "b", "c", 3} else super().opening()

print(made(Own(), scaled(3), test=TEST, method=Mine(eta=0.1)))
"""


def test_it_is_the_same_in_every_process():
    root = Path(__file__).parents[2]
    said = {
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", SCRIPT], cwd=root, capture_output=True, text=True, check=True,
            env={"PYTHONPATH": f"{root}/src", "PYTHONHASHSEED": seed, "PATH": ""},
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(said) == 1
    assert "built in" not in said.pop()


def test_the_run_s_own_federation_of_another_dtype_is_read_too():
    federation = kedge.Federation([(np.ones((4, 3)), [0, 1, 0, 1])])
    run = Simulation(nn.Linear(3, 2), federation, kedge.FedAvg(eta=0.1), Settings(cohort=1, batch_size=2))
    run.close()
    assert fingerprint(run)["labels"] == fingerprint(run, federation)["labels"]
    assert fingerprint(run)["features"] != fingerprint(run, federation)["features"]


def closing_over(value):
    def loss(output, target):
        return nn.functional.cross_entropy(output, target) * len(repr(value))

    return loss


class Weighted:
    def __init__(self, weights):
        self.weights = weights

    def __call__(self, output, target):
        return nn.functional.cross_entropy(output, target, torch.tensor(self.weights))


class Listed(Own):
    """A model with a list of numbers."""

    def __init__(self, sizes):
        super().__init__()
        self.sizes = sizes


@pytest.mark.parametrize("make", [closing_over, Weighted, Listed])
@pytest.mark.parametrize(
    ("one", "another"),
    [
        ([1.0, 2.0], [1.0, 3.0]), ((1, [2, 3]), (1, [2, 4])), ({"a": 1}, {"a": 2}), ({1, 2}, {1, 3}),
        (np.ones(3), np.array([1.0, 1.0, 2.0])), ({"a": torch.ones(2)}, {"a": torch.zeros(2)}),
        (np.array(["a", [1]], dtype=object), np.array(["a", [2]], dtype=object)), ([], [[]]),
    ],
)  # fmt: skip
def test_containers_that_own_code_refers_to_count(make, one, another):
    assert code(make(one)) != code(make(another))
    assert code(make(one)) == code(make(one))


def test_a_container_may_contain_itself():
    one, another = [1], [2]
    one.append(one)
    another.append(another)
    assert code(closing_over(one)) != code(closing_over(another))


class Pictures(torch.utils.data.Dataset):
    """A data set whose samples are made when they are needed."""

    def __init__(self, values, labels):
        self.values, self.labels = values, labels

    def __len__(self):
        return len(self.values)

    def __getitem__(self, at):
        return torch.as_tensor(self.values[at]) + torch.rand(3), self.labels[at]


@pytest.mark.parametrize("wrapped", [False, True])
def test_every_sample_that_a_lazy_data_set_keeps_counts(wrapped):
    def text(last, label=1):
        values = np.ones((6, 3), np.float32)
        values[-1, -1] = last
        data = Pictures(values, [0, 1, 0, 1, 0, label])
        if wrapped:
            data = torch.utils.data.Subset(data, range(6))
        return data_fingerprint(kedge.Federation([data, data], lazy=True))["features"]

    assert text(1.0) == text(1.0)
    assert len({text(1.0), text(2.0), text(1.0, label=0)}) == 3


def test_a_part_that_was_frozen_by_eval_is_refused_in_training(tmp_path):
    federation = kedge.Federation([(torch.randn(6, 3), torch.tensor([0, 1] * 3))] * 2)
    options = {"cohort": 2, "batch_size": 2, "local_steps": 2, "out": tmp_path / "run"}
    model, frozen = Deep(), Deep(switched="drop")
    frozen.load_state_dict(model.state_dict())
    kedge.simulate(model, federation, kedge.FedAvg(eta=0.1), 2, **options)
    with pytest.raises(kedge.UsageError, match=r"frozen is None there, but 'drop\.eval\(\)' here"):
        kedge.simulate(frozen, federation, kedge.FedAvg(eta=0.1), 4, resume=True, **options)
