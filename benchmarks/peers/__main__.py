"""Seconds of a round of public federated simulators and of kedge, on the same workloads in the same run.

    python -m benchmarks.peers setup [--only flwr,pfl] [--env-dir DIR]
    python -m benchmarks.peers run [w1 w2] [--rounds 40] [--repeats 3] [--only kedge,flwr] [--json FILE]

Every system runs in its own process, one after the other, and all again at the next repeat, so that whatever else
the machine does falls on all of them. The number is the median over the steady rounds of all repeats, and the spread
that of the middle half.
"""

import argparse
import json
import os
import signal
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import environments, processes
from benchmarks.workloads import ALGORITHMS, WORKLOADS

ROOT = Path(__file__).parents[2]
SYSTEMS = {
    "kedge FedAvg": ("kedge", "fedavg"),
    "kedge SCAFFOLD-M": ("kedge", "scaffold-m"),
    "fedjax FedAvg": ("fedjax", "fedavg"),
    "pfl FedAvg": ("pfl", "fedavg"),
    "pfl SCAFFOLD": ("pfl", "scaffold"),
    "fedlab FedAvg": ("fedlab", "fedavg"),
    "fedlab SCAFFOLD": ("fedlab", "scaffold"),
    "flwr FedAvg": ("flwr", "fedavg"),
}
UNIT = next(iter(SYSTEMS))  # the others are given as multiples of it


def describe(name: str, folder: Path, rounds: int) -> dict[str, Any]:
    """Return a workload as the peers' scripts read it, its data written to files."""
    work = WORKLOADS[name]
    sizes = [work.shape[0], *work.options["widths"], 10]
    data = folder / "data" / f"{work.clients}x{work.samples}x{sizes[0]}"
    if not (data / "labels.npy").exists():
        data.mkdir(parents=True, exist_ok=True)
        generator = np.random.default_rng(0)
        shape = (work.clients, work.samples)
        np.save(data / "features.npy", generator.standard_normal((*shape, sizes[0]), dtype=np.float32))
        np.save(data / "labels.npy", generator.integers(0, 10, shape))
    return {
        "name": name,
        "sizes": sizes,
        "clients": work.clients,
        "cohort": work.cohort,
        "steps": work.steps,
        "batch": work.batch,
        "samples": work.samples,
        "eta": ALGORITHMS["fedavg"].eta,
        "rounds": rounds,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "data": str(data),
    }


def play(system: str, work: dict[str, Any], folder: Path, timeout: float) -> dict[str, Any]:
    """Run one system once; RuntimeError says in one line why it failed."""
    peer, algorithm = SYSTEMS[system]
    if not environments.is_ready(folder, peer):
        raise RuntimeError("not installed: python -m benchmarks.peers setup")
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    argument = json.dumps({**work, "algorithm": algorithm, "launched": time.time()})
    command = [str(environments.interpreter(folder, peer)), "-m", f"benchmarks.peers.{peer}_peer", argument]
    finished = processes.run(command, {**os.environ, "PYTHONPATH": path}, timeout)
    results = [line for line in finished.output.splitlines() if line.startswith('{"versions"')]
    if not results:
        raise RuntimeError(f"no result: {environments.reason(finished.errors)}")
    return {**json.loads(results[-1]), "rss_mb": finished.resident, "pss_mb": finished.proportional}


def summary(runs: list[dict[str, Any]], warmup: int) -> dict[str, Any]:
    steady = [seconds for run in runs for seconds in run["seconds"][warmup:]]
    low, _, high = statistics.quantiles(steady, n=4)
    return {
        "versions": runs[0]["versions"],
        "median": statistics.median(steady),
        "low": low,
        "high": high,
        "first_round": statistics.median(run["first_round"] for run in runs),
        "rss_mb": max(run["rss_mb"] for run in runs),
        "pss_mb": max(run["pss_mb"] for run in runs),
        "runs": runs,
    }


def print_table(name: str, results: dict[str, dict[str, Any]], failures: dict[str, str]) -> None:
    unit = results.get(UNIT, {}).get("median")
    head = f"{'s/round':>8s} {'middle half':>15s} {'x kedge':>8s} {'first, s':>9s} {'RSS, MB':>8s} {'PSS, MB':>8s}"
    print(f"\n{name}: {WORKLOADS[name].name}\n  {'':18s} {head}  versions")
    for system, row in results.items():
        times = f"{row['median']:8.4f} {row['low']:7.4f}-{row['high']:7.4f}"
        ratio = f"{row['median'] / unit:8.2f}" if unit else f"{'-':>8s}"
        memory = f"{row['rss_mb']:8.0f} {row['pss_mb']:8.0f}"
        print(f"  {system:18s} {times} {ratio} {row['first_round']:9.1f} {memory}  {row['versions']}")
    for system, why in failures.items():
        print(f"  {system:18s} failed: {why}")


def measure(name: str, systems: list[str], arguments: argparse.Namespace) -> tuple[dict[str, Any], dict[str, str]]:
    """Run the systems in turn, again and again; one that fails is left out from then on."""
    work = describe(name, arguments.env_dir, arguments.rounds)
    runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    failures: dict[str, str] = {}
    for repeat in range(arguments.repeats):
        for system in systems:
            if system in failures:
                continue
            try:
                runs[system].append(play(system, work, arguments.env_dir, arguments.timeout))
                said = f"{statistics.median(runs[system][-1]['seconds'][arguments.warmup :]):.4f} s/round"
            except RuntimeError as error:
                failures[system] = said = str(error)
            print(f"{name} {repeat + 1}/{arguments.repeats} {system}: {said}", file=sys.stderr, flush=True)
    return {system: summary(runs[system], arguments.warmup) for system in systems if runs[system]}, failures


def setup(arguments: argparse.Namespace) -> None:
    for peer in environments.PEERS:
        if arguments.only and peer not in arguments.only:
            continue
        try:
            if not environments.is_ready(arguments.env_dir, peer):
                environments.make(arguments.env_dir, peer)
            print(f"{peer}: ready", flush=True)
        except RuntimeError as error:
            print(f"{peer}: not installed: {error}", flush=True)


def run(arguments: argparse.Namespace) -> None:
    systems = [system for system, (peer, _) in SYSTEMS.items() if not arguments.only or peer in arguments.only]
    report: dict[str, Any] = {"rounds": arguments.rounds, "warmup": arguments.warmup, "workloads": {}}
    for name in arguments.workloads or ["w1", "w2"]:
        results, failures = measure(name, systems, arguments)
        print_table(name, results, failures)
        report["workloads"][name] = {"results": results, "failures": failures}
        if arguments.json:
            arguments.json.write_text(json.dumps(report, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--env-dir", type=Path, default=environments.DEFAULT, help="environments and data: %(default)s")
    shared.add_argument("--only", type=lambda text: text.split(","), help="names of peers, with commas between")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("setup", parents=[shared], help="make the peers' virtual environments")
    command.set_defaults(function=setup)
    command = commands.add_parser("run", parents=[shared], help="time the peers and kedge")
    command.set_defaults(function=run)
    command.add_argument("workloads", nargs="*", metavar="w1|w2", help="both unless named")
    command.add_argument("--rounds", type=int, default=40)
    command.add_argument("--warmup", type=int, default=5, help="rounds of every run that do not count")
    command.add_argument("--repeats", type=int, default=3)
    command.add_argument("--timeout", type=float, default=900, help="seconds after which a run is given up")
    command.add_argument("--json", type=Path, help="a file for the results, every round of them")
    arguments = parser.parse_args()
    known = {"kedge", *environments.PEERS}
    if unknown := set(arguments.only or []) - known:
        parser.error(f"--only: {', '.join(sorted(unknown))} is not among {', '.join(sorted(known))}")
    if arguments.function is run:
        if arguments.rounds < arguments.warmup + 2:
            parser.error("--rounds must be at least two more than --warmup")
        if odd := [name for name in arguments.workloads if name not in WORKLOADS or WORKLOADS[name].model != "mlp"]:
            parser.error(f"{odd[0]} is not a workload with an MLP")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a run's processes end with it
    arguments.function(arguments)


if __name__ == "__main__":
    main()
