"""Does the recommendation of `kedge diagnose` hold? Twelve federations that were not used to design it.

    python -m benchmarks.recommendation [--jobs 2] [--out docs/tables/recommendation.csv]

Every federation is measured, and the recommended algorithm runs with its start values after the trial of some eta, as
`kedge diagnose` prints them. FedAvg, FedAvg-M, SCAFFOLD and SCAFFOLD-M are tuned on a grid: eta in {0.02, 0.1, 0.5, 2}
and beta in {0.1, 0.5}, by the test accuracy after the last round with seed 100. All five then run with seeds 0 and 1
(the measurement sees seed 100 only): 40 rounds, K = 10, minibatches of 10 or of the smallest client's data; an mlp has
50 hidden units. The table has mean test accuracies in percent.
"""

import argparse
import csv
import itertools
import os
import statistics
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch

import kedge
from kedge.runs.simulate import DivergedError
from kedge.settings import Settings

ROUNDS, STEPS, BATCH, SEARCH, SEEDS = 40, 10, 10, 100, (0, 1)
ETAS, BETAS = (0.02, 0.1, 0.5, 2.0), (0.1, 0.5)
NAMES = ("fedavg", "fedavg-m", "scaffold", "scaffold-m")


class Problem(NamedTuple):
    dataset: str
    model: str
    clients: int
    cohort: int
    partition: str
    alpha: float = 1.0

    @property
    def title(self) -> str:
        alpha = f" {self.alpha:g}" if self.partition.startswith("dirichlet") else ""
        return f"{self.dataset}, {self.model}, {self.partition}{alpha}, {self.cohort} of {self.clients}"


PROBLEMS = (
    Problem("digits", "mlp", 24, 6, "dirichlet", 0.2),
    Problem("digits", "logistic", 40, 4, "shards"),
    Problem("digits", "mlp", 20, 20, "dirichlet-by-class", 0.5),
    Problem("synthetic", "logistic", 20, 5, "by-user"),
    Problem("synthetic", "logistic", 50, 50, "by-user"),
    Problem("synthetic", "mlp", 40, 8, "by-user"),
    Problem("mnist", "mlp", 30, 5, "dirichlet", 0.1),
    Problem("mnist", "mlp", 100, 10, "shards"),
    Problem("mnist", "logistic", 20, 4, "dirichlet", 0.5),
    Problem("fashion-mnist", "mlp", 60, 6, "shards"),
    Problem("fashion-mnist", "mlp", 30, 3, "iid"),
    Problem("fashion-mnist", "logistic", 20, 20, "dirichlet", 0.1),
)


def load(problem: Problem, seed: int) -> tuple[Any, Any]:
    samples = 2000 if "mnist" in problem.dataset else None
    federation = kedge.load_federation(
        problem.dataset, problem.clients, problem.partition, problem.alpha, seed, test_samples=samples
    )
    widths = {"widths": [50]} if problem.model == "mlp" else {}
    shape, classes = tuple(federation.features.shape[1:]), int(federation.labels.max()) + 1
    return kedge.build_model(problem.model, shape, classes, seed=seed, **widths), federation


def batch(federation: Any) -> int:
    return min(BATCH, int(federation.sizes.min()))


def accuracy(job: tuple[int, str, dict[str, float], int]) -> float:
    """The test accuracy of one run after its last round; 0 if it diverged."""
    number, name, hyper, seed = job
    torch.set_num_threads(1)
    problem = PROBLEMS[number]
    model, federation = load(problem, seed)
    settings = {"cohort": problem.cohort, "local_steps": STEPS, "batch_size": batch(federation), "seed": seed}
    algorithm = kedge.ALGORITHMS[name](**hyper)
    try:
        result = kedge.simulate(model, federation, algorithm, ROUNDS, eval_every=ROUNDS, threads=1, **settings)
    except DivergedError:
        return 0.0
    return float(result.history[-1]["test_accuracy"])


def recommended(number: int) -> tuple[str, dict[str, float], str]:
    """What `kedge diagnose` recommends."""
    torch.set_num_threads(1)
    problem = PROBLEMS[number]
    model, federation = load(problem, SEARCH)
    size = batch(federation)
    given = {"cohort": problem.cohort, "local_steps": STEPS}
    advice = kedge.theory.advise(kedge.theory.measure(model, federation, size, SEARCH, **given), ROUNDS)
    rules = Settings(batch_size=size, seed=SEARCH, **given)
    trial = kedge.theory.try_rates(model, federation, advice.make(), rules)
    name = next(name for name, kind in kedge.ALGORITHMS.items() if kind is advice.algorithm)
    return name, advice.settings[advice.algorithm] | {"eta": trial.eta}, advice.problem


def grid(name: str) -> Iterable[dict[str, float]]:
    if name.endswith("-m"):
        return [{"eta": eta, "beta": beta} for eta, beta in itertools.product(ETAS, BETAS)]
    return [{"eta": eta} for eta in ETAS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=Path("docs/tables/recommendation.csv"))
    arguments = parser.parse_args()
    began = time.perf_counter()
    numbers = range(len(PROBLEMS))
    search = [(n, name, hyper, SEARCH) for n in numbers for name in NAMES for hyper in grid(name)]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        advised = list(pool.map(recommended, numbers))
        found = dict(zip(map(repr, search), pool.map(accuracy, search, chunksize=4), strict=True))
        chosen = {
            (n, name): max(grid(name), key=lambda hyper: found[repr((n, name, hyper, SEARCH))])
            for n in numbers
            for name in NAMES
        }
        final = [(n, name, chosen[n, name], seed) for n in numbers for name in NAMES for seed in SEEDS]
        final += [(n, *advised[n][:2], seed) for n in numbers for seed in SEEDS]
        ended = list(pool.map(accuracy, final, chunksize=2))
    scores: dict[tuple[int, str], list[float]] = {}
    for place, ((n, name, _, _), value) in enumerate(zip(final, ended, strict=True)):
        known = place < len(numbers) * len(NAMES) * len(SEEDS)
        scores.setdefault((n, name if known else "recommended"), []).append(100 * value)
    rows = [
        row(n, advised[n], {key[1]: statistics.fmean(v) for key, v in scores.items() if key[0] == n}) for n in numbers
    ]
    write(rows, arguments.out)
    means = {name: statistics.fmean(float(row[name]) for row in rows) for name in (*NAMES, "recommended", "lost")}
    print({name: round(value, 2) for name, value in means.items()}, f"{time.perf_counter() - began:.0f} s")


def row(number: int, advised: tuple[str, dict[str, float], str], scores: dict[str, float]) -> dict[str, Any]:
    name, hyper, trouble = advised
    best = max(scores[each] for each in NAMES)
    said = f"{name} " + " ".join(f"{key}={value:g}" for key, value in hyper.items())
    return {
        "federation": PROBLEMS[number].title, "trouble": trouble, "recommendation": said,
        **{each: f"{scores[each]:.1f}" for each in (*NAMES, "recommended")},
        "lost": f"{best - scores['recommended']:.1f}",
    }  # fmt: skip


def write(rows: list[dict[str, Any]], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    head = list(rows[0])
    print(
        "\n".join(
            f"| {' | '.join(map(str, line))} |" for line in [head, ["---"] * len(head), *(r.values() for r in rows)]
        )
    )


if __name__ == "__main__":
    main()
