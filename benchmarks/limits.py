"""Where every algorithm ends on heterogeneous quadratics without noise: at the optimum, or how far from it.

    python -m benchmarks.limits

N = 10 clients, d = 20, K = 10, eta = 0.05, gamma = eta K, beta = 0.1, 800 rounds, relative error |x - x*| / |x^0 - x*|.
The rules are run on whole cohorts at once, as (S, d) vectors, which is what makes this quick.
"""

from typing import Any

import torch

import kedge
from kedge.exchange import Effort, Heard, Needs
from kedge.keyed import sample_cohort
from kedge.local_steps import local_steps

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
        for exchange in algorithm.opening() if round < 0 else algorithm.exchanges(round, seed):
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
            server = exchange.fold(server, mean, Heard(len(rows) / clients, STEPS))
    return server


def error(x: torch.Tensor, problem: kedge.problem.Quadratics) -> float:
    """Return |x - x*| / |x^0 - x*|."""
    start = problem.model.x.detach()
    return float((x - problem.optimum).norm() / (start - problem.optimum).norm())


METHODS = {
    "FedAvg": kedge.FedAvg(eta=ETA),
    "FedAvg-M, β=.1": kedge.FedAvgM(eta=ETA, beta=0.1),
    "FedAvg-M, β=.1, η/100": kedge.FedAvgM(eta=ETA / 100, beta=0.1, gamma=ETA * STEPS),
    "FedAvg-M-VR, β=.1": kedge.FedAvgMVR(eta=ETA, beta=0.1),
    "SCAFFOLD": kedge.Scaffold(eta=ETA),
    "SCAFFOLD-M, β=.1": kedge.ScaffoldM(eta=ETA, beta=0.1),
    "SCAFFOLD-M-VR, β=.1": kedge.ScaffoldMVR(eta=ETA, beta=0.1),
    "MB-STORM, β=.1": kedge.MBStorm(eta=ETA, beta=0.1),
    "CE-LSGD, β=.1": kedge.CELSGD(eta=ETA, beta=0.1),
    "CE-LSGD, β=.1, average": kedge.CELSGD(eta=ETA, beta=0.1, output="average"),
    "MimeLite, β=.1": kedge.MimeLite(eta=ETA, beta=0.1),
    "Mime, β=.1": kedge.Mime(eta=ETA, beta=0.1),
    "MimeLiteMVR, β=.1": kedge.MimeLiteMVR(eta=ETA, beta=0.1),
    "MimeLiteMVR, β=.1, current": kedge.MimeLiteMVR(eta=ETA, beta=0.1, reference="current"),
    "MimeMVR, β=.1": kedge.MimeMVR(eta=ETA, beta=0.1),
    "FedProx, μ=1": kedge.FedProx(eta=ETA, mu=1.0),
    "FedNova": kedge.FedNova(eta=ETA),
    "FedDyn, α=1": kedge.FedDyn(eta=ETA, alpha=1.0),
    "FedGATE": kedge.FedGATE(eta=ETA),
    "SlowMo, β=.5": kedge.SlowMo(eta=ETA, beta=0.5),
    "Server momentum, β1=.5": kedge.ServerMomentum(eta=ETA, server_lr=1.0, beta1=0.5),
    "FedAdagrad": kedge.FedAdagrad(eta=ETA, server_lr=1.0),
    "FedAdam": kedge.FedAdam(eta=ETA, server_lr=0.01),
    "FedYogi": kedge.FedYogi(eta=ETA, server_lr=0.01),
    "STEM, β=.1": kedge.Stem(eta=ETA, beta=0.1),
    "STEM, β=0": kedge.Stem(eta=ETA, beta=0.0),
    "STEM, β=.1, average": kedge.Stem(eta=ETA, beta=0.1, reference="average"),
    "BVR-L-SGD, 20 rounds per stage": kedge.BVRLSGD(eta=ETA, stage_rounds=20),
    "FedPD, α=1": kedge.FedPD(eta=ETA, alpha=1.0),
    "FedPD, α=1, p=.5": kedge.FedPD(eta=ETA, alpha=1.0, skip=0.5),
    "VRL-SGD": kedge.VRLSGD(eta=ETA),
    "LED, b=1/K": kedge.LED(eta=ETA),
    "LED, b=.3/K": kedge.LED(eta=ETA, b=0.3 / STEPS),
}
SETTINGS = [("shared", None), ("mild", None), ("large", None), ("mild", 2), ("large", 2)]


def table() -> None:
    """Print the relative errors as a table."""
    problems = {name: kedge.quadratics(clients=10, dim=20, heterogeneity=name) for name, _ in SETTINGS}
    heads = [f"{name}, {'all' if cohort is None else f'S = {cohort}'}" for name, cohort in SETTINGS]
    print("| algorithm | " + " | ".join(heads) + " |", "|---" * (1 + len(heads)) + "|", sep="\n")
    for title, method in METHODS.items():
        cells = []
        for name, cohort in SETTINGS:
            if cohort is not None and method.full_participation:
                cells.append("-")
                continue
            value = error(run(method, problems[name], cohort=cohort).x, problems[name])
            cells.append("<1e-12" if value < 1e-12 else f"{value:.1e}")
        print(f"| {title} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    table()
