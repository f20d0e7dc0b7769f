"""What it costs to read every sample for a run's fingerprint, beside loading them, in processor time.

python -m benchmarks.fingerprint --dataset cifar10
"""

import argparse
import time
from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

import kedge
from kedge.simulator.fingerprint import data_fingerprint

T = TypeVar("T")


def timed(call: Callable[[], T]) -> tuple[float, T]:
    """Return the seconds of processor time that a call takes, and what it returns."""
    began = time.process_time()
    value = call()
    return time.process_time() - began, value


def main() -> None:
    """Print two lines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dataset", default="cifar10")
    parser.add_argument("--times", type=int, default=5, help="how many times; the shortest is printed")
    options = parser.parse_args()
    loading, federation = timed(lambda: kedge.load_federation(options.dataset, 100, "dirichlet"))
    for _ in range(options.times - 1):
        loading = min(loading, timed(lambda: kedge.load_federation(options.dataset, 100, "dirichlet"))[0])
    reading = min(timed(lambda: data_fingerprint(federation))[0] for _ in range(options.times))
    train, test = federation.features, None if federation.test is None else federation.test[0]
    words = [each.numpy().reshape(-1).view("u8") for each in (train, test) if isinstance(each, Tensor)]
    least = min(timed(lambda: [each.sum() for each in words])[0] for _ in range(options.times))
    print(f"{options.dataset}: loaded in {loading:.2f} s, read in {1000 * reading:.0f} ms: {reading / loading:.1%}")
    print(f"a plain sum of the features takes {1000 * least:.0f} ms: {least / loading:.1%}")


if __name__ == "__main__":
    main()
