"""Where every algorithm ends on heterogeneous quadratics without noise: at the optimum, or how far from it.

    python -m benchmarks.limits

N = 10 clients, d = 20, K = 10, eta = 0.05, gamma = eta K, beta = 0.1, 800 rounds, relative error |x - x*| / |x^0 - x*|.
The rules are run on whole cohorts at once, as (S, d) vectors, which is what makes this quick.
"""

from typing import Any

import torch

import kedge
from kedge.exchange import Effort, Needs, Round
from kedge.local_steps import local_steps
from kedge.problem.keyed import sample_cohort

ETA, STEPS, ROUNDS = 0.05, 10, 800


def run(
    algorithm: Any, problem: kedge.problem.Quadratics, rounds: int = ROUNDS, cohort: int | None = None, seed: int = 0
) -> Any:
    """Return the server after ``rounds`` rounds with exact gradients."""
    x = problem.model.x.detach()
    clients = len(problem.centers)
    server, first = algorithm.init_server(x), algorithm.init_client(x)
    state = type(first)(*(field.expand(clients, *field.shape).clone() for field in first))
    for round in range(-1, rounds):
        sampled = sample_cohort(seed, max(round, 0), clients, cohort or clients)
        for exchange in algorithm.opening() if round < 0 else algorithm.exchanges(round):
            people = {"sampled": sampled, "everyone": list(range(clients)), "first": sampled[:1]}[exchange.cohort]
            rows = torch.tensor(sorted(people))
            own = type(state)(*(field[rows] for field in state))
            hessians, centers = problem.hessians[rows], problem.centers[rows]

            def gradient(point: Any, k: int, second: bool, hessians: Any = hessians, centers: Any = centers) -> Any:
                return torch.einsum("cij,cj->ci", hessians, point - centers)

            down = exchange.broadcast(server)
            steps = exchange.effort(Effort(STEPS)).steps
            start = exchange.start(down, own).expand(len(rows), -1)
            local = local_steps(
                exchange.direction(down, own),
                start,
                algorithm.eta,
                steps,
                gradient,
                Needs(mean_grad=True, last_direction=True),
            )
            up, new = exchange.reply(down, own, local)
            for field, value in zip(state, new, strict=True):
                field[rows] = value
            mean = type(up)(*(value.mean(0) if value.ndim else value for value in up))
            server = exchange.fold(server, mean, Round(len(rows) / clients, STEPS))
    return server


def error(x: torch.Tensor, problem: kedge.problem.Quadratics) -> float:
    """Return |x - x*| / |x^0 - x*|."""
    start = problem.model.x.detach()
    return float((x - problem.optimum).norm() / (start - problem.optimum).norm())
