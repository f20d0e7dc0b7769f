"""Several processes: speed-up, the cost of summing replies, and what more machines would bring (on paper).

    python -m benchmarks.ranks [w1 w2] [--rounds 10] [--repeats 5] [--processes 2] [--json FILE]

The processes are connected by socket pairs, as those of `kedge run --workers` are. One process with
one thread, one with as many threads, and several with one thread each play the same rounds in turn. "sum" is the
collective that adds the replies, for models of several sizes. The table at the end is a model fitted to these numbers,
not a measurement: seconds of a round = fixed + largest share of the cohort on one process x seconds per client +
latency + a vector from each process / bandwidth.
"""

import argparse
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from benchmarks.workloads import ALGORITHMS, WORKLOADS

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
SHARDS = 16


def play(workload: str, rounds: int, threads: int) -> dict[str, float]:
    """Return the seconds of a round, of which those in gradients (the largest over the threads), in this process."""
    from kedge.simulator import Settings, Simulation

    work = WORKLOADS[workload]
    settings = Settings(cohort=work.cohort, local_steps=work.steps, batch_size=work.batch)
    run = Simulation(work.build(), work.federation(), ALGORITHMS["scaffold-m"], settings, threads=threads)
    busy = [0.0] * len(run._crew.pool.engines)
    for number, engine in enumerate(run._crew.pool.engines):
        inner = engine.run

        def timed(job, number=number, inner=inner):
            began = time.perf_counter()
            done = inner(job)
            busy[number] += time.perf_counter() - began
            return done

        engine.run = timed
    for _ in range(2):
        run.advance()
    busy[:] = [0.0] * len(busy)
    began = time.perf_counter()
    for _ in range(rounds):
        run.advance()
    seconds = (time.perf_counter() - began) / rounds
    run.close()
    return {"seconds": seconds, "gradients": sum(busy) / len(busy) / rounds}


def sums() -> dict[int, float]:
    """Return the seconds of the collective for each size of model."""
    from kedge.shards import within
    from kedge.simulator.ranks import current_processes

    ranks, found = current_processes(), {}
    for size in SIZES:
        vector = torch.randn(size)
        ends = [SHARDS * rank // ranks.count for rank in range(ranks.count + 1)]
        branches = [within((0, SHARDS), first, end) for first, end in itertools.pairwise(ends)]
        own = {node: [vector] for node in branches[ranks.rank]}
        times = []
        for _ in range(5):
            ranks.agree(False)
            began = time.perf_counter()
            ranks.total(own, branches, (0, SHARDS), [vector])
            times.append(time.perf_counter() - began)
        found[size] = statistics.median(times)
    return found


def rank(workload: str, rounds: int) -> None:
    """Be one of the processes; the first one prints what it measured."""
    from kedge.runs.joining import is_follower, joined

    torch.set_num_threads(1)
    with joined():
        found = {"round": play(workload, rounds, 1), "sums": sums()}
        if not is_follower():
            print(json.dumps(found))


def several(workload: str, rounds: int, processes: int) -> dict:
    """Start the processes and return what the first one measured."""
    from kedge.runs.joining import SOCKETS
    from kedge.simulator.transport import mesh

    common = os.environ | {"WORLD_SIZE": str(processes), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.ranks", workload, "--rounds", str(rounds), "--as-rank"]
    started = []
    for number, peers in enumerate(mesh(processes)):
        files = [peer.fileno() for _, peer in sorted(peers.items())]
        own = {"RANK": str(number), SOCKETS: " ".join(map(str, files))}
        started.append(subprocess.Popen(command, env=common | own, stdout=subprocess.PIPE, pass_fds=files))
        for peer in peers.values():
            peer.close()
    outputs = [process.communicate()[0] for process in started]
    return json.loads(outputs[0].splitlines()[-1])


def expected(fit: dict[str, float], size: int, cohort: int, processes: int) -> float:
    """Return the seconds of a round that the model expects."""
    even = cohort / processes
    share = cohort if processes == 1 else min(cohort, even + math.sqrt(2 * even * math.log(processes)))
    sent = fit["latency"] + processes * 4 * size * fit["per byte"] if processes > 1 else 0.0
    return cohort / processes * fit["fixed"] + share * fit["client"] + sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=["w1", "w2"])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.as_rank:
        rank(arguments.workloads[0], arguments.rounds)
        return
    results = {}
    for name in arguments.workloads:
        measured: dict[str, list[dict[str, float]]] = {"one thread": [], "threads": [], "processes": []}
        collectives: dict[str, list[float]] = {str(size): [] for size in SIZES}
        for _ in range(arguments.repeats):
            measured["one thread"].append(play(name, arguments.rounds, 1))
            measured["threads"].append(play(name, arguments.rounds, arguments.processes))
            found = several(name, arguments.rounds, arguments.processes)
            measured["processes"].append(found["round"])
            for size, seconds in found["sums"].items():
                collectives[size].append(seconds)
        results[name] = report(name, measured, collectives, arguments.processes)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


def report(name: str, measured: dict, collectives: dict[str, list[float]], processes: int) -> dict:
    """Print the tables of a workload."""
    middle = {
        key: {part: statistics.median(run[part] for run in runs) for part in ("seconds", "gradients")}
        for key, runs in measured.items()
    }
    alone = middle["one thread"]["seconds"]
    print(f"\n{name}: {WORKLOADS[name].name}, SCAFFOLD-M")
    print(f"  {'':22s} {'s/round':>9s} {'speed-up':>9s} {'not in gradients':>17s}")
    labels = {"one thread": "1 thread", "threads": f"{processes} threads", "processes": f"{processes} processes"}
    for key, label in labels.items():
        seconds, gradients = middle[key]["seconds"], middle[key]["gradients"]
        print(f"  {label:22s} {seconds:9.4f} {alone / seconds:9.2f} {1 - gradients / seconds:17.0%}")
    times = {int(size): statistics.median(values) for size, values in collectives.items()}
    print(f"  sum over {processes} processes:")
    for size, seconds in times.items():
        rate = processes * 4 * size / seconds / 1e9
        print(f"    {size:>10,d} parameters {seconds * 1e3:9.2f} ms  {rate:6.2f} GB/s")
    latency = times[SIZES[0]]
    work = WORKLOADS[name]
    fit = {
        "latency": latency,
        "per byte": max(0.0, times[SIZES[-1]] - latency) / (processes * 4 * SIZES[-1]),
        "client": middle["one thread"]["gradients"] / work.cohort,
        "fixed": max(0.0, alone - middle["one thread"]["gradients"]) / work.cohort,
    }
    size = sum(p.numel() for p in work.build().parameters())
    print("  on paper, seconds per round (one thread a process, this transport):")
    machines = (1, 2, 4, 8, 16, 32, 64)
    print(f"    {'cohort':>8s} " + " ".join(f"{m:>8d}" for m in machines) + "  processes")
    for cohort in (100, 1000, 10000):
        row = [expected(fit, size, cohort, m) for m in machines]
        print(f"    {cohort:8d} " + " ".join(f"{seconds:8.2f}" for seconds in row))
    return {"measured": measured, "sums": collectives}


if __name__ == "__main__":
    main()
