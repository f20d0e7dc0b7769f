"""One's own rules are checked before a run, and what they may not say is answered in one sentence."""

import runpy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

import kedge
from kedge.direction import GRAD, Direction
from kedge.errors import RunWarning
from kedge.probe import check_rules
from tests.cases import CASES
from tests.test_contract import algorithm, named

EXAMPLES = Path(__file__).parent.parent / "docs" / "examples"


class State(NamedTuple):
    x: torch.Tensor


class Own(NamedTuple):
    c_i: torch.Tensor


class Up(NamedTuple):
    displacement: torch.Tensor


@dataclass(frozen=True)
class Base(kedge.SingleExchange):
    """FedAvg with a client state, written down by a user."""

    def init_server(self, x):
        return State(x)

    def init_client(self, x):
        return Own(0 * x)

    def broadcast(self, server):
        return server

    def direction(self, down, client):
        return GRAD

    def reply(self, down, client, local):
        return Up(local.displacement), Own(client.c_i + local.displacement)

    def fold(self, server, up, heard):
        return State(server.x - up.displacement)


class GroupNormInReply(Base):
    """Scales a reply by the norm of the whole group."""

    def reply(self, down, client, local):
        return Up(local.displacement / local.displacement.norm()), client


class GroupMeanInDirection(Base):
    """Uses the mean over the clients of the group."""

    def direction(self, down, client):
        return GRAD - client.c_i + client.c_i.mean(0)


class GroupState(Base):
    """Keeps what the group has in common."""

    def reply(self, down, client, local):
        return Up(local.displacement), Own(client.c_i + local.displacement.max())


class RowNorm(Base):
    """Scales a reply by its own norm: that is elementwise in the rows."""

    def reply(self, down, client, local):
        length = local.displacement.norm(dim=-1, keepdim=True)
        return Up(local.displacement / length), Own(client.c_i + local.displacement)


def play(method, **options):
    made = kedge.quadratics(clients=4, dim=3, sigma=1.0, samples=8)
    settings = {"rounds": 2, "cohort": 3, "local_steps": 2, "batch_size": 2, "loss": made.loss}
    return kedge.simulate(made.model, made.federation, method, **settings | options)


@pytest.mark.parametrize(
    ("kind", "rule"), [(GroupNormInReply, "reply"), (GroupMeanInDirection, "direction"), (GroupState, "reply")]
)
def test_a_rule_that_depends_on_the_group_is_refused_with_the_right_form(kind, rule):
    with pytest.raises(kedge.UsageError, match=rf"the rule {rule} of {kind.__name__} gives .*norm\(dim=-1, keepdim"):
        play(kind(eta=0.1))


def test_a_norm_of_each_row_is_fine():
    assert play(RowNorm(eta=0.1)).server["x"].isfinite().all()


@pytest.mark.parametrize("case", CASES, ids=named)
def test_the_built_in_rules_pass(case):
    check_rules(algorithm(case))


# ---- what an expression may say


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GRAD * GRAD, "a direction is multiplied by a direction, but a direction is affine"),
        (lambda: torch.ones(3) * GRAD, r"a direction is multiplied by a tensor of shape \(3,\), but"),
        (lambda: GRAD * torch.ones(3), r"a direction is multiplied by a tensor of shape \(3,\), but"),
        (lambda: GRAD / torch.ones(3), "a direction is multiplied by a tensor"),
        (lambda: GRAD * "2", "a direction is multiplied by '2', but"),
        (lambda: GRAD + 1.0, r"1\.0 is added to a direction, but"),
        (lambda: 1.0 - GRAD, r"1\.0 is added to a direction, but"),
        (lambda: np.ones(3) * GRAD, "a direction is multiplied by array"),
    ],
)
def test_what_is_not_affine_is_one_sentence(make, message):
    with pytest.raises(kedge.UsageError, match=message):
        make()


def test_numbers_of_every_kind_scale_a_direction():
    assert GRAD / 2 == 0.5 * GRAD == np.float64(0.5) * GRAD == GRAD * np.float32(0.5) == Direction(grad=0.5)
    with pytest.raises(ZeroDivisionError):
        GRAD / 0


# ---- hyper-parameters and rates


@dataclass(frozen=True)
class Plain(Base):
    """Declares hyper-parameters as any dataclass does."""

    strength: float = 0.5
    often: int = 3
    flavour: str = "sweet"
    nesterov: bool = False

    def direction(self, down, client):
        return self.strength * GRAD


def test_a_hyper_parameter_without_hyper_works_and_must_be_finite():
    half = play(Plain(eta=0.1), local_steps=1).server["x"]
    assert torch.equal(half, play(Base(eta=0.05), local_steps=1).server["x"])
    assert Plain(eta=0.1, strength="step(0.5, 0.5, every=1)").at(1).strength == 0.25
    assert "strength" in Plain.explained()
    with pytest.raises(kedge.UsageError, match="strength of Plain is nan, but must be a finite number"):
        Plain(eta=0.1, strength=float("nan"))
    with pytest.raises(kedge.UsageError, match=r"often of Plain is 2\.5, but must be a whole number"):
        Plain(eta=0.1, often=2.5)


def test_a_number_of_another_library_becomes_pythons_own():
    made = Plain(eta=np.float32(0.25), strength=np.float64(0.5), often=np.int64(2))
    assert repr(made) == repr(Plain(eta=0.25, strength=0.5, often=2))
    assert Plain(eta=0.1, nesterov=True).nesterov is True
    assert [type(value) for value in (made.eta, made.strength, made.often)] == [float, float, int]
    for name, value in (("eta", np.float32("nan")), ("eta", True), ("strength", np.float32("inf")), ("often", True)):
        with pytest.raises(kedge.UsageError, match=f"{name} of Plain is .*, but must be a finite number"):
            Plain(**{"eta": 0.1, name: value})
    with pytest.raises(kedge.UsageError, match=r"often of Plain is 2\.5, but must be a whole number"):
        Plain(eta=0.1, often=np.float32(2.5))


@dataclass(frozen=True)
class Halving(Base):
    """Changes its rate in `exchanges`."""

    def exchanges(self, round, seed):
        return (replace(self, eta=self.eta / 2**round),)


def test_a_rate_that_exchanges_changes_is_the_rate_of_the_local_steps():
    scheduled = play(Base(eta="step(0.1, 0.5, every=1)"))
    assert torch.equal(play(Halving(eta=0.1)).server["x"], scheduled.server["x"])


# ---- the examples of the page


def example(name):
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


@pytest.mark.parametrize("name", ["fedprox_m", "fed_sam", "local_adam", "personal_heads"])
def test_an_example_takes_about_30_lines_and_stands_on_the_page(name):
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 33
    assert f"examples/{name}.py" in (EXAMPLES.parent / "extend.md").read_text()


@pytest.mark.parametrize(
    ("name", "kind", "theirs"), [("fed_sam", "Sharp", kedge.SAM(0.05)), ("local_adam", "LocalAdam", kedge.Adam())]
)
def test_an_update_of_the_examples_is_the_built_in_one(name, kind, theirs):
    own = example(name)[kind]
    ours = own(0.05) if kind == "Sharp" else own()
    one, other = (play(kedge.FedAvg(eta=0.05), local_update=update).server["x"] for update in (ours, theirs))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-13)


def test_personal_heads_serve_clients_better_than_a_shared_one():
    with pytest.warns(RunWarning, match="with personal layers no client has the server's model"):
        personal, shared = example("personal_heads")["main"](rounds=10)
    column = "clients_test_accuracy"
    assert personal.history[-1][column] > shared.history[-1][column] + 0.03
    assert personal.history[-1]["bytes_up"] < shared.history[-1]["bytes_up"]
