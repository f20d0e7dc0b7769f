"""The two halves of a round, each in its own process: a client has nothing but its own arrays and a pipe."""

import multiprocessing
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch

import kedge
from kedge.client import Client
from kedge.direction import GRAD
from kedge.round import Rounds, Total

SETTINGS = kedge.Settings(cohort=2, local_steps=3, batch_size=4, weight_decay=1e-3, seed=5)


def model():
    return kedge.build_model("mlp", (64,), 10, widths=[8])


def live(pipe, client_number, features, labels):
    """Be a client: answer from the state that it keeps itself, and keep what it proposes."""
    while (method := pipe.recv()) is not None:
        client = Client(client_number, model(), features, labels, method, SETTINGS)
        state = client.initial_state()
        pipe.send(client.samples)
        while (message := pipe.recv()) is not None:
            exchanges = method.opening() if message.round < 0 else method.exchanges(message.round, SETTINGS.seed)
            reply = client.answer(message._replace(exchange=exchanges[message.number]), state)
            state = reply.state
            pipe.send(reply._replace(state=None))  # which stays here


@pytest.fixture(scope="module")
def federation():
    return kedge.load_federation("digits", clients=3, partition="dirichlet", alpha=0.5, seed=1)


@pytest.fixture(scope="module")
def pipes(federation):
    """Yield a pipe to every client; starting the processes takes longer than everything else here."""
    context, pipes, processes = multiprocessing.get_context("spawn"), [], []
    for number in range(3):
        here, there = context.Pipe()
        arrays = [part.numpy() for part in federation.client(number)]
        processes.append(context.Process(target=live, args=(there, number, *arrays)))
        processes[-1].start()
        pipes.append(here)
    yield pipes
    for pipe in pipes:
        pipe.send(None)
    for process in processes:
        process.join()


@pytest.mark.parametrize("method", [kedge.ScaffoldM(eta=0.05, beta=0.2), kedge.CELSGD(eta=0.05, beta=0.2)], ids=str)
def test_clients_in_their_own_processes_and_a_server_give_what_simulate_gives(method, federation, pipes):
    for pipe in pipes:
        pipe.send(method)
    rounds = Rounds(method, SETTINGS, np.array([pipe.recv() for pipe in pipes]))

    def gather(question, clients):
        for client in clients:
            pipes[client].send(question._replace(exchange=None))  # both ends know the algorithm
        replies = [pipes[client].recv() for client in clients]
        sums = [rounds.summands(question, reply, 1.0) for reply in replies]
        return Total([torch.stack(values).sum(0) for values in zip(*sums, strict=True)], clients)

    moment = rounds.begin(torch.cat([p.detach().reshape(-1) for p in model().parameters()]), torch.zeros(0))
    for _ in range(4):
        moment = rounds.play(moment, gather)
    for pipe in pipes:
        pipe.send(None)  # the next method, if any
    wanted = kedge.simulate(model(), federation, method, 4, **SETTINGS.model_dump())
    for name, vector in wanted.server.items():
        torch.testing.assert_close(moment.state._asdict()[name], vector, rtol=1e-4, atol=1e-5)
    assert moment.bytes_down == wanted.history[-1]["bytes_down"]


def test_a_client_that_has_stopped_answering_is_not_asked_again_and_costs_nothing():
    rounds = Rounds(kedge.FedGATE(eta=0.1), kedge.Settings(cohort=None), np.array([4, 4, 4]))
    asked = []

    def gather(question, clients):
        asked.append(clients)
        values = [torch.zeros_like(value) for value in rounds.layout(question, moment.state.x)]
        return Total(values, [client for client in clients if client != 2])

    moment = rounds.begin(torch.zeros(5), torch.zeros(0))
    moment = rounds.play(moment, gather)
    assert asked == [[0, 1, 2], [0, 1]]
    assert moment.bytes_down == 5 * 20  # one vector of five numbers to each


class State(NamedTuple):
    x: torch.Tensor


class Up(NamedTuple):
    displacement: torch.Tensor


@dataclass(frozen=True)
class Hears(kedge.Exchange):
    """Local steps that leave the model alone."""

    cohort: str

    def broadcast(self, server):
        return server

    def direction(self, down, client):
        return GRAD

    def reply(self, down, client, local):
        return Up(local.displacement), client

    def fold(self, server, up, heard):
        return server


@dataclass(frozen=True)
class FirstThenAll(kedge.Algorithm):
    """One client hears the model before the others do."""

    def init_server(self, x):
        return State(x)

    def exchanges(self, round, seed):
        return Hears("first"), Hears("sampled")


def test_what_only_one_client_has_heard_is_sent_to_the_others():
    data = [(torch.randn(4, 3), torch.tensor([0, 1, 0, 1])) for _ in range(2)]
    model = torch.nn.Linear(3, 2)
    played = kedge.simulate(model, kedge.Federation(data), FirstThenAll(eta=0.1), 1, None, 1, 2)
    assert played.history[-1]["bytes_down"] == (1 + 2) * 4 * 8  # eight numbers to the first, then to both
    assert kedge.cost(FirstThenAll(eta=0.1)).down().vectors == 1
