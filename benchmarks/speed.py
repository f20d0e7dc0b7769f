"""Seconds of a round, as ratios in one run: kedge, the loop that people write by hand, and the bare products.

    python -m benchmarks.speed [w1 w1-all narrow w2 cnn resnet] [--repeats 15] [--json FILE]

All are timed in turn, again and again, so that whatever else the machine does falls on all of them; the number is the
median, and the spread that of the middle half. "naive" copies a module and makes an optimiser per client; it adds the
round's constant to the gradients as SCAFFOLD-M must. "bare" is only the matrix products (and convolutions), the fastest
of all cores on one client or one core on each of several, with weights that have outputs or inputs first.
"""

import argparse
import gc
import itertools
import json
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.workloads import ALGORITHMS, WORKLOADS, bare_round, kedge_round, naive_round


def measure(candidates: dict[str, Callable[[], None]], repeats: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for run in candidates.values():
        run()
    gc.collect()
    for _ in range(repeats):
        for name, run in candidates.items():
            began = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - began)
    return times


def candidates_of(name: str, engines: list[str]) -> tuple[dict[str, Callable[[], None]], list[str]]:
    work = WORKLOADS[name]
    federation = work.federation()
    candidates: dict[str, Callable[[], None]] = {
        "naive": naive_round(work, federation),
        "naive, second gradients": naive_round(work, federation, second=True),
    }
    for threads, turned in itertools.product((1, torch.get_num_threads()), (False, True)):
        if (bare := bare_round(work, threads, turned)) is not None:
            candidates[f"bare {'turned ' if turned else ''}products, {threads} at once"] = bare
    notes = []
    for engine in engines:
        for algorithm, method in ALGORITHMS.items():
            run, simulation = kedge_round(work, federation, method, engine)
            candidates[f"kedge {algorithm}" + ("" if engine == "auto" else f" ({engine})")] = run
        notes.append(f"{engine}: {simulation.description()}")
    return candidates, notes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = {}
    for name in arguments.workloads:
        engines = ["auto", "module"] if WORKLOADS[name].model != "resnet18" else ["auto"]
        candidates, notes = candidates_of(name, engines)
        times = measure(candidates, arguments.repeats)
        medians = {key: statistics.median(values) for key, values in times.items()}
        bare = min((value for key, value in medians.items() if key.startswith("bare")), default=None)
        print(f"\n{name}: {WORKLOADS[name].name}  ({'; '.join(notes)})")
        print(f"  {'':34s} {'seconds':>9s} {'middle half':>17s} {'x naive':>8s} {'x bare':>7s} {'x FedAvg':>8s}")
        for key, median in medians.items():
            low, _, high = statistics.quantiles(times[key], n=4)
            naive = medians["naive, second gradients" if "-vr" in key else "naive"]
            of_bare = f"{median / bare:7.2f}" if bare else "      -"
            fedavg = f"{median / medians['kedge fedavg']:8.2f}" if key.startswith("kedge") else "        "
            print(f"  {key:34s} {median:9.4f}  {low:7.4f}-{high:7.4f} {naive / median:8.2f} {of_bare} {fedavg}")
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"  peak memory of the process so far: {memory:.0f} MB")
        results[name] = {"times": times, "medians": medians, "notes": notes, "peak_memory_mb": memory}
    if arguments.json:
        arguments.json.write_text(json.dumps({"threads": torch.get_num_threads(), "results": results}, indent=1))


if __name__ == "__main__":
    main()
