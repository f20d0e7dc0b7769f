"""FedLab 1.3.0, its standalone pipeline in one process: FedAvg, and SCAFFOLD on request, with torch's threads.

As its tutorials do it: a server handler, a serial client trainer, and a dataset with `get_dataloader`. Local work is
counted in epochs, so the loader that a client gets is the list of this round's batches, drawn by index: one epoch is
the workload's K steps, and no DataLoader costs time. The pipeline's `evaluate`, at the end of a round, notes the time.

Shims: FedLab imports torchvision, whose wheel is built for the CUDA build of torch. Beside the CPU build its operators
are missing and the import fails; the two that the import asks for are then declared. Nothing here calls them.
FedLab logs to the standard output, several lines a client; it is handed a logger that says nothing.
"""

import random
import time
from typing import Any

import torch

from benchmarks.peers.common import network, read_workload, report, tensors

try:
    import torchvision
except RuntimeError:
    for operator in ("nms", "qnms"):
        torch.library.define(f"torchvision::{operator}", "() -> ()")
    import torchvision  # noqa: F401

from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.contrib.algorithm.scaffold import ScaffoldSerialClientTrainer, ScaffoldServerHandler
from fedlab.core.standalone import StandalonePipeline


class Clients:
    """The dataset, as FedLab's trainers ask for it."""

    def __init__(self, work: Any) -> None:
        self.features, self.labels = tensors(work.data)
        self.work = work

    def get_dataloader(self, client: int, batch_size: int, train: bool = True) -> list[tuple[Any, Any]]:
        drawn = torch.randperm(self.work.samples)[: self.work.steps * batch_size]
        features, labels = self.features[client], self.labels[client]
        return [(features[batch], labels[batch]) for batch in drawn.split(batch_size)]


class TimedPipeline(StandalonePipeline):
    """The pipeline, which notes when its rounds end."""

    def main(self) -> None:
        self.marks = [time.perf_counter()]
        super().main()

    def evaluate(self) -> None:
        self.marks.append(time.perf_counter())


class Silence:
    """A logger that says nothing."""

    def info(self, text: str) -> None:
        pass

    warning = info


def main() -> None:
    work = read_workload()
    random.seed(0)
    scaffold = work.algorithm == "scaffold"
    handler = ScaffoldServerHandler if scaffold else SyncServerHandler
    trainer = ScaffoldSerialClientTrainer if scaffold else SGDSerialClientTrainer
    model = network(work.sizes)
    server = handler(model, work.rounds, work.cohort / work.clients, logger=Silence())
    clients = trainer(model, work.clients, logger=Silence())
    if scaffold:
        server.setup_optim(lr=1.0)
    clients.setup_dataset(Clients(work))
    clients.setup_optim(epochs=1, batch_size=work.batch, lr=work.eta)
    pipeline = TimedPipeline(server, clients)
    pipeline.main()
    report(work, pipeline.marks, "fedlab", "torch")


if __name__ == "__main__":
    main()
