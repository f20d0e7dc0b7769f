"""Several processes for one run: torch's elastic launcher starts them, and again when one of them dies.

Every process runs `kedge resume DIRECTORY`; which of them it is, the launcher says in its environment. With torchrun it
is the same: see docs/distributed.md.
"""

import logging
import os
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from kedge.errors import UsageError
from kedge.simulator.checkpoint import Checkpoints

LOST = 75
"""The exit code of a process that has lost another one; so says sysexits.h of what may go better the next time."""

TRIES = 2
"""How often in a row the processes may die before the run has got further."""


def is_rank() -> bool:
    """Whether a launcher has started this process as one of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def is_follower() -> bool:
    """Whether this is another one than the first of them, which keeps the directory and talks to the user."""
    return is_rank() and os.environ["RANK"] != "0"


@contextmanager
def joined() -> Iterator[None]:
    """Join the processes that a launcher has started with this one; alone, do nothing."""
    if not is_rank():
        yield
        return
    fast = torch.cuda.is_available() and dist.is_nccl_available()
    dist.init_process_group("cpu:gloo,cuda:nccl" if fast else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def own_device(device: str) -> str:
    """Return the device of this process: of several on a machine each has a GPU of its own."""
    return f"cuda:{os.environ['LOCAL_RANK']}" if device == "cuda" and "LOCAL_RANK" in os.environ else device


def launch(directory: Path, checkpoints: Path, workers: int, say: Callable[[str], None]) -> int:
    """Run the run in ``directory`` in so many processes until it is over; return the exit code."""
    logging.disable(logging.ERROR)  # the failure is said below, once
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, torch.get_num_threads() // workers)))
    reached, idle = -1, 0
    while True:
        try:
            _start(directory, workers)
            return 0
        except SignalException as stopped:
            return 128 + stopped.sigval
        except ChildFailedError as error:
            # Those that lost it, or that the launcher then told to end, are not the cause.
            codes = (LOST, -signal.SIGTERM)
            rank, failure = min(error.failures.items(), key=lambda item: item[1].exitcode in codes)
        if failure.exitcode > 0 and failure.exitcode != LOST:  # it has said itself why it ended
            return failure.exitcode
        before, reached = reached, Checkpoints(checkpoints).newest()
        idle = 0 if reached > before else idle + 1
        if idle >= TRIES:
            why = f"{_why(failure)} {TRIES} times in a row"
            say(f"process {rank} of {workers} {why} before round {max(0, reached) + 1} was saved; the run ends here")
            return 1
        say(f"process {rank} of {workers} {_why(failure)}; all start again from round {max(0, reached)}")


def _start(directory: Path, workers: int) -> None:
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=workers,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
    )
    elastic_launch(config, sys.executable)("-m", "kedge", "resume", str(directory))


def _why(failure: ProcessFailure) -> str:
    if failure.exitcode == LOST:
        return "lost another one"
    return f"was ended by {signal.Signals(-failure.exitcode).name}"


def check_workers(workers: int, shards: int) -> None:
    """Refuse a number of processes that cannot all have a shard."""
    if workers > shards:
        raise UsageError(f"workers is {workers}, but must be at most shards, which is {shards}")
