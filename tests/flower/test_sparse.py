"""Replies of TopK travel as places and values: as many bytes as they count, and nothing that is not what it says."""

from functools import partial

import numpy as np
import pytest
import torch
from flwr.app import Array

import kedge
from kedge.errors import UsageError
from kedge.flower.arrays import OVERHEAD, Spec, read, written
from tests.flower.grid import World, config, digits, mlp, vectors
from tests.flower.test_equal import assert_equal

PAIRS = np.dtype([("place", np.int32), ("value", np.float32)])


@pytest.fixture(scope="module")
def federation():
    return digits()


@pytest.mark.parametrize("transforms", ["TopK(0.1)", "TopK(0.7)", "chain(TopK(0.1), Privacy(100.0, 0.0))"])
@pytest.mark.parametrize(("name", "opening", "size"), [("fedavg", 0, 1), ("scaffold-m", 1, 1), ("scaffold-m-vr", 1, 2)])
def test_bytes_on_the_wire_are_those_that_count_and_the_bits_are_the_simulators(
    name, opening, size, transforms, federation, tmp_path
):
    world = World(tmp_path, federation, mlp)
    server = world.server(config(name, tmp_path / "out", 4, 2, run__reply_transforms=transforms))
    server.run()
    wanted = assert_equal(world, server)
    count = wanted.history[-1]["bytes_up"]
    assert server.moment.bytes_up == count
    assert server.gather.received == count + OVERHEAD * (3 * opening + 4 * 2 * size)
    whole = server.moment.state.x.nbytes * (3 * opening + 4 * 2 * size)
    assert count < 0.5 * whole if "0.1" in transforms else count <= whole


def test_the_statistics_of_batch_norm_count_in_the_same_way(tmp_path):
    generator = torch.Generator().manual_seed(0)
    data = [(torch.rand(12, 3, 32, 32, generator=generator), torch.arange(12) % 3) for _ in range(3)]
    model = partial(kedge.build_model, "resnet18", (3, 32, 32), 3, norm="batch", width=2)
    world = World(tmp_path, kedge.Federation(data, data[0]), model)
    server = world.server(config("fedavg", tmp_path / "out", 2, 3, run__reply_transforms="TopK(0.1)"))
    server.run()
    wanted = assert_equal(world, server)
    assert torch.equal(server.moment.buffers, wanted.simulation.moment.buffers)
    assert server.moment.bytes_up == wanted.history[-1]["bytes_up"]
    assert server.gather.received == server.moment.bytes_up + OVERHEAD * 2 * 3 * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_vector_travels_in_the_smaller_form_and_comes_back(dtype):
    value = torch.zeros(1000, dtype=dtype)
    value[[3, 500, 999]] = torch.tensor([1.0, -2.5, 3e-30], dtype=dtype)
    form = Spec.of(value)
    array = written(value, sparse=True)
    assert len(array.data) == OVERHEAD + 3 * (4 + dtype.itemsize)
    assert array.numpy()["place"].tolist() == [3, 500, 999]
    assert torch.equal(read("x", array, form, most=lambda size: 3), value)
    assert len(written(value).data) == OVERHEAD + value.nbytes
    assert torch.equal(read("x", written(value), form), value)
    with pytest.raises(UsageError, match="x has 3 numbers, but may have 2"):
        read("x", array, form, most=lambda size: 2)
    with pytest.raises(UsageError, match=r"x is \(3,\) .*, but must be \(1000,\) float"):
        read("x", array, form)
    nothing = torch.zeros(1000, dtype=dtype)
    assert len(written(nothing, sparse=True).data) == OVERHEAD
    assert torch.equal(read("x", written(nothing, sparse=True), form, most=lambda size: 2), nothing)


def _changed(place=None, value=None):
    def change(pairs):
        if place is not None:
            pairs["place"][place[0]] = place[1]
        if value is not None:
            pairs["value"][value[0]] = value[1]
        return pairs

    return change


def _whole(pairs):
    values = np.zeros(610, np.float32)
    values[pairs["place"]] = pairs["value"]
    return values


def _more(pairs):
    found = np.zeros(len(pairs) + 1, PAIRS)
    found["place"], found["value"] = np.arange(len(found)), 1
    return found


HOSTILE = {
    "unsorted": (lambda pairs: pairs[::-1].copy(), "the places of displacement are not rising numbers from 0 to 609"),
    "twice": (_changed(place=(1, 0)), "the places of displacement are not rising"),
    "negative": (_changed(place=(0, -1)), "the places of displacement are not rising"),
    "beyond": (_changed(place=(-1, 610)), "the places of displacement are not rising"),
    "far beyond": (_changed(place=(-1, 2**31 - 1)), "the places of displacement are not rising"),
    "nan": (_changed(value=(0, np.nan)), "displacement has a number that is not finite"),
    "infinite": (_changed(value=(-1, -np.inf)), "displacement has a number that is not finite"),
    "zero": (_changed(value=(2, 0.0)), "displacement has a zero among its values"),
    "too many": (_more, "displacement has 62 numbers, but may have 61"),
    "whole": (_whole, "displacement is whole, but must be places and values"),
    "matrix": (lambda pairs: pairs[None], "displacement is neither whole nor 61 places and values"),
    "real places": (
        lambda pairs: pairs.astype([("place", np.float32), ("value", np.float32)]),
        "displacement is neither whole nor 61 places and values",
    ),
    "long places": (
        lambda pairs: pairs.astype([("place", np.int64), ("value", np.float32)]),
        "displacement is neither whole nor",
    ),
    "only values": (lambda pairs: pairs["value"].copy(), "displacement is neither whole nor"),
}
"""What becomes of the places and values of a reply, and the reason for which it is dropped."""

RAW = {
    "too long": lambda data: data + b"\0" * 5000,
    "cut": lambda data: data[:-3],
    "another count": lambda data: data.replace(b"(61,)", b"(99,)", 1),
    "brackets": lambda data: data[:10] + b"(" * 117 + b"\n" + data[128:],
    "signs": lambda data: data[:10] + b"-" * 1500 + b"1\n",
    "no header": lambda data: data[:20],
    "nothing": lambda data: b"",
}


def _play(world, federation, wanted, spoil):
    grid = world.grid(wanted, lambda client, message: "ok")
    answer = grid._answer

    def spoiled(node, message):
        reply = answer(node, message)
        return spoil(reply) if node == 101 and message.metadata.message_type == "train" else reply

    grid._answer = spoiled
    server = world.server(wanted, grid=grid)
    server.run()
    return server


@pytest.mark.parametrize("kind", [*HOSTILE, *RAW])
def test_a_lying_reply_is_dropped_with_the_clients_number_and_the_round_continues(kind, federation, tmp_path, caplog):
    def raw(reply):
        record = reply.content["fields"]
        data = RAW[kind](record["displacement"].data)
        record["displacement"] = Array("float32", (610,), "numpy.ndarray", data)
        return reply

    options = {"run__reply_transforms": "TopK(0.1)"}
    world = World(tmp_path, federation, mlp)
    spoil, reason = (vectors(HOSTILE[kind][0]), HOSTILE[kind][1]) if kind in HOSTILE else (raw, "displacement ")
    server = _play(world, federation, config("fedavg", tmp_path / "out", 2, 3, **options), spoil)
    assert f"the reply of client 1 is dropped: {reason}" in caplog.text
    other = World(tmp_path / "other", federation, mlp)
    lost = other.server(
        config("fedavg", tmp_path / "lost", 2, 3, **options),
        lambda client, message: "reply lost" if client == 1 else "ok",
    )
    lost.run()
    assert server.moment.round == 2
    assert 1 not in server.versions.now
    assert torch.equal(server.moment.state.x, lost.moment.state.x)


def test_places_and_values_are_refused_where_replies_are_whole(federation, tmp_path, caplog):
    def sparse(values):
        found = np.zeros(3, PAIRS)
        found["place"], found["value"] = range(3), 1
        return found

    world = World(tmp_path, federation, mlp)
    server = _play(world, federation, config("fedavg", tmp_path / "out", 1, 3), vectors(sparse))
    assert "the reply of client 1 is dropped: displacement is (3,) " in caplog.text
    assert server.moment.round == 1
