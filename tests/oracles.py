"""What a run draws, for the literal loops: gradients in plain numpy and lost replies, by the library's keys."""

from collections.abc import Iterable

import kedge
from kedge.keyed import LOSS, draw_minibatches, keyed


class QuadraticOracle:
    """The gradients of `kedge.quadratics`: A_i (x - b_i) + the mean noise of the minibatch."""

    def __init__(self, problem: kedge.problem.Quadratics, seed: int, batch_size: int | None):
        self.clients = len(problem.federation)
        self.hessians, self.centers = problem.hessians.numpy(), problem.centers.numpy()
        self.noise = [problem.federation.client(i)[0][:, 1:].numpy() for i in range(self.clients)]
        self.seed, self.batch_size = seed, batch_size

    def full(self, i, x):
        return self.hessians[i] @ (x - self.centers[i])

    def grad(self, i, x, r, e, j):
        if self.batch_size is None:
            return self.full(i, x)
        (rows,) = draw_minibatches(self.seed, r, e, [i], [len(self.noise[i])], [j + 1], self.batch_size)
        return self.full(i, x) + self.noise[i][rows[j]].mean(0)


def heard(seed: int, round: int, asked: Iterable[int], lost: float) -> list[int]:
    """Those of the clients whose replies arrive, in their order; the opening is round -1."""
    return [client for client in asked if keyed(seed, LOSS, round, client=client).random() >= lost]
