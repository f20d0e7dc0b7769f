"""What an engine is: something that runs the local steps of clients."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kedge.direction import Direction, Vector
from kedge.exchange import Local, Needs
from kedge.problem import Federation

Loss = Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True)
class Job:
    """The local steps of a group of clients in one exchange; vectors are (clients, d)."""

    rule: Direction
    start: Vector
    buffers: Tensor  # the server's
    eta: float
    clients: Sequence[int]
    steps: int
    batches: NDArray[np.int64] | None  # client i, step k: the samples batches[i, k]; None: all of the client's
    seeds: NDArray[np.int64] | None  # of the dropout masks of client i, step k; None: the model draws nothing
    needs: Needs


@dataclass(frozen=True)
class Done:
    """What a job leaves."""

    local: Local
    buffers: Tensor  # of a group of one
    gradients: int  # how often each client took a gradient


@dataclass(frozen=True, eq=False)
class Work:
    """What an engine is made for."""

    model: nn.Module
    federation: Federation
    loss: Loss
    weight_decay: float
    device: torch.device


class Engine(Protocol):
    """Runs jobs, one at a time; a worker has an engine of its own."""

    name: str

    def group(self, batch_size: int | None) -> int:
        """Return how many clients a job with minibatches of this size may hold; None: all of a client's samples."""
        ...

    def run(self, job: Job) -> Done:
        """Run the local steps of a group of clients. Whom it is with changes no bit of a client's result."""
        ...


@contextmanager
def compute_threads(count: int | None) -> Iterator[None]:
    """Let an operation use ``count`` threads, or with None what torch was told before."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
