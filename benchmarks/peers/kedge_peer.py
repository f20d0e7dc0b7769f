"""kedge itself, in the environment that runs the benchmark: FedAvg and SCAFFOLD-M of `benchmarks.workloads`.

The first round of SCAFFOLD-M includes its opening, a large batch of every client.
"""

import time

import torch

from benchmarks.peers.common import read_workload, report, tensors
from benchmarks.workloads import ALGORITHMS, WORKLOADS, kedge_round
from kedge.problem import Federation


def main() -> None:
    work = read_workload()
    features, labels = tensors(work.data)
    indices = torch.arange(labels.numel()).view(work.clients, -1)
    federation = Federation.from_indices(features.flatten(0, 1), labels.flatten(), indices)
    advance, _ = kedge_round(WORKLOADS[work.name], federation, ALGORITHMS[work.algorithm])
    marks = [time.perf_counter()]
    for _ in range(work.rounds):
        advance()
        marks.append(time.perf_counter())
    report(work, marks, "kedge", "torch")


if __name__ == "__main__":
    main()
