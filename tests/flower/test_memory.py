"""The memory of a client and of the server: docs/deploy.md says which vectors they hold."""

import sys

import pytest

from benchmarks.flower_memory import measured

BOUNDS = {"fedavg": (5, 5), "scaffold-m": (9, 8)}
"""The most vectors of a client and of the server with two clients."""

SLACK = 0.5
"""For what does not grow with the model."""


@pytest.mark.skipif(sys.platform != "linux", reason="the peaks are read from /proc")
def test_a_client_and_the_server_hold_no_more_vectors_than_the_documentation_says():
    for algorithm, found in measured(list(BOUNDS), parameters=2000**2, clients=2):
        client, server = BOUNDS[algorithm]
        assert found.client < client + SLACK, algorithm
        assert found.server < server + SLACK, algorithm
