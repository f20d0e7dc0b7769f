"""The compact indices say what lists of them would say."""

import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kedge.errors import UsageError
from kedge.problem import ClientIndices, Federation

SAMPLES = 9
LISTS = st.lists(st.lists(st.integers(0, SAMPLES - 1), min_size=1, max_size=5), min_size=1, max_size=6)
KINDS = [list, np.array, torch.tensor, lambda part: np.array(part, np.int32), lambda part: np.array(part, np.uint8)]


def federation(indices) -> Federation:
    return Federation.from_indices(np.arange(SAMPLES * 2.0).reshape(SAMPLES, 2), np.arange(SAMPLES), indices)


def lists_of(indices: ClientIndices) -> list[list[int]]:
    assert all(index.dtype == torch.int64 for index in indices)
    return [index.tolist() for index in indices]


@given(LISTS, st.sampled_from(KINDS))
def test_any_kind_of_list_is_read_back(parts, kind):
    made = federation([kind(part) for part in parts])
    assert lists_of(made.indices) == parts
    assert made.sizes.tolist() == [len(part) for part in parts]
    assert len(made) == len(made.indices) == len(parts)
    assert made.indices[-1].tolist() == parts[-1]
    assert lists_of(made.indices[1:]) == parts[1:]
    assert made.client(0)[1].tolist() == parts[0]
    assert lists_of(made.to(torch.float32).indices) == parts


@given(st.integers(1, 5), st.integers(1, 4), st.data())
def test_a_table_is_a_list_of_its_rows(clients, size, data):
    row = st.lists(st.integers(0, SAMPLES - 1), min_size=size, max_size=size)
    table = data.draw(st.lists(row, min_size=clients, max_size=clients))
    for kind in KINDS:
        made = federation(kind(table))
        assert lists_of(made.indices) == table
        assert made.sizes.tolist() == [size] * clients


@given(LISTS, st.booleans())
def test_windows_are_slices_of_the_samples_or_of_an_order(parts, ordered):
    order = np.random.default_rng(len(parts)).permutation(SAMPLES)
    starts = [min(part) for part in parts]
    sizes = [max(part) - min(part) + 1 for part in parts]
    made = federation(ClientIndices(starts, torch.tensor(sizes), order if ordered else None))
    places = order if ordered else np.arange(SAMPLES)
    expected = [places[a : a + n].tolist() for a, n in zip(starts, sizes, strict=True)]
    assert lists_of(made.indices) == expected
    assert made.sizes.tolist() == sizes


@given(st.lists(st.lists(st.integers(-3, SAMPLES + 3), max_size=4), max_size=4))
def test_lists_are_refused_exactly_when_a_client_is_empty_or_an_index_outside(parts):
    good = bool(parts) and all(part and min(part) >= 0 and max(part) < SAMPLES for part in parts)
    if good:
        assert lists_of(federation(parts).indices) == parts
        return
    with pytest.raises(UsageError) as error:
        federation(parts)
    named = str(error.value).split(",")[0].split()
    if parts:
        part = parts[int(named[1])]
        assert part == [] if "no" in named else int(named[-1]) in part


def test_an_order_is_shared_and_indices_of_a_list_take_four_bytes():
    order = torch.arange(SAMPLES)
    assert federation(ClientIndices([0, 4], [4, 5], order)).indices.order.data_ptr() == order.data_ptr()
    assert federation(order.view(3, 3)).indices.order.data_ptr() == order.data_ptr()
    assert federation([[1, 2], [3]]).indices.order.dtype == torch.int32


def test_clients_that_lie_one_after_the_other_need_no_index_per_sample():
    made = Federation([([[1.0], [2.0]], [0, 1]), ([[3.0]], [2])])
    assert made.indices.order is None
    assert lists_of(made.indices) == [[0, 1], [2]]
    assert repr(made.indices) == "ClientIndices(2 clients, 3 samples)"


@pytest.mark.parametrize(
    ("starts", "sizes", "order", "message"),
    [
        ([], [], None, "a federation has 0 clients"),
        ([0, 1], [1, 0], None, "client 1 has no samples"),
        ([0, 1], [1], None, "sizes has 1 entries, but starts has 2"),
        ([0, -1], 2, None, "client 1 has the index -1, but the data set has only 9 samples"),
        ([0, 7], 3, None, "client 1 has the index 9, but the data set has only 9 samples"),
        ([0, 2**62], 2**62, None, f"client 0 has the index {2**62 - 1}, but"),
        ([0, 1], 2, [0, 1], "client 1 has the place 2 of order, but order has only 2 entries"),
        ([0, 2], [2, 2], [0, 1, 2, 9], "client 1 has the index 9, but the data set has only 9 samples"),
        ([0], [2], [0, 1, 9], "order has the index 9, but the data set has only 9 samples"),
        ([0.5], [1], None, "starts must be a flat list of whole numbers"),
        ([[0]], [1], None, "starts must be a flat list of whole numbers"),
        ([0], [[1]], None, "sizes must be a flat list of whole numbers"),
        ([0], [True], None, "sizes must be a flat list of whole numbers"),
        ([0], [1], [0.0], "order must be a flat list of whole numbers"),
    ],
)
def test_wrong_windows_are_refused_with_the_rule(starts, sizes, order, message):
    with pytest.raises(UsageError, match=message):
        federation(ClientIndices(starts, sizes, order))


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        (3, "indices is of type int, but must hold the samples of each client"),
        (np.array([1, 2]), "client 0's indices must be a flat list of whole numbers"),
        (np.zeros((2, 0), int), "client 0 has no samples"),
        (np.zeros((0, 2), int), "a federation has 0 clients"),
        (np.array([[0.5]]), "client 0's indices must be a flat list of whole numbers"),
        (torch.tensor([[True]]), "client 0's indices must be a flat list of whole numbers"),
        (torch.tensor([[0, 1], [2, 9]]), "client 1 has the index 9, but the data set has only 9 samples"),
        ([[0], [2**32]], "client 1 has the index 4294967296, but the data set has only 9 samples"),
    ],
)
def test_wrong_tables_and_lists_are_refused_with_the_rule(indices, message):
    with pytest.raises(UsageError, match=message):
        federation(indices)


def test_a_million_clients_are_a_matter_of_moments():
    began = time.process_time()
    made = Federation.from_indices(np.zeros((1000, 1)), np.zeros(1000, int), np.zeros((1_000_000, 3), np.int32))
    assert len(made.to(torch.float32)) == 1_000_000
    assert made.indices[999_999].tolist() == [0, 0, 0]
    assert time.process_time() - began < 5
