"""Literal loops of the pseudo-code of every algorithm, in float64: what the library is tested against.

Slow and repetitive on purpose. Every function can be held beside its pseudo-code, line by line; nothing is
shared between algorithms but the mean of a list and the opening gradients. Notation: ``x`` is x^r, ``y`` the
local model x_i^{r,k}, ``g_i`` a local direction, ``N`` clients, ``S`` the size of the round's cohort.

A minibatch is named by (client i, round r, exchange e, number j); the same name is the same minibatch, at
whatever point it is evaluated. Opening gradients, over all clients, have r = -1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Cohorts = Sequence[Sequence[int]]


class Oracle(Protocol):
    """All gradients of a federation."""

    clients: int

    def grad(self, i: int, x: Vector, r: int, e: int, j: int) -> Vector:
        """Gradient at x of minibatch number j of client i in exchange e of round r."""
        ...

    def full(self, i: int, x: Vector) -> Vector:
        """Gradient of the client's whole data at x."""
        ...


@dataclass
class Trace:
    """The final server model, all server models x^0..x^R, and the final server and client vectors by name."""

    x: Vector
    xs: list[Vector]
    server: dict[str, Vector]
    clients: dict[str, dict[int, Vector]] = field(default_factory=dict)


def mean(vectors: Sequence[Vector]) -> Vector:
    """Average of a list of vectors."""
    total = np.zeros_like(vectors[0])
    for v in vectors:
        total = total + v
    return total / len(vectors)


def opening(oracle: Oracle, x: Vector, B: int) -> dict[int, Vector]:
    """For every client (1/B) sum_b grad F(x^0; xi_i^b); zeros if B = 0."""
    if B == 0:
        return {i: np.zeros_like(x) for i in range(oracle.clients)}
    return {i: mean([oracle.grad(i, x, -1, 0, j) for j in range(B)]) for i in range(oracle.clients)}


def start(x0: Vector) -> Vector:
    """A float64 copy of x^0."""
    return np.array(x0, dtype=np.float64)


def need_everybody(oracle: Oracle, cohorts: Cohorts) -> None:
    """Refuse client sampling, for the algorithms that are defined for full participation only."""
    for r, cohort in enumerate(cohorts):
        if sorted(cohort) != list(range(oracle.clients)):
            raise ValueError(f"full participation only, but round {r} has the clients {list(cohort)}")


# --------------------------------------------------------------------------------------------------
# FedAvg and its momentum forms
# --------------------------------------------------------------------------------------------------


def fedavg(
    oracle: Oracle,
    x0: Vector,
    cohorts: Cohorts,
    K: int | Sequence[int],
    *,
    eta: float,
    gamma: float | None = None,
) -> Trace:
    """FedAvg with a server rate (McMahan et al. 2017; section 2.1).

    With unequal K_i the K of the scaling is the mean of K_i over the cohort, so that gamma = eta K is still
    the plain average of the local models.
    """
    x = start(x0)
    g = np.zeros_like(x)
    xs = [x]
    for r, cohort in enumerate(cohorts):
        S = len(cohort)
        steps = {i: K if isinstance(K, int) else K[i] for i in cohort}
        K_mean = sum(steps.values()) / S
        total = np.zeros_like(x)
        for i in cohort:
            y = x
            for k in range(steps[i]):
                y = y - eta * oracle.grad(i, y, r, 0, k)
            total = total + (x - y)
        g = total / (eta * S * K_mean)
        x = x - (eta * K_mean if gamma is None else gamma) * g
        xs.append(x)
    return Trace(x, xs, {"x": x, "g": g})


def fedavg_m(
    oracle: Oracle,
    x0: Vector,
    cohorts: Cohorts,
    K: int,
    *,
    eta: float,
    gamma: float | None = None,
    beta: float,
) -> Trace:
    """FedAvg-M (Algorithm 1 of the paper; section 2.2), also FedCM (Xu et al. 2021)."""
    gamma = eta * K if gamma is None else gamma
    x = start(x0)
    g = np.zeros_like(x)
    xs = [x]
    for r, cohort in enumerate(cohorts):
        S = len(cohort)
        total = np.zeros_like(x)
        for i in cohort:
            y = x
            for k in range(K):
                g_i = beta * oracle.grad(i, y, r, 0, k) + (1 - beta) * g
                y = y - eta * g_i
            total = total + (x - y)
        g = total / (eta * S * K)
        x = x - gamma * g
        xs.append(x)
    return Trace(x, xs, {"x": x, "g": g})


def fedavg_m_vr(
    oracle: Oracle,
    x0: Vector,
    cohorts: Cohorts,
    K: int,
    *,
    eta: float,
    gamma: float | None = None,
    beta: float,
    B: int,
) -> Trace:
    """FedAvg-M-VR (Algorithm 3 of the paper, appendix; section 2.3)."""
    gamma = eta * K if gamma is None else gamma
    x = start(x0)
    x_prev = x
    g = mean(list(opening(oracle, x, B).values()))
    xs = [x]
    for r, cohort in enumerate(cohorts):
        S = len(cohort)
        total = np.zeros_like(x)
        for i in cohort:
            y = x
            for k in range(K):
                g_i = oracle.grad(i, y, r, 0, k) + (1 - beta) * (g - oracle.grad(i, x_prev, r, 0, k))
                y = y - eta * g_i
            total = total + (x - y)
        g = total / (eta * S * K)
        x_prev = x
        x = x - gamma * g
        xs.append(x)
    return Trace(x, xs, {"x": x, "x_prev": x_prev, "g": g})


def fedavg_m_hat(
    oracle: Oracle,
    x0: Vector,
    cohorts: Cohorts,
    K: int,
    *,
    eta_hat: float,
    gamma_hat: float | None = None,
    beta: float,
) -> Trace:
    """FedAvg-M with g_hat = g / beta (appendix of the paper, reparametrisation; section 2.7)."""
    gamma_hat = eta_hat * K if gamma_hat is None else gamma_hat
    x = start(x0)
    g_hat = np.zeros_like(x)
    xs = [x]
    for r, cohort in enumerate(cohorts):
        S = len(cohort)
        total = np.zeros_like(x)
        for i in cohort:
            y = x
            for k in range(K):
                g_i = oracle.grad(i, y, r, 0, k) + (1 - beta) * g_hat
                y = y - eta_hat * g_i
            total = total + (x - y)
        g_hat = total / (eta_hat * S * K)
        x = x - gamma_hat * g_hat
        xs.append(x)
    return Trace(x, xs, {"x": x, "g_hat": g_hat})


# --------------------------------------------------------------------------------------------------
# SCAFFOLD and its momentum forms
# --------------------------------------------------------------------------------------------------


def scaffold(
    oracle: Oracle,
    x0: Vector,
    cohorts: Cohorts,
    K: int,
    *,
    eta: float,
    gamma: float | None = None,
    B: int,
    option: str = "paper",
) -> Trace:
    """SCAFFOLD (Karimireddy et al. 2020; section 2.4).

    option: "paper" stores the mean gradient along the path, "II" recovers it from the displacement, "I"
    stores the full-batch gradient at x^r, and "frozen" never updates any control variable.
    """
    gamma = eta * K if gamma is None else gamma
    N = oracle.clients
    x = start(x0)
    g = np.zeros_like(x)
    c_i = opening(oracle, x, B)
    c = mean(list(c_i.values()))
    xs = [x]
    for r, cohort in enumerate(cohorts):
        S = len(cohort)
        total = np.zeros_like(x)
        total_dc = np.zeros_like(x)
        new_c_i = dict(c_i)
        for i in cohort:
            y = x
            path = []
            for k in range(K):
                grad = oracle.grad(i, y, r, 0, k)
                path.append(grad)
                y = y - eta * (grad - c_i[i] + c)
            if option == "paper":
                new_c_i[i] = mean(path)
            elif option == "II":
                new_c_i[i] = c_i[i] - c + (x - y) / (eta * K)
            elif option == "I":
                new_c_i[i] = oracle.full(i, x)
            elif option != "frozen":
                raise ValueError(f"option is {option!r}")
            total = total + (x - y)
            total_dc = total_dc + (new_c_i[i] - c_i[i])
        g = total / (eta * S * K)
        x = x - gamma * g
        c = c + total_dc / N
        c_i = new_c_i
        xs.append(x)
    return Trace(x, xs, {"x": x, "g": g, "c": c}, {"c_i": c_i})


def scaffold_m(
    oracle: Oracle,
    x0: Vector,
    cohorts: Cohorts,
    K: int,
    *,
    eta: float,
    gamma: float | None = None,
    beta: float,
    B: int,
    option: str = "paper",
) -> Trace:
    """SCAFFOLD-M (Algorithm 2 of the paper; section 2.5).

    option: "paper" stores the mean gradient along the path, "II" un-mixes it from the displacement, "frozen"
    never updates any control variable.
    """
    gamma = eta * K if gamma is None else gamma
    N = oracle.clients
    x = start(x0)
    g = np.zeros_like(x)
    c_i = opening(oracle, x, B)
    c = mean(list(c_i.values()))
    xs = [x]
    for r, cohort in enumerate(cohorts):
        S = len(cohort)
        total = np.zeros_like(x)
        total_dc = np.zeros_like(x)
        new_c_i = dict(c_i)
        for i in cohort:
            y = x
            path = []
            for k in range(K):
                grad = oracle.grad(i, y, r, 0, k)
                path.append(grad)
                g_i = beta * (grad - c_i[i] + c) + (1 - beta) * g
                y = y - eta * g_i
            if option == "paper":
                new_c_i[i] = mean(path)
            elif option == "II":
                new_c_i[i] = c_i[i] - c + ((x - y) / (eta * K) - (1 - beta) * g) / beta
            elif option != "frozen":
                raise ValueError(f"option is {option!r}")
            total = total + (x - y)
            total_dc = total_dc + (new_c_i[i] - c_i[i])
        g = total / (eta * S * K)
        x = x - gamma * g
        c = c + total_dc / N
        c_i = new_c_i
        xs.append(x)
    return Trace(x, xs, {"x": x, "g": g, "c": c}, {"c_i": c_i})


def scaffold_m_vr(
    oracle: Oracle,
    x0: Vector,
    cohorts: Cohorts,
    K: int,
    *,
    eta: float,
    gamma: float | None = None,
    beta: float,
    B: int,
) -> Trace:
    """SCAFFOLD-M-VR (Algorithm 4 of the paper, appendix; section 2.6)."""
    gamma = eta * K if gamma is None else gamma
    N = oracle.clients
    x = start(x0)
    x_prev = x
    c_i = opening(oracle, x, B)
    c = mean(list(c_i.values()))
    g = c
    xs = [x]
    for r, cohort in enumerate(cohorts):
        S = len(cohort)
        total = np.zeros_like(x)
        total_dc = np.zeros_like(x)
        new_c_i = dict(c_i)
        for i in cohort:
            y = x
            path = []
            for k in range(K):
                grad = oracle.grad(i, y, r, 0, k)
                path.append(grad)
                g_i = grad - beta * (c_i[i] - c) + (1 - beta) * (g - oracle.grad(i, x_prev, r, 0, k))
                y = y - eta * g_i
            new_c_i[i] = mean(path)
            total = total + (x - y)
            total_dc = total_dc + (new_c_i[i] - c_i[i])
        g = total / (eta * S * K)
        x_prev = x
        x = x - gamma * g
        c = c + total_dc / N
        c_i = new_c_i
        xs.append(x)
    return Trace(x, xs, {"x": x, "x_prev": x_prev, "g": g, "c": c}, {"c_i": c_i})


def scaffold_m_hat(
    oracle: Oracle,
    x0: Vector,
    cohorts: Cohorts,
    K: int,
    *,
    eta_hat: float,
    gamma_hat: float | None = None,
    beta: float,
    B: int,
) -> Trace:
    """SCAFFOLD-M with g_hat = g / beta (appendix of the paper, reparametrisation; section 2.7)."""
    gamma_hat = eta_hat * K if gamma_hat is None else gamma_hat
    N = oracle.clients
    x = start(x0)
    g_hat = np.zeros_like(x)
    c_i = opening(oracle, x, B)
    c = mean(list(c_i.values()))
    xs = [x]
    for r, cohort in enumerate(cohorts):
        S = len(cohort)
        total = np.zeros_like(x)
        total_dc = np.zeros_like(x)
        new_c_i = dict(c_i)
        for i in cohort:
            y = x
            path = []
            for k in range(K):
                grad = oracle.grad(i, y, r, 0, k)
                path.append(grad)
                g_i = grad - c_i[i] + c + (1 - beta) * g_hat
                y = y - eta_hat * g_i
            new_c_i[i] = mean(path)
            total = total + (x - y)
            total_dc = total_dc + (new_c_i[i] - c_i[i])
        g_hat = total / (eta_hat * S * K)
        x = x - gamma_hat * g_hat
        c = c + total_dc / N
        c_i = new_c_i
        xs.append(x)
    return Trace(x, xs, {"x": x, "g_hat": g_hat, "c": c}, {"c_i": c_i})


# --------------------------------------------------------------------------------------------------
# Recursive gradient estimates: MB-STORM, CE-LSGD, BVR-L-SGD, STEM
# --------------------------------------------------------------------------------------------------


def mb_storm(
    oracle: Oracle,
    x0: Vector,
    cohorts: Cohorts,
    K: int,
    *,
    eta: float,
    gamma: float | None = None,
    beta: float,
    B: int,
) -> Trace:
    """Minibatch STORM (baseline of Patel et al. 2022; section 2.8). eta only sets the default of gamma."""
    gamma = eta * K if gamma is None else gamma
    x = start(x0)
    x_prev = x
    v = mean(list(opening(oracle, x, B).values()))
    xs = [x]
    for r, cohort in enumerate(cohorts):
        if r >= 1:
            u = []
            for i in cohort:
                differences = []
                for k in range(K):
                    here = oracle.grad(i, x, r, 0, k)
                    before = oracle.grad(i, x_prev, r, 0, k)
                    differences.append(here - (1 - beta) * before)
                u.append(mean(differences))
            v = mean(u) + (1 - beta) * v
        x_prev = x
        x = x - gamma * v
        xs.append(x)
    return Trace(x, xs, {"x": x, "x_prev": x_prev, "v": v})


def ce_lsgd(
    oracle: Oracle,
    x0: Vector,
    cohorts: Cohorts,
    K: int,
    *,
    eta: float,
    beta: float,
    B: int,
    output: str = "one",
    K_b: int | None = None,
) -> Trace:
    """CE-LSGD (Patel et al. 2022; section 2.9).

    output: "one" lets the first client of the cohort run the local phase, "average" lets all of it. K_b is
    the number of minibatches of the estimate; None is K.
    """
    K_b = K if K_b is None else K_b
    x = start(x0)
    x_prev = x
    v = mean(list(opening(oracle, x, B).values()))
    xs = [x]
    for r, cohort in enumerate(cohorts):
        if r >= 1:
            u_i = []
            for i in cohort:
                differences = []
                for k in range(K_b):
                    here = oracle.grad(i, x, r, 0, k)
                    before = oracle.grad(i, x_prev, r, 0, k)
                    differences.append(here - (1 - beta) * before)
                u_i.append(mean(differences))
            v = mean(u_i) + (1 - beta) * v
        e = 0 if r == 0 else 1
        if output == "one":
            runners = [cohort[0]]
        elif output == "average":
            runners = list(cohort)
        else:
            raise ValueError(f"output is {output!r}")
        ends = []
        for i in runners:
            w = [x]
            u = [v]
            for k in range(K):
                w.append(w[k] - eta * u[k])
                if k + 1 < K:
                    new = oracle.grad(i, w[k + 1], r, e, k + 1)
                    old = oracle.grad(i, w[k], r, e, k + 1)
                    u.append(u[k] + new - old)
            ends.append(w[K])
        x_prev = x
        x = mean(ends)
        xs.append(x)
    return Trace(x, xs, {"x": x, "x_prev": x_prev, "v": v})


def bvr_l_sgd(
    oracle: Oracle,
    x0: Vector,
    cohorts: Cohorts,
    K: int,
    *,
    eta: float,
    stage_rounds: int,
    B: int,
) -> Trace:
    """BVR-L-SGD (Murata and Suzuki 2021; section 2.10). The first client of the list gives x^{r+1}."""
    need_everybody(oracle, cohorts)
    if B < 1:
        raise ValueError(f"a stage starts from at least one minibatch, but B is {B}")
    x = start(x0)
    x_prev = x
    v = np.zeros_like(x)
    xs = [x]
    for r, cohort in enumerate(cohorts):
        if r == 0:
            v = mean(list(opening(oracle, x, B).values()))
        elif r % stage_rounds == 0:
            v = mean([mean([oracle.grad(i, x, r, 0, j) for j in range(B)]) for i in cohort])
        else:
            change = []
            for i in cohort:
                differences = []
                for k in range(K):
                    here = oracle.grad(i, x, r, 0, k)
                    before = oracle.grad(i, x_prev, r, 0, k)
                    differences.append(here - before)
                change.append(mean(differences))
            v = v + mean(change)
        e = 0 if r == 0 else 1
        i = cohort[0]
        w = [x]
        u = [v]
        for k in range(K):
            w.append(w[k] - eta * u[k])
            if k + 1 < K:
                new = oracle.grad(i, w[k + 1], r, e, k + 1)
                old = oracle.grad(i, w[k], r, e, k + 1)
                u.append(u[k] + new - old)
        x_prev = x
        x = w[K]
        xs.append(x)
    return Trace(x, xs, {"x": x, "x_prev": x_prev, "v": v})


def stem(
    oracle: Oracle,
    x0: Vector,
    cohorts: Cohorts,
    K: int,
    *,
    eta: float,
    beta: float,
    B: int,
    reference: str = "local",
) -> Trace:
    """STEM (Khanduri et al. 2021; section 2.11).

    reference: the old point of the first direction update after a synchronisation is the client's own model
    before the average ("local") or the averaged model ("average").
    """
    need_everybody(oracle, cohorts)
    x = start(x0)
    d = mean(list(opening(oracle, x, B).values()))
    x_i = dict.fromkeys(range(oracle.clients), x)
    xs = [x]
    for r, cohort in enumerate(cohorts):
        d_i = {}
        new_x_i = {}
        for i in cohort:
            if reference == "local":
                y_old = x_i[i]
            elif reference == "average":
                y_old = x
            else:
                raise ValueError(f"reference is {reference!r}")
            direction = d
            y = x - eta * d
            for k in range(K):
                new = oracle.grad(i, y, r, 0, k)
                old = oracle.grad(i, y_old, r, 0, k)
                direction = new + (1 - beta) * (direction - old)
                if k < K - 1:
                    y_old = y
                    y = y - eta * direction
            new_x_i[i] = y
            d_i[i] = direction
        x_i = new_x_i
        x = mean(list(x_i.values()))
        d = mean(list(d_i.values()))
        xs.append(x)
    return Trace(x, xs, {"x": x, "d": d}, {"x_i": x_i})


# --------------------------------------------------------------------------------------------------
# Mime
# --------------------------------------------------------------------------------------------------


def mimelite(oracle: Oracle, x0: Vector, cohorts: Cohorts, K: int, *, eta: float, beta: float) -> Trace:
    """MimeLite with SGD momentum (Karimireddy et al. 2020b; section 2.12)."""
    x = start(x0)
    m = np.zeros_like(x)
    xs = [x]
    for r, cohort in enumerate(cohorts):
        ends = []
        full = []
        for i in cohort:
            y = x
            for k in range(K):
                y = y - eta * (beta * oracle.grad(i, y, r, 1, k) + (1 - beta) * m)
            ends.append(y)
            full.append(oracle.full(i, x))
        m = beta * mean(full) + (1 - beta) * m
        x = mean(ends)
        xs.append(x)
    return Trace(x, xs, {"x": x, "m": m})


def mime(oracle: Oracle, x0: Vector, cohorts: Cohorts, K: int, *, eta: float, beta: float) -> Trace:
    """Mime with SGD momentum (Karimireddy et al. 2020b; section 2.12)."""
    x = start(x0)
    m = np.zeros_like(x)
    xs = [x]
    for r, cohort in enumerate(cohorts):
        c = mean([oracle.full(i, x) for i in cohort])
        ends = []
        for i in cohort:
            y = x
            for k in range(K):
                corrected = oracle.grad(i, y, r, 1, k) - oracle.grad(i, x, r, 1, k) + c
                y = y - eta * (beta * corrected + (1 - beta) * m)
            ends.append(y)
        m = beta * c + (1 - beta) * m
        x = mean(ends)
        xs.append(x)
    return Trace(x, xs, {"x": x, "m": m})


def mimelite_mvr(
    oracle: Oracle,
    x0: Vector,
    cohorts: Cohorts,
    K: int,
    *,
    eta: float,
    beta: float,
    reference: str = "prev",
) -> Trace:
    """MimeLiteMVR (Karimireddy et al. 2020b; section 2.13).

    reference: the local steps use (m^r, x^{r-1}), "prev", or (m^{r+1}, x^r), "current".
    """
    x = start(x0)
    x_prev = x
    m = mean([oracle.full(i, x) for i in range(oracle.clients)])
    xs = [x]
    for r, cohort in enumerate(cohorts):
        here = mean([oracle.full(i, x) for i in cohort])
        before = mean([oracle.full(i, x_prev) for i in cohort])
        m_next = here + (1 - beta) * (m - before)
        if reference == "prev":
            m_used, ref = m, x_prev
        elif reference == "current":
            m_used, ref = m_next, x
        else:
            raise ValueError(f"reference is {reference!r}")
        ends = []
        for i in cohort:
            y = x
            for k in range(K):
                grad = oracle.grad(i, y, r, 1, k)
                at_ref = oracle.grad(i, ref, r, 1, k)
                y = y - eta * (beta * grad + (1 - beta) * (m_used + grad - at_ref))
            ends.append(y)
        m = m_next
        x_prev = x
        x = mean(ends)
        xs.append(x)
    return Trace(x, xs, {"x": x, "x_prev": x_prev, "m": m})


def mime_mvr(
    oracle: Oracle,
    x0: Vector,
    cohorts: Cohorts,
    K: int,
    *,
    eta: float,
    beta: float,
    reference: str = "prev",
) -> Trace:
    """MimeMVR (Karimireddy et al. 2020b; section 2.13): MimeLiteMVR with the SVRG correction of Mime.

    reference: the local steps use (m^r, x^{r-1}), "prev", or (m^{r+1}, x^r), "current".
    """
    x = start(x0)
    x_prev = x
    m = mean([oracle.full(i, x) for i in range(oracle.clients)])
    xs = [x]
    for r, cohort in enumerate(cohorts):
        c = mean([oracle.full(i, x) for i in cohort])
        before = mean([oracle.full(i, x_prev) for i in cohort])
        m_next = c + (1 - beta) * (m - before)
        if reference == "prev":
            m_used, ref = m, x_prev
        elif reference == "current":
            m_used, ref = m_next, x
        else:
            raise ValueError(f"reference is {reference!r}")
        ends = []
        for i in cohort:
            y = x
            for k in range(K):
                grad = oracle.grad(i, y, r, 1, k)
                corrected = grad - oracle.grad(i, x, r, 1, k) + c
                at_ref = oracle.grad(i, ref, r, 1, k)
                y = y - eta * (beta * corrected + (1 - beta) * (m_used + grad - at_ref))
            ends.append(y)
        m = m_next
        x_prev = x
        x = mean(ends)
        xs.append(x)
    return Trace(x, xs, {"x": x, "x_prev": x_prev, "m": m})


# --------------------------------------------------------------------------------------------------
# Proximal and primal-dual methods, normalised averaging
# --------------------------------------------------------------------------------------------------


def fedprox(
    oracle: Oracle,
    x0: Vector,
    cohorts: Cohorts,
    K: int,
    *,
    eta: float,
    mu: float,
    gamma: float | None = None,
) -> Trace:
    """FedProx with K gradient steps as the local solver (Li et al. 2020; section 2.14)."""
    gamma = eta * K if gamma is None else gamma
    x = start(x0)
    g = np.zeros_like(x)
    xs = [x]
    for r, cohort in enumerate(cohorts):
        S = len(cohort)
        total = np.zeros_like(x)
        for i in cohort:
            y = x
            for k in range(K):
                y = y - eta * (oracle.grad(i, y, r, 0, k) + mu * (y - x))
            total = total + (x - y)
        g = total / (eta * S * K)
        x = x - gamma * g
        xs.append(x)
    return Trace(x, xs, {"x": x, "g": g})


def fednova(oracle: Oracle, x0: Vector, cohorts: Cohorts, K: int | Sequence[int], *, eta: float) -> Trace:
    """FedNova with plain SGD clients and uniform weights p_i = 1/S (Wang et al. 2020; section 2.15)."""
    x = start(x0)
    xs = [x]
    for r, cohort in enumerate(cohorts):
        S = len(cohort)
        p = 1 / S
        tau_eff = 0.0
        total = np.zeros_like(x)
        for i in cohort:
            K_i = K if isinstance(K, int) else K[i]
            y = x
            for k in range(K_i):
                y = y - eta * oracle.grad(i, y, r, 0, k)
            d_i = (x - y) / (eta * K_i)
            total = total + p * d_i
            tau_eff = tau_eff + p * K_i
        x = x - eta * tau_eff * total
        xs.append(x)
    return Trace(x, xs, {"x": x})


def feddyn(oracle: Oracle, x0: Vector, cohorts: Cohorts, K: int, *, eta: float, alpha: float) -> Trace:
    """FedDyn with K gradient steps from x^r as the local solver (Acar et al. 2021; section 2.16)."""
    N = oracle.clients
    x = start(x0)
    h = np.zeros_like(x)
    q_i = {i: np.zeros_like(x) for i in range(N)}
    xs = [x]
    for r, cohort in enumerate(cohorts):
        ends = []
        total = np.zeros_like(x)
        for i in cohort:
            y = x
            for k in range(K):
                y = y - eta * (oracle.grad(i, y, r, 0, k) - q_i[i] + alpha * (y - x))
            q_i[i] = q_i[i] - alpha * (y - x)
            ends.append(y)
            total = total + (y - x)
        h = h - (alpha / N) * total
        x = mean(ends) - h / alpha
        xs.append(x)
    return Trace(x, xs, {"x": x, "h": h}, {"q_i": q_i})


def fedpd(
    oracle: Oracle,
    x0: Vector,
    cohorts: Cohorts,
    K: int,
    *,
    eta: float,
    alpha: float,
    communicate: Sequence[bool],
) -> Trace:
    """FedPD with K gradient steps from the anchor x_{0,i} (Zhang et al. 2021; section 2.17).

    alpha = 1 / eta_pd. In a round without communication the server model stays what it was.
    """
    need_everybody(oracle, cohorts)
    N = oracle.clients
    eta_pd = 1 / alpha
    x = start(x0)
    x_i = dict.fromkeys(range(N), x)
    x_0i = dict.fromkeys(range(N), x)
    lambda_i = {i: np.zeros_like(x) for i in range(N)}
    xs = [x]
    for r, cohort in enumerate(cohorts):
        plus = {}
        for i in cohort:
            y = x_0i[i]
            for k in range(K):
                y = y - eta * (oracle.grad(i, y, r, 0, k) + lambda_i[i] + (y - x_0i[i]) / eta_pd)
            x_i[i] = y
            lambda_i[i] = lambda_i[i] + (y - x_0i[i]) / eta_pd
            plus[i] = y + eta_pd * lambda_i[i]
        if communicate[r]:
            x = mean(list(plus.values()))
            x_0i = dict.fromkeys(range(N), x)
        else:
            x_0i = plus
        xs.append(x)
    return Trace(x, xs, {"x": x}, {"x_i": x_i, "x_0i": x_0i, "lambda_i": lambda_i})


# --------------------------------------------------------------------------------------------------
# Gradient tracking with one vector each way
# --------------------------------------------------------------------------------------------------


def vrl_sgd(
    oracle: Oracle,
    x0: Vector,
    cohorts: Cohorts,
    K: int,
    *,
    eta: float,
    D_0: dict[int, Vector] | None = None,
) -> Trace:
    """VRL-SGD (Liang et al. 2019; section 2.18). D_0 is D_i^0; None is zero."""
    need_everybody(oracle, cohorts)
    x = start(x0)
    D_i = {i: np.zeros_like(x) for i in range(oracle.clients)} if D_0 is None else dict(D_0)
    xs = [x]
    for r, cohort in enumerate(cohorts):
        ends = {}
        for i in cohort:
            y = x
            for k in range(K):
                y = y - eta * (oracle.grad(i, y, r, 0, k) - D_i[i])
            ends[i] = y
        x = mean(list(ends.values()))
        for i in cohort:
            D_i[i] = D_i[i] + (x - ends[i]) / (eta * K)
        xs.append(x)
    return Trace(x, xs, {"x": x}, {"D_i": D_i})


def fedgate(
    oracle: Oracle,
    x0: Vector,
    cohorts: Cohorts,
    K: int,
    *,
    eta: float,
    gamma: float | None = None,
) -> Trace:
    """FedGATE without compression (Haddadpour et al. 2021; section 2.19); only the cohort updates delta_i."""
    gamma = eta * K if gamma is None else gamma
    x = start(x0)
    g = np.zeros_like(x)
    delta_i = {i: np.zeros_like(x) for i in range(oracle.clients)}
    xs = [x]
    for r, cohort in enumerate(cohorts):
        u_i = {}
        for i in cohort:
            y = x
            for k in range(K):
                y = y - eta * (oracle.grad(i, y, r, 0, k) - delta_i[i])
            u_i[i] = (x - y) / (eta * K)
        g = mean(list(u_i.values()))
        for i in cohort:
            delta_i[i] = delta_i[i] + u_i[i] - g
        x = x - gamma * g
        xs.append(x)
    return Trace(x, xs, {"x": x, "g": g}, {"delta_i": delta_i})


def led(
    oracle: Oracle,
    x0: Vector,
    cohorts: Cohorts,
    K: int,
    *,
    eta: float,
    b: float | None = None,
) -> Trace:
    """LED on a star network (Alghunaim 2023; section 2.20). b = None is 1/K."""
    need_everybody(oracle, cohorts)
    b = 1 / K if b is None else b
    x = start(x0)
    u_i = {i: np.zeros_like(x) for i in range(oracle.clients)}  # y_i / eta: a gradient, whatever eta was
    xs = [x]
    for r, cohort in enumerate(cohorts):
        phi_i = {}
        for i in cohort:
            phi = x
            for k in range(K):
                phi = phi - eta * oracle.grad(i, phi, r, 0, k) - b * (eta * u_i[i])
            phi_i[i] = phi
        x = mean(list(phi_i.values()))
        for i in cohort:
            u_i[i] = u_i[i] + (phi_i[i] - x) / eta
        xs.append(x)
    return Trace(x, xs, {"x": x}, {"y_i": {i: eta * u for i, u in u_i.items()}})


# --------------------------------------------------------------------------------------------------
# Server optimisers
# --------------------------------------------------------------------------------------------------


def slowmo(
    oracle: Oracle,
    x0: Vector,
    cohorts: Cohorts,
    K: int,
    *,
    eta: float,
    alpha: float,
    beta: float,
) -> Trace:
    """SlowMo (Wang et al. 2020; section 2.21)."""
    x = start(x0)
    u = np.zeros_like(x)
    xs = [x]
    for r, cohort in enumerate(cohorts):
        ends = []
        for i in cohort:
            y = x
            for k in range(K):
                y = y - eta * oracle.grad(i, y, r, 0, k)
            ends.append(y)
        u = beta * u + (x - mean(ends)) / eta
        x = x - alpha * eta * u
        xs.append(x)
    return Trace(x, xs, {"x": x, "u": u})


def server_momentum(
    oracle: Oracle,
    x0: Vector,
    cohorts: Cohorts,
    K: int,
    *,
    eta: float,
    server_lr: float,
    beta1: float,
) -> Trace:
    """Server momentum, "FedAvgM" elsewhere (Hsu et al. 2019, Reddi et al. 2021; section 2.22)."""
    x = start(x0)
    m = np.zeros_like(x)
    xs = [x]
    for r, cohort in enumerate(cohorts):
        displacements = []
        for i in cohort:
            y = x
            for k in range(K):
                y = y - eta * oracle.grad(i, y, r, 0, k)
            displacements.append(y - x)
        D = mean(displacements)
        m = beta1 * m + D
        x = x + server_lr * m
        xs.append(x)
    return Trace(x, xs, {"x": x, "m": m})


def fedadagrad(
    oracle: Oracle,
    x0: Vector,
    cohorts: Cohorts,
    K: int,
    *,
    eta: float,
    server_lr: float,
    beta1: float = 0.0,
    beta2: float | None = None,
    tau: float,
) -> Trace:
    """FedAdagrad (Reddi et al. 2021; section 2.22). Published with beta1 = 0; beta2 has no part in it."""
    x = start(x0)
    m = np.zeros_like(x)
    v = tau**2 * np.ones_like(x)
    xs = [x]
    for r, cohort in enumerate(cohorts):
        displacements = []
        for i in cohort:
            y = x
            for k in range(K):
                y = y - eta * oracle.grad(i, y, r, 0, k)
            displacements.append(y - x)
        D = mean(displacements)
        m = beta1 * m + (1 - beta1) * D
        v = v + D**2
        x = x + server_lr * m / (np.sqrt(v) + tau)
        xs.append(x)
    return Trace(x, xs, {"x": x, "m": m, "v": v})


def fedadam(
    oracle: Oracle,
    x0: Vector,
    cohorts: Cohorts,
    K: int,
    *,
    eta: float,
    server_lr: float,
    beta1: float,
    beta2: float,
    tau: float,
) -> Trace:
    """FedAdam, without bias correction (Reddi et al. 2021; section 2.22)."""
    x = start(x0)
    m = np.zeros_like(x)
    v = tau**2 * np.ones_like(x)
    xs = [x]
    for r, cohort in enumerate(cohorts):
        displacements = []
        for i in cohort:
            y = x
            for k in range(K):
                y = y - eta * oracle.grad(i, y, r, 0, k)
            displacements.append(y - x)
        D = mean(displacements)
        m = beta1 * m + (1 - beta1) * D
        v = beta2 * v + (1 - beta2) * D**2
        x = x + server_lr * m / (np.sqrt(v) + tau)
        xs.append(x)
    return Trace(x, xs, {"x": x, "m": m, "v": v})


def fedyogi(
    oracle: Oracle,
    x0: Vector,
    cohorts: Cohorts,
    K: int,
    *,
    eta: float,
    server_lr: float,
    beta1: float,
    beta2: float,
    tau: float,
) -> Trace:
    """FedYogi, without bias correction (Reddi et al. 2021; section 2.22)."""
    x = start(x0)
    m = np.zeros_like(x)
    v = tau**2 * np.ones_like(x)
    xs = [x]
    for r, cohort in enumerate(cohorts):
        displacements = []
        for i in cohort:
            y = x
            for k in range(K):
                y = y - eta * oracle.grad(i, y, r, 0, k)
            displacements.append(y - x)
        D = mean(displacements)
        m = beta1 * m + (1 - beta1) * D
        v = v - (1 - beta2) * D**2 * np.sign(v - D**2)
        x = x + server_lr * m / (np.sqrt(v) + tau)
        xs.append(x)
    return Trace(x, xs, {"x": x, "m": m, "v": v})
