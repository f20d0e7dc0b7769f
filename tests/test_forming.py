"""What clients of every round are not sent, because they can form it from the message of the round before."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import kedge
from kedge.algorithms import ALGORITHMS
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
