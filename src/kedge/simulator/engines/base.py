"""What an engine is: something that runs the local steps of clients."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from kedge.client import ClientSteps, FlatModule, Gradients, Loss
from kedge.problem import Federation
from kedge.round import Done, Work


@dataclass(frozen=True, eq=False)
class Setup:
    """What an engine is built for."""

    model: nn.Module
    federation: Federation
    loss: Loss
    device: torch.device

    def steps(self, flat: FlatModule, gradients: Gradients) -> ClientSteps:
        """Return what runs the local steps of the federation's clients with these gradients."""
        data = self.federation
        return ClientSteps(flat, gradients, data.samples, data.indices.__getitem__)


class Engine(Protocol):
    """Runs the local steps of groups of clients, one group at a time; each worker has its own engine."""

    name: str

    def group(self, batch_size: int | None) -> int:
        """Return how many clients a group with minibatches of this size may have; None: all of a client's samples."""
        ...

    def run(self, work: Work) -> Done:
        """Run the local steps of a group of clients. The grouping changes no bit of a client's result."""
        ...


@contextmanager
def compute_threads(count: int | None) -> Iterator[None]:
    """Let an operation use ``count`` threads, or with None the number that torch had before."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
