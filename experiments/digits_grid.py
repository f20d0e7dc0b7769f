"""Find eta and beta of every algorithm for the default problem of `kedge compare`, and write them into the package.

    python experiments/digits_grid.py [--algorithms fedavg,scaffold-m] [--jobs 2]

The problem is that of `kedge compare` (digits, 40 clients, Dirichlet 0.1, 4 a round, K = 16, minibatches of 16, 100
rounds), but for other seeds: 100, 101 and 102, so other partitions, initial models, cohorts and minibatches. A fifth of
the training samples is held out and decides; the test set is not looked at. The grid is the paper's with larger steps
added: eta in {0.005, 0.01, 0.05, 0.1, 0.5, 1, 2}, beta in {0.1, 0.2, 0.5, 0.8} where the algorithm has it. The pair
with the highest mean held-out accuracy after the last round wins; at a tie (digits_grid.csv has four digits) the lower
held-out loss. A run that diverges counts as accuracy 0.
"""

import argparse
import csv
import itertools
import math
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields
from pathlib import Path

import numpy as np
import torch

import kedge
from kedge.problem import Federation
from kedge.runs.config import Config, problem_of
from kedge.runs.directory import to_toml

ETAS = [0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.0]
BETAS = [0.1, 0.2, 0.5, 0.8]
SEEDS = [100, 101, 102]
HERE = Path(__file__).parent
TUNED = HERE.parent / "src" / "kedge" / "cli" / "tuned.toml"


def held_out(federation: Federation, seed: int) -> Federation:
    """Divide every client's samples: four fifths to train on, and the rest of all clients to decide by."""
    rng = np.random.default_rng(seed)
    kept, out = [], []
    for index in federation.indices:
        order = torch.from_numpy(rng.permutation(index.numpy()))
        cut = max(1, len(order) // 5)
        out.append(order[:cut])
        kept.append(order[cut:])
    outside = torch.cat(out)
    test = (federation.features[outside], federation.labels[outside])
    return Federation.from_indices(federation.features, federation.labels, kept, test)


def score(job: tuple[str, dict[str, float]]) -> tuple[float, float]:
    """Return the mean held-out accuracy and loss of one setting."""
    name, hyper = job
    torch.set_num_threads(1)
    rows = []
    for seed in SEEDS:
        problem = problem_of(Config.model_validate({"run": {"seed": seed}}))
        federation = held_out(problem.federation, seed)
        try:
            result = kedge.simulate(
                problem.model, federation, kedge.ALGORITHMS[name](**hyper), rounds=100, cohort=4, local_steps=16,
                batch_size=16, seed=seed, eval_every=100,
            )  # fmt: skip
            rows.append(result.history[-1])
        except kedge.DivergedError:
            rows.append({"test_accuracy": 0.0, "test_loss": math.inf})
    return statistics.fmean(r["test_accuracy"] for r in rows), statistics.fmean(r["test_loss"] for r in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    partial = [name for name, kind in kedge.ALGORITHMS.items() if not kind.full_participation]
    parser.add_argument("--algorithms", default=",".join(partial))
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    table = HERE / "digits_grid.csv"
    done: dict[tuple[str, str, str], tuple[float, float]] = {}
    if table.exists():
        with table.open() as file:
            for row in csv.DictReader(file):
                key = (row["algorithm"], row["eta"], row["beta"])
                done[key] = (float(row["accuracy"]), float(row["loss"]))
    jobs = []
    for name in arguments.algorithms.split(","):
        has_beta = any(f.name == "beta" for f in fields(kedge.ALGORITHMS[name]))
        for eta, beta in itertools.product(ETAS, BETAS if has_beta else [None]):
            if (name, str(eta), str(beta or "")) not in done:
                jobs.append((name, {"eta": eta} | ({"beta": beta} if beta else {})))
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for (name, hyper), result in zip(jobs, pool.map(score, jobs), strict=True):
            done[name, str(hyper["eta"]), str(hyper.get("beta", ""))] = result
            print(name, hyper, f"accuracy {result[0]:.4f}, loss {result[1]:.4f}", flush=True)
            write(table, done)
    TUNED.write_text("# Written by experiments/digits_grid.py, which says how.\n" + to_toml(best(done)))


def write(table: Path, done: dict[tuple[str, str, str], tuple[float, float]]) -> None:
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["algorithm", "eta", "beta", "accuracy", "loss"])
        writer.writerows([*key, f"{accuracy:.4f}", f"{loss:.4f}"] for key, (accuracy, loss) in done.items())


def best(done: dict[tuple[str, str, str], tuple[float, float]]) -> dict[str, dict[str, float]]:
    chosen: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(key[0] for key in done):
        rows = [(key, result) for key, result in done.items() if key[0] == name]
        (_, eta, beta), _ = max(rows, key=lambda row: (round(row[1][0], 4), -row[1][1]))
        chosen[name] = {"eta": float(eta)} | ({"beta": float(beta)} if beta else {})
    return chosen


if __name__ == "__main__":
    main()
