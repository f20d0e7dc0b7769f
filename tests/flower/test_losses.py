"""Whatever is lost, late, doubled, corrupted or killed, the invariants hold after every round.

The reference is the same clients and the same server in one process, told who was heard: every vector of the server and
of every client must be the same to the bit.
"""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kedge.client import Client
from kedge.flower import fleet, gather
from kedge.round import Question, Rounds, Total
from kedge.shards import Sums
from tests.flower.grid import CORRUPTIONS, Died, World, config, digits, mlp

FATES = ["lost", "reply lost", "late", "twice", "restarted", "die before", "die after", *CORRUPTIONS]
INVARIANTS = {
    "scaffold-m": lambda server, own: (server["c"], mean(own, "c_i")),
    "feddyn": lambda server, own: (server["h"], mean(own, "q_i")),
    "fedgate": lambda server, own: (torch.zeros(()), mean(own, "delta_i")),
    "stem": lambda server, own: (server["x"], mean(own, "x_i")),
}
"""Of each algorithm, two vectors that must be equal."""


def mean(own, name):
    return torch.stack([state[name] for state in own]).double().mean(0)


@pytest.fixture(scope="module")
def federation():
    return digits()


class Reference:
    """The clients in this process; it plays what the server has counted."""

    def __init__(self, world, agreed):
        self.rounds = Rounds(agreed.algorithm, agreed.settings, world.federation.sizes, forms=False)
        self.clients = [
            Client(i, mlp(), *world.federation.client(i), agreed.algorithm, agreed.settings)
            for i in range(len(world.federation))
        ]
        self.own = [client.initial_state() for client in self.clients]
        self.moment = self.rounds.begin(self.clients[0].initial, self.clients[0].buffers)

    def play(self, opening, heard):
        proposed = list(self.own)

        def gather(question, clients):
            here = heard[question.number]
            sums = Sums([(0, self.rounds.settings.shards)])
            for i in sorted(here):
                reply = self.clients[i].answer(Question(*question), proposed[i])
                proposed[i] = reply.state
                sums.add(self.rounds.shard(i), self.rounds.summands(question, reply, 1.0))
            (values,) = sums.finished().values()
            return Total(values, sorted(here))

        if opening:
            self.moment = self.rounds.open(self.moment, gather)
        else:
            self.moment = self.rounds.advance(self.moment, gather, sorted(heard[0]))
        self.own = proposed


@pytest.mark.parametrize("name", INVARIANTS)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_invariants_hold_after_every_round_whatever_happens_to_messages(
    name, data, federation, tmp_path_factory, monkeypatch
):
    monkeypatch.setattr(fleet, "LOOK", 0.0)
    fates = iter(data.draw(st.lists(st.sampled_from([*["ok"] * len(FATES), *FATES]), max_size=30)))
    path = tmp_path_factory.mktemp("world")
    world = World(path, federation, mlp)
    wanted = config(name, path / "out", 3, 3 if name == "stem" else 2)
    grid = world.grid(wanted, lambda client, message: next(fates, "ok"))
    reference, steps = None, 0
    while True:
        server = world.server(wanted, grid=grid)
        reference = reference or Reference(world, server._agreed)
        journal = watched(server)

        def saved(save=server._save, server=server, journal=journal, reference=reference):
            nonlocal steps
            save()
            if journal:
                steps += 1
                reference.play(server.moment.round == 0, journal)
            journal.clear()
            check(name, world, server, reference)

        server._save = saved
        try:
            server.run()
            break
        except Died:
            grid.replies.clear()
    assert server.moment.round == 3
    assert steps >= 3


def watched(server):
    """Note who is heard in each exchange of the present attempt."""
    journal = []
    call, begin = gather.Gatherer.__call__, gather.Gatherer.begin

    class Noting(gather.Gatherer):
        def __call__(self, question, clients):
            total = call(self, question, clients)
            journal.append(total.heard)
            return total

        def begin(self, **options):
            journal.clear()
            begin(self, **options)

    restore = server._restore

    def restored():
        finished = restore()
        server.gather.__class__ = Noting
        return finished

    server._restore = restored
    return journal


def check(name, world, server, reference):
    found = server.moment.state._asdict()
    for vector, value in reference.moment.state._asdict().items():
        assert torch.equal(found[vector], value)
    own = [world.client(server, i) for i in range(3)]  # every version that counts is on its disk
    for here, there in zip(own, reference.own, strict=True):
        assert all(torch.equal(here[key], value) for key, value in there._asdict().items())
    one, other = INVARIANTS[name](found, own)
    assert float((one - other).abs().max()) < 1e-5


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_a_reply_that_is_not_as_it_must_be_is_dropped_with_its_reason(corruption, federation, tmp_path, caplog):
    world = World(tmp_path, federation, mlp)
    wanted = config("scaffold-m", tmp_path / "out", 2, 3)
    server = world.server(wanted, lambda client, message: corruption if client == 1 else "ok")
    server.run()
    assert server.moment.round == 2
    assert 1 not in server.versions.now
    assert "the reply of client 1 is dropped: " in caplog.text
    assert all(record.getMessage().isprintable() for record in caplog.records)
    own = [world.client(server, i) for i in range(3)]
    one, other = INVARIANTS["scaffold-m"](server.moment.state._asdict(), own)
    assert float((one - other).abs().max()) < 1e-6
