"""What clients of every round are not sent, because they can form it from the message of the round before."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import pytest
import torch
from torch import nn

import kedge
from kedge.algorithms import ALGORITHMS
from kedge.direction import GRAD
from kedge.forming import formed

ALL = {name: kind(eta=0.3) for name, kind in ALGORITHMS.items()}


def test_with_everyone_momentum_adds_nothing_to_the_downlink_of_fedavg():
    momentum, plain = ALL["fedavg-m"], ALL["fedavg"]
    assert kedge.cost(momentum).down().vectors == 2
    assert kedge.cost(momentum, everyone=True).down() == kedge.cost(plain, everyone=True).down()


@pytest.mark.parametrize("name", ["mimelite", "stem", "fedgate", "scaffold-m"])
def test_a_vector_that_does_not_follow_from_one_message_is_sent(name):
    assert kedge.cost(ALL[name], everyone=True).down() == kedge.cost(ALL[name]).down()


@pytest.mark.parametrize("name", ALL)
def test_what_is_formed_depends_on_no_rate(name):
    assert formed(ALL[name]) == formed(replace(ALL[name], eta=30.0))


def test_the_momentum_of_a_run_is_the_last_step_over_gamma():
    clients = [(torch.randn(4, 3), torch.randint(0, 2, (4,))) for _ in range(3)]
    federation = kedge.Federation(clients)
    seen = []
    method = kedge.FedAvgM(eta=0.1, beta=0.3, gamma=0.7)
    for rounds in (3, 4):
        torch.manual_seed(0)
        seen.append(
            kedge.simulate(nn.Linear(3, 2), federation, method, rounds=rounds, cohort=None, batch_size=2).server
        )
    torch.testing.assert_close((seen[0]["x"] - seen[1]["x"]) / 0.7, seen[1]["g"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("cohort", "lost", "vectors"), [(None, 0.0, 1), (3, 0.0, 1), (2, 0.0, 2), (None, 0.3, 2)])
def test_a_run_counts_it_only_where_every_client_has_heard_the_last_round(cohort, lost, vectors):
    clients = [(torch.randn(4, 3), torch.randint(0, 2, (4,))) for _ in range(3)]
    options = {"rounds": 3, "cohort": cohort, "batch_size": 2, "lost_replies": lost}
    run = kedge.simulate(nn.Linear(3, 2), kedge.Federation(clients), kedge.FedAvgM(eta=0.1), **options)
    rows = [row["bytes_down"] for row in run.history]
    size = 4 * 8 * (cohort or 3)  # eight numbers of four bytes
    assert rows[0] == 2 * size
    assert rows[2] - rows[1] == vectors * size


class State(NamedTuple):
    x: torch.Tensor
    g: torch.Tensor


class Up(NamedTuple):
    displacement: torch.Tensor
    direction: torch.Tensor


@dataclass(frozen=True)
class LastDirection(kedge.SingleExchange):
    """Averages the models, and sends the mean direction along."""

    def init_server(self, x):
        return State(x, 0 * x)

    def broadcast(self, server):
        return server

    def direction(self, down, client):
        return GRAD + 0.5 * down.g

    def reply(self, down, client, local):
        return Up(local.displacement, local.mean_direction), client

    def fold(self, server, up, heard):
        return State(server.x - up.displacement, up.direction)


@dataclass(frozen=True)
class Halving(LastDirection):
    """Its exchange has a different rate in every round."""

    def exchanges(self, round, seed):
        return (replace(self, eta=self.eta / 2**round),)


def test_local_steps_have_the_rate_of_their_exchange():
    assert formed(LastDirection(eta=0.1)) == {(0, "g")}
    assert formed(Halving(eta=0.1)) == frozenset()
