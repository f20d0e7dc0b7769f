"""What a run draws, for the literal loops: gradients in plain numpy and lost replies, by the library's keys."""

from collections.abc import Iterable, Sequence

import numpy as np

import kedge
from kedge.keyed import LOSS, draw_minibatches, keyed
from tests import literal
from tests.literal import Vector


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


class NoisyQuadratics:
    """Heterogeneous quadratics whose noise depends on the point as well: (A_i + M_xi) x - b_i + n_xi.

    `exchanges=False` gives all exchanges the same minibatches.
    """

    seed = 0  # of what the algorithms draw

    def __init__(
        self,
        dim: int = 5,
        *,
        clients: int = 6,
        noise: float = 0.5,
        shared_hessian: bool = False,
        exchanges: bool = True,
    ) -> None:
        rng = np.random.default_rng(7)
        self.dim, self.clients = dim, clients
        self.noise = noise
        self.exchanges = exchanges
        self.A: list[Vector] = []
        for _ in range(clients):
            basis, _ = np.linalg.qr(rng.normal(size=(dim, dim)))
            self.A.append(basis @ np.diag(rng.uniform(0.2, 1.0, size=dim)) @ basis.T)
        if shared_hessian:
            self.A = [self.A[0]] * clients
        self.b: list[Vector] = [A @ (3 * rng.normal(size=dim)) for A in self.A]
        self.cache: dict[tuple[int, int, int, int], tuple[Vector, Vector]] = {}

    def noise_of(self, i: int, r: int, e: int, j: int) -> tuple[Vector, Vector]:
        name = (i, r, e if self.exchanges else 0, j)
        if name not in self.cache:
            low = (name[0] << 32) | (name[1] + 1)
            high = (name[2] << 32) | name[3]
            rng = np.random.Generator(np.random.Philox(key=np.array([low, high], dtype=np.uint64)))
            self.cache[name] = 0.2 * rng.normal(size=(self.dim, self.dim)), rng.normal(size=self.dim)
        return self.cache[name]

    def grad(self, i: int, x: Vector, r: int, e: int, j: int) -> Vector:
        exact = self.full(i, x)
        if self.noise == 0:
            return exact
        matrix, vector = self.noise_of(i, r, e, j)
        return exact + self.noise * (matrix @ x + vector)

    def full(self, i: int, x: Vector) -> Vector:
        gradient: Vector = self.A[i] @ x - self.b[i]
        return gradient

    def mean_gradient(self, x: Vector) -> Vector:
        return literal.mean([self.full(i, x) for i in range(self.clients)])

    def optimum(self) -> Vector:
        return np.asarray(np.linalg.solve(sum(self.A), sum(self.b)), dtype=np.float64)

    def fedavg_limit(self, eta: float, steps: int | Sequence[int]) -> Vector:
        """The point where the mean over clients of sum_k (I - eta A_i)^k (A_i x - b_i) is zero."""
        left, right = np.zeros((self.dim, self.dim)), np.zeros(self.dim)
        for i, (A, b) in enumerate(zip(self.A, self.b, strict=True)):
            count = steps if isinstance(steps, int) else steps[i]
            P = sum(np.linalg.matrix_power(np.eye(self.dim) - eta * A, k) for k in range(count))
            left, right = left + P @ A, right + P @ b
        return np.asarray(np.linalg.solve(left, right), dtype=np.float64)


def heard(seed: int, round: int, asked: Iterable[int], lost: float) -> list[int]:
    """Those of the clients whose replies arrive, in their order; the opening is round -1."""
    return [client for client in asked if keyed(seed, LOSS, round, client=client).random() >= lost]


def saved(run):
    """Return all that a run is at this moment, as flat named tensors."""
    rows = {}
    for some in run.client_rows(changed=False):
        for at, client in enumerate(some["clients"].tolist()):
            rows |= {f"{name}.{client}": some[name][at] for name in some if name != "clients"}
    return run.server_state() | rows
