"""The store gives back what was put in, wherever it keeps it."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import kedge
from kedge.checks import byte_size
from kedge.exchange import Nothing
from kedge.simulator.store import ClientStore
from tests.cases import CASES
from tests.oracles import saved
from tests.test_contract import named, run


class Row(NamedTuple):
    vector: torch.Tensor
    number: torch.Tensor
    table: torch.Tensor


def row(value: float, size: int = 7) -> Row:
    made = torch.full((size,), value, dtype=torch.float64)
    return Row(made.float(), made[0].bfloat16(), made.repeat(3, 1).t())  # odd sizes, a single number, a transpose


def same(one: Row, other: Row) -> bool:
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(one, other, strict=True))


@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(-100, 100) | st.none()), max_size=40),
    st.integers(0, 10),
    st.integers(1, 1500),
)
def test_random_operations_do_what_they_do_to_a_dict(writes, rows_in_memory, size):
    limit = rows_in_memory * sum(vector.nbytes for vector in row(0, size))
    store, plain = ClientStore(lambda: row(0.5, size), limit), {}
    for client, value in writes:
        assert same(store[client], plain.get(client, row(0.5, size)))
        if value is None:  # its state goes to another process
            store.drop([client])
            plain.pop(client, None)
        else:
            store[client] = plain[client] = row(value, size)
    for client in range(9):
        assert isinstance(store[client], Row)
        assert same(store[client], plain.get(client, row(0.5, size)))
    assert len(store._rows) <= rows_in_memory
    assert store.clients(changed=False) == sorted(plain)
    assert len(plain) < 9 or store._scratch._end <= 9  # places of dropped rows are used again


def test_what_was_read_stays_as_it_was():
    store = ClientStore(lambda: row(0), limit=0)
    store[3] = row(1)
    kept = store[3]
    store[3] = Row(*kept)._replace(vector=2 * kept.vector)
    assert same(kept, row(1))
    assert torch.equal(store[3].vector, 2 * kept.vector)


def test_an_empty_state_is_no_state():
    store = ClientStore(Nothing, limit=0)
    store[1] = Nothing()
    assert store[1] == Nothing()
    assert not store.clients(changed=False)


def test_threads_read_while_rows_of_others_are_written():
    store, clients = ClientStore(lambda: row(0, 500), limit=0), range(40)
    for client in clients:
        store[client] = row(client, 500)
    stop = threading.Event()

    def read(client: int) -> bool:
        good = True
        while not stop.is_set():
            good &= same(store[client], row(client, 500))
        return good

    with ThreadPoolExecutor(4) as pool:
        results = pool.map(read, clients[:4])
        for number in range(200):
            store[4 + number % 100] = row(number, 500)
        stop.set()
        assert all(results)


def test_the_file_has_no_name_and_goes_with_the_store(tmp_path):
    store = ClientStore(lambda: row(0), limit=0, directory=tmp_path)
    store[0] = row(1)
    file = store._scratch._file
    assert same(store[0], row(1))
    assert not list(tmp_path.iterdir())
    del store
    gc.collect()
    assert file.closed


def test_a_place_that_cannot_be_written_and_a_row_of_another_shape_are_one_sentence(tmp_path):
    with pytest.raises(kedge.UsageError, match=r"state beyond state_memory cannot be written in .*nowhere: No such"):
        ClientStore(lambda: row(0), 0, tmp_path / "nowhere")[0] = row(1)
    store = ClientStore(lambda: row(0), 0, tmp_path)
    store[0] = row(1)
    with pytest.raises(kedge.UsageError, match="an exchange has changed the shapes or dtypes of a client's state"):
        store[1] = row(1, size=8)
    store[1] = row(2)
    assert same(store[0], row(1))


STATEFUL = [case for case in CASES if len(kedge.ALGORITHMS[case.id](**case.hyper).init_client(torch.zeros(2)))]


def test_many_algorithms_keep_client_state():
    assert {"scaffold-m", "feddyn", "fedgate", "stem"} <= {case.id for case in STATEFUL}


@pytest.mark.parametrize("case", STATEFUL, ids=named)
def test_the_limit_changes_no_bit(case):
    """A limit of 0 bytes: all in the file; 100 bytes: some in memory (a vector of 5 numbers has 40)."""
    cohort = None if kedge.ALGORITHMS[case.id].full_participation else 3
    plain, *others = (run(case, cohort, state_memory=limit, threads=2) for limit in ("4GB", 0, 100))
    for other in others:
        assert len(list(other.simulation._store._scratch))
        assert all(torch.equal(plain.server[name], other.server[name]) for name in plain.server)
        for client in range(len(plain.simulation.federation)):
            mine, theirs = plain.client(client), other.client(client)
            assert mine.keys() == theirs.keys()
            assert all(torch.equal(mine[name], theirs[name]) for name in mine)
        assert {**plain.history[-1], "seconds": 0} == {**other.history[-1], "seconds": 0}


def test_a_state_can_be_restored_under_another_limit():
    runs = [run(STATEFUL[0], 3, state_memory=limit, rounds=3).simulation for limit in (0, "1GB")]
    states = [saved(simulation) for simulation in runs]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    runs[1].restore(runs[0].server_state(), runs[0].client_rows(changed=False))
    again = saved(runs[1])
    assert all(torch.equal(states[0][name], again[name]) for name in again)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (0, 0),
        (1500, 1500),
        ("1500", 1500),
        ("7B", 7),
        ("500MB", 500 * 10**6),
        ("1.5 gb", 15 * 10**8),
        ("2GiB", 2**31),
        ("1kB", 1000),
        ("1tb", 10**12),
    ],
)
def test_sizes_are_read_as_people_write_them(text, size):
    assert byte_size("state_memory", text) == size


@pytest.mark.parametrize("value", ["", "much", "-1", -1, "1e9", "2 GB!", "GB", "1iB", "inf", None, True, 1.5, "9" * 40])
def test_a_wrong_size_is_one_sentence(value):
    with pytest.raises(kedge.UsageError, match=r"^state_memory is .*, but must be a size such as 500MB or 2GB$"):
        byte_size("state_memory", value)
