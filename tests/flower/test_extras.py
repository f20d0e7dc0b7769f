"""Schedules, local updates and reply transforms on a federation give what the simulator gives, to the bit.

Privacy is compared without its noise, which a federation draws from secret seeds.
"""

import pytest

from tests.flower.grid import World, config, digits, mlp
from tests.flower.test_equal import assert_equal

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
    assert_equal(world, server)
