"""A round with a thousand clients and with a million: what does their number cost?

    python -m benchmarks.clients [--clients 1000 1000000] [--rounds 30] [--state-memory 4GB] [--json FILE]

SCAFFOLD-M, 100 clients a round, from zeros (no opening over all clients), on Synthetic(1, 1). The samples are the same
whatever the number of clients: each client holds a window of 20 to 60 of them, at a random place. Rounds of the
federations are timed in turn in one process, so that whatever else the machine does falls on all of them; "cpu" is the
processor's own time, on which others have less influence. Memory is the peak of a
separate process per federation; "touched" is the state of the clients that took part, which cannot be avoided.
"""

import argparse
import gc
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import kedge
from kedge.checks import byte_size
from kedge.problem import load_dataset
from kedge.simulator import Settings, Simulation

COHORT, STEPS, BATCH = 100, 16, 16


def federation(clients: int) -> kedge.Federation:
    features, labels = load_dataset("synthetic", seed=0, users=500).train
    rng = np.random.default_rng(0)
    sizes = rng.integers(20, 61, clients)
    starts = rng.integers(0, len(labels) - sizes)
    return kedge.Federation.from_indices(features, labels, kedge.ClientIndices(starts, sizes))


def simulation(clients: int, state_memory: str) -> Simulation:
    model = kedge.build_model("mlp", (60,), 10, widths=[100])
    settings = Settings(cohort=COHORT, local_steps=STEPS, batch_size=BATCH)
    method = kedge.ScaffoldM(eta=0.01, beta=0.2, opening_batches=0)
    limit = byte_size("state_memory", state_memory)
    return Simulation(model, federation(clients), method, settings, state_memory=limit)


def touched(run: Simulation) -> dict[str, float]:
    count = len({client for cohort in run.cohorts for client in cohort})
    return {"clients": count, "mb": count * run.server["x"].nbytes / 1e6}


def peak_memory(clients: int, rounds: int, state_memory: str) -> dict[str, Any]:
    """Play the rounds in their own process."""
    command = [sys.executable, "-m", "benchmarks.clients", "--alone", "--clients", str(clients)]
    command += ["--rounds", str(rounds), "--state-memory", state_memory]
    report = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return dict(json.loads(report))


def alone(clients: int, rounds: int, state_memory: str) -> dict[str, Any]:
    began = time.perf_counter()
    run = simulation(clients, state_memory)
    setup = time.perf_counter() - began
    for _ in range(rounds):
        run.advance()
    run.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {"peak_mb": peak / 1e6, "setup_seconds": setup, "touched": touched(run)}


def times(counts: list[int], rounds: int, state_memory: str) -> dict[int, list[tuple[float, float]]]:
    """Return seconds by the clock and of the processor, per round."""
    runs = {clients: simulation(clients, state_memory) for clients in counts}
    for run in runs.values():
        run.advance()
    gc.collect()
    measured: dict[int, list[tuple[float, float]]] = {clients: [] for clients in counts}
    for number in range(rounds):
        for clients in counts if number % 2 else reversed(counts):
            began, used = time.perf_counter(), time.process_time()
            runs[clients].advance()
            measured[clients].append((time.perf_counter() - began, time.process_time() - used))
    for run in runs.values():
        run.close()
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[1000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--state-memory", default="4GB")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    asked = (arguments.rounds, arguments.state_memory)
    if arguments.alone:
        print(json.dumps(alone(arguments.clients[0], *asked)))
        return
    memory = {clients: peak_memory(clients, *asked) for clients in arguments.clients}
    measured = times(arguments.clients, *asked)
    results: dict[int, dict[str, Any]] = {}
    for clients, rounds in measured.items():
        clock, processor = (list(values) for values in zip(*rounds, strict=True))
        row = memory[clients] | {"seconds": clock, "processor_seconds": processor}
        row |= {"s/round": statistics.median(clock), "cpu s": statistics.median(processor)}
        results[clients] = row | {"rest_mb": row["peak_mb"] - row["touched"]["mb"]}
    print(f"{torch.get_num_threads()} threads, {arguments.rounds} rounds, client state in memory: {asked[1]}")
    print(f"{'clients':>9s} {'s/round':>8s} {'middle half':>15s} {'ratio':>6s} {'cpu s':>8s} {'ratio':>6s} ", end="")
    print(f"{'setup s':>8s} {'peak MB':>8s} {'touched':>8s} {'the rest':>9s} {'ratio':>6s}")
    first = results[arguments.clients[0]]
    for clients, row in results.items():
        low, _, high = statistics.quantiles(row["seconds"], n=4)
        print(
            f"{clients:9d} {row['s/round']:8.4f} {low:7.4f}-{high:7.4f} {row['s/round'] / first['s/round']:6.2f} "
            f"{row['cpu s']:8.4f} {row['cpu s'] / first['cpu s']:6.2f} {row['setup_seconds']:8.2f} "
            f"{row['peak_mb']:8.0f} {row['touched']['mb']:8.1f} {row['rest_mb']:9.0f} "
            f"{row['rest_mb'] / first['rest_mb']:6.2f}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps({"threads": torch.get_num_threads(), "clients": results}, indent=1))


if __name__ == "__main__":
    main()
