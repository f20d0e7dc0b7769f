"""How many threads one operation uses."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

SMALL_STEP = 10_000_000
"""Multiplications of a step (parameters x samples) below which a second thread costs more than it brings."""


@contextmanager
def compute_threads(parameters: int, samples: int) -> Iterator[None]:
    """Use one thread for small steps, and what torch was told before for large ones."""
    before = torch.get_num_threads()
    if parameters * samples < SMALL_STEP:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
