"""The gradients of a federation for the literal loops: plain numpy, drawn by the library's documented keys."""

import kedge
from kedge.keyed import draw_minibatches


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
