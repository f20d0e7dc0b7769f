"""On a federation without processes, every algorithm gives what the simulator gives, to the bit."""

import pytest
import torch

import kedge
from tests.cases import CASES
from tests.flower.grid import World, config, digits, mlp


@pytest.fixture(scope="module")
def federation():
    return digits()


def simulated(world, server):
    agreed = server._agreed
    return kedge.simulate(
        world.model(), world.federation, agreed.algorithm, agreed.run.rounds, engine="module", threads=1,
        **agreed.settings.values(),
    )  # fmt: skip


def assert_equal(world, server):
    wanted = simulated(world, server)
    found = server.moment.state._asdict()
    assert list(found) == list(wanted.server)
    assert all(torch.equal(found[name], vector) for name, vector in wanted.server.items())
    for number in range(len(world.federation)):
        own = world.client(server, number)
        assert all(torch.equal(own[name], vector) for name, vector in wanted.client(number).items())
    return wanted


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.id}-{'-'.join(map(str, case.hyper.values()))}")
def test_every_algorithm_equals_the_simulator_to_the_bit(case, federation, tmp_path):
    world = World(tmp_path, federation, mlp)
    cohort = 3 if kedge.ALGORITHMS[case.id].full_participation else 2
    hyper = {f"algorithm.{name}": value for name, value in case.hyper.items()}
    wanted = config(case.id, tmp_path / "out", 4, cohort) | hyper
    grid = world.grid(wanted)
    server = world.server(wanted, grid=grid)
    server.run()
    wanted = assert_equal(world, server)
    found = kedge.read_run(tmp_path / "out")
    assert found.finished
    assert found.problems == ()
    last, there = found.rows[-1], wanted.history[-1]
    assert len(found.rows) == 4
    for name in ("round", "test_loss", "test_accuracy", "gradients", "bytes_up", "step_norm"):
        assert last[name] == there[name], name
    if cohort < 3:  # otherwise the simulator does not count what clients could form themselves
        assert last["bytes_down"] == there["bytes_down"]
    # Besides what is declared, a vector costs 128 bytes, and nothing else travels.
    for travelled, declared in ((grid.down, last["bytes_down"]), (grid.up, last["bytes_up"])):
        assert travelled
        assert sum(travelled) == declared + 128 * len(travelled)
    assert (server.gather.sent, server.gather.received) == (sum(grid.down), sum(grid.up))
