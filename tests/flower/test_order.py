"""The server reads replies in the order of the clients, few at once, and waits for nobody in vain."""

import pytest
import torch

from kedge.flower import fleet
from tests.flower.grid import LocalGrid, World, config, digits, mlp
from tests.flower.test_equal import assert_equal


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.setattr(fleet, "LOOK", 0.0)
    return World(tmp_path, digits(), mlp)


class SlowGrid(LocalGrid):
    """Returns a client's reply only when it has been asked for it ``delay[client]`` times; notes whose it returns."""

    delay: dict[int, float]
    log: list[int]

    def push_messages(self, messages):
        names = super().push_messages(messages)
        found = zip(names, messages, strict=True)
        self.asked |= {
            name: [message.metadata.dst_node_id - 100, 0]
            for name, message in found
            if message.metadata.message_type == "train"
        }
        return names

    def pull_messages(self, message_ids):
        ready = []
        for name in message_ids:
            if name in self.asked:
                self.asked[name][1] += 1
                client, count = self.asked[name]
                if count <= self.delay[client]:
                    continue
                self.log.append(client)
            ready.append(name)
        return super().pull_messages(ready)


def slow(world, wanted, delay):
    grid = world.grid(wanted)
    grid.__class__ = SlowGrid
    grid.delay, grid.log, grid.asked = dict.fromkeys(range(3), 0) | delay, [], {}
    return grid


@pytest.mark.parametrize("name", ["fedavg", "scaffold-m", "mime"])
def test_a_reply_waits_until_it_is_its_turn(name, world):
    wanted = config(name, world.path / "out", 2, 3)
    grid = slow(world, wanted, {0: 3, 1: 1})
    server = world.server(wanted, grid=grid)
    server.run()
    assert_equal(world, server)
    assert grid.log == [0, 1, 2] * (len(grid.log) // 3)


def test_replies_that_came_before_the_deadline_count_even_if_an_earlier_client_never_replies(world, caplog):
    wanted = config("scaffold-m", world.path / "out", 1, 3, flower__deadline=0.2)
    server = world.server(wanted, grid=slow(world, wanted, {0: float("inf")}))
    server.run()
    assert set(server.versions.now) == {1, 2}
    assert "no reply of clients [0]" in caplog.text
    own = [world.client(server, i)["c_i"] for i in range(3)]
    assert torch.allclose(torch.stack(own).mean(0), server.moment.state.c, atol=1e-6)


def test_a_client_that_is_not_connected_is_not_waited_for(world):
    wanted = config("scaffold-m", world.path / "out", 1, 3, flower__min_clients=2, flower__deadline=1000.0)
    grid = slow(world, wanted, {})
    del grid.contexts[100]
    server = world.server(wanted, grid=grid)
    server.run()
    assert set(server.versions.now) == {1, 2}
