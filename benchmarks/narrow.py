"""What it brings to store the weights of narrow layers with inputs first, in microseconds per local step.

    python -m benchmarks.narrow [--repeats 9]

Both ways are timed in turn on one thread, and the median of their rounds is printed, with whether the models agree to
the bit. The last line is for a layer that is too wide to be turned.
"""

import argparse
import statistics
import time
from unittest.mock import patch

import torch

import kedge
from benchmarks.workloads import Workload, kedge_round
from kedge.simulator.engines import mlp

SHAPES = [(784, [64], 16), (784, [64], 64), (784, [128], 16), (3072, [64, 32], 32), (784, [200], 16)]
"""Inputs, widths and K."""

METHODS = {"fedavg": kedge.FedAvg(eta=0.01), "scaffold-m": kedge.ScaffoldM(eta=0.01)}


def compared(inputs: int, widths: list[int], steps: int, method: object, repeats: int) -> tuple[list[float], bool]:
    """Return the microseconds of a local step as stored by torch and turned, and whether the models agree."""
    work = Workload("", "mlp", (inputs,), 20, 10, steps, 32, 600, {"widths": widths})
    federation = work.federation()
    rounds, simulations = [], []
    for narrow in (0, max(widths)):
        torch.manual_seed(0)
        with patch.object(mlp, "NARROW", narrow):
            run, simulation = kedge_round(work, federation, method)
        rounds.append(run)
        simulations.append(simulation)
    times: list[list[float]] = [[], []]
    for _ in range(repeats + 1):
        for run, own in zip(rounds, times, strict=True):
            began = time.perf_counter()
            run()
            own.append(time.perf_counter() - began)
    one, other = ([*simulation.model.parameters()] for simulation in simulations)
    same = all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    return [1e6 * statistics.median(own[1:]) / steps / work.cohort for own in times], same


def main() -> None:
    """Print a line per model and method."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    print("model, K, method: µs per local step as stored by torch, turned; times as fast; same bits")
    for inputs, widths, steps in SHAPES:
        for name, method in METHODS.items():
            (before, turned), same = compared(inputs, widths, steps, method, repeats)
            sizes = "-".join(map(str, [inputs, *widths, 10]))
            print(f"{sizes}, {steps}, {name}: {before:.0f}, {turned:.0f}; {before / turned:.2f}; {same}")


if __name__ == "__main__":
    main()
