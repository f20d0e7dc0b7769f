"""A round costs what its cohort costs, whatever the number of clients."""

import tracemalloc

import numpy as np
import pytest
import torch

import kedge
from kedge.simulator import Settings, Simulation
from kedge.simulator.pool import AHEAD, Pool

MANY = 1_000_000


def federation(clients: int) -> kedge.Federation:
    rng = np.random.default_rng(0)
    features, labels = rng.standard_normal((500, 4)).astype(np.float32), rng.integers(0, 3, 500)
    indices = kedge.ClientIndices(rng.integers(0, 480, clients), rng.integers(8, 21, clients))
    return kedge.Federation.from_indices(features, labels, indices)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"weights": "size", "lost_replies": 0.2},
        {"local_epochs": 1.5},
        {"batch_size": None},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "method", [kedge.ScaffoldM(eta=0.1, opening_batches=0), kedge.FedDyn(eta=0.1), kedge.Mime(eta=0.1)], ids=str
)
def test_no_round_makes_a_list_of_all_clients(method, settings):
    """An array of a byte per client would take a megabyte; numpy's and Python's own memory is what is traced."""
    settings = Settings(**{"cohort": 8, "local_steps": 2, "batch_size": 4} | settings)
    model = kedge.build_model("logistic", (4,), 3)
    run = Simulation(model, federation(MANY), method, settings, threads=1)
    run.advance()
    tracemalloc.start()
    try:
        run.advance()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MANY / 2
    assert sum(len(rows["clients"]) for rows in run.client_rows(changed=False)) <= 16
    assert torch.isfinite(run.server["x"]).all()


def test_the_first_round_without_an_opening_makes_no_list_of_them_either():
    settings = Settings(cohort=8, local_steps=2, batch_size=4)
    run = Simulation(
        kedge.build_model("logistic", (4,), 3), federation(MANY), kedge.FedAvg(eta=0.1), settings, threads=1
    )
    tracemalloc.start()
    try:
        run.advance()
        assert tracemalloc.get_traced_memory()[1] < MANY / 2
    finally:
        tracemalloc.stop()


def test_a_window_is_as_good_as_a_list_of_its_indices():
    windows = federation(50)
    lists = kedge.Federation.from_indices(
        windows.features, windows.labels, [index.tolist() for index in windows.indices], windows.test
    )
    run = {"rounds": 3, "cohort": 7, "batch_size": 4, "weights": "size", "local_epochs": 2}
    model, method = kedge.build_model("mlp", (4,), 3, widths=(5,)), kedge.ScaffoldM(eta=0.1)
    one, other = (kedge.simulate(model, made, method, **run) for made in (windows, lists))
    assert torch.equal(one.server["x"], other.server["x"])


class Idle:
    name = "idle"

    def run(self, job):
        raise NotImplementedError


def test_workers_compute_a_bounded_number_of_clients_ahead():
    workers, started = Pool([Idle(), Idle()]), []

    def note(engine, item):
        started.append(item)
        return item

    results = workers.map(note, range(10_000))
    assert next(results) == 0
    results.close()
    workers.close()
    assert len(started) <= 2 * AHEAD + 1
    workers = Pool([Idle(), Idle()])
    assert list(workers.map(note, range(100))) == list(range(100))
    workers.close()
