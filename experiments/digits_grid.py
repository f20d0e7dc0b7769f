"""Find eta and beta of every algorithm for the default problem of `kedge compare`, and write them into the package.

    python experiments/digits_grid.py [--algorithms fedavg,scaffold-m] [--jobs 2] [--runs DIR]

The problem is that of `kedge compare` (digits, 40 clients, Dirichlet 0.1, 4 per round, K = 16, minibatches of 16, 100
rounds), but with other seeds: 100, 101 and 102, so other partitions, initial models, cohorts and minibatches. A fifth
of the training samples is held out and decides; the test set is not looked at. Every algorithm starts from the same
grid, as in `kedge sweep`: eta in {0.005, 0.01, 0.05, 0.1, 0.5, 1, 2}, beta in {0.1, 0.2, 0.5, 0.8} where it has one.
The grid grows past an edge on which the best point lies, up to three times. The point with the highest mean held-out
accuracy after the last round wins; at a tie (digits_grid.csv has four digits) the lower held-out loss. The runs are
kept in DIR, and the same command continues what was stopped.
"""

import argparse
import csv
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from kedge import ALGORITHMS
from kedge.runs.batch import run_batch
from kedge.runs.directory import to_toml
from kedge.runs.grid import Point, parse_grid, point_name, points
from kedge.runs.search import Rule, Searched, Standing, ends, search
from kedge.runs.sweep import SweepPlan

ETAS = "algorithm.eta=0.005,0.01,0.05,0.1,0.5,1.0,2.0"
BETAS = "algorithm.beta=0.1,0.2,0.5,0.8"
FIRST_SEED, SEEDS = 100, 3
RULE = Rule("test_accuracy", extend=3)
HERE = Path(__file__).parent
TABLE = HERE / "digits_grid.csv"
TUNED = HERE.parent / "src" / "kedge" / "cli" / "tuned.toml"


def sweep_of(name: str) -> SweepPlan:
    """Return the sweep of an algorithm."""
    texts = [ETAS, BETAS] if "beta" in {field.name for field in fields(ALGORITHMS[name])} else [ETAS]
    base = {"algorithm": {"name": name}, "data": {"holdout": 0.2}, "run": {"seed": FIRST_SEED, "eval_every": 100}}
    return SweepPlan(base, parse_grid(texts), SEEDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    partial = [name for name, kind in ALGORITHMS.items() if not kind.full_participation]
    parser.add_argument("--algorithms", default=",".join(partial))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--runs", type=Path, default=Path("runs") / "digits-grid")
    arguments = parser.parse_args()
    plans = {name: sweep_of(name) for name in arguments.algorithms.split(",")}

    def play(title: str, wave: Mapping[str, list[Point]]) -> dict[str, list[Standing]]:
        found: dict[str, list[Standing]] = {}
        for name, grid in wave.items():
            print(f"{name}, {title}: {len(grid)} points", flush=True)
            configs = {point_name(point): [plans[name].config(point, seed) for seed in range(SEEDS)] for point in grid}
            jobs = {f"{point}-seed{each.run.seed}": each for point, own in configs.items() for each in own}
            ended = run_batch(jobs, arguments.runs / name, arguments.jobs)
            found[name] = [
                Standing(point_name(point), point, SEEDS, runs={
                    each.run.seed: ended[f"{point_name(point)}-seed{each.run.seed}"]
                    for each in configs[point_name(point)]
                })
                for point in grid
            ]  # fmt: skip
        return found

    for name, plan in plans.items():
        found = search({name: points(plan.axes)}, RULE, play)[name]
        write(name, found)


def write(name: str, found: Searched) -> None:
    """Put an algorithm's points into the table, and the best into the package."""
    rows = [row for row in read(TABLE) if row["algorithm"] != name]
    for standing in found.tried:
        scores = [ends(run) for run in standing.runs.values()]
        accuracy, loss = (sum(score[place] for score in scores) / SEEDS for place in (0, 1))
        rows.append({
            "algorithm": name, "eta": str(standing.point["algorithm.eta"]),
            "beta": str(standing.point.get("algorithm.beta", "")), "accuracy": f"{accuracy:.4f}", "loss": f"{loss:.4f}",
        })  # fmt: skip
    order = list(ALGORITHMS)
    rows.sort(key=lambda row: (order.index(row["algorithm"]), float(row["eta"]), float(row["beta"] or 0)))
    with TABLE.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["algorithm", "eta", "beta", "accuracy", "loss"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    TUNED.write_text("# Written by experiments/digits_grid.py, which says how.\n" + to_toml(best(rows)))


def read(table: Path) -> list[dict[str, str]]:
    """Return the rows of the table."""
    if not table.exists():
        return []
    with table.open(newline="") as file:
        return list(csv.DictReader(file))


def best(rows: list[dict[str, str]]) -> dict[str, dict[str, float]]:
    """Return the best point of every algorithm in the table."""
    chosen: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(row["algorithm"] for row in rows):
        own = [row for row in rows if row["algorithm"] == name]
        top = max(own, key=lambda row: (float(row["accuracy"]), -float(row["loss"])))
        chosen[name] = {key: float(top[key]) for key in ("eta", "beta") if top[key]}
    return chosen


if __name__ == "__main__":
    main()
