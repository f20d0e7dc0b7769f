"""What an engine is: something that runs the local steps of a client."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kedge.direction import Direction, Vector
from kedge.exchange import Local, Needs

Loss = Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True)
class Job:
    """The local steps of one client in one exchange."""

    rule: Direction
    start: Vector
    buffers: Tensor  # the server's
    eta: float
    client: int
    steps: int
    batches: NDArray[np.int64] | None  # step k uses the samples batches[k]; None: all of the client's, in every step
    seeds: NDArray[np.int64] | None  # of the dropout masks of step k; None: the model draws nothing
    needs: Needs


@dataclass(frozen=True)
class Done:
    """What a job leaves."""

    local: Local
    buffers: Tensor
    gradients: int  # how often a gradient was taken


class Engine(Protocol):
    """Runs jobs, one at a time; a worker has an engine of its own."""

    name: str

    def run(self, job: Job) -> Done:
        """Run a client's local steps."""
        ...
