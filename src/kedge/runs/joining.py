"""One process among several: what its environment says about that, and how it joins the others.

`kedge run --workers` gives each process the sockets to the others; under torchrun they meet at an address.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore, rendezvous  # type: ignore[attr-defined]

from kedge.errors import UsageError
from kedge.runs.settings import RunSettings
from kedge.runs.stalls import Silence
from kedge.simulator.transport import SocketTransport, connected

LOST = 75
"""The exit code of a process that has lost another one; sysexits.h uses it for what may succeed next time."""

SOCKETS = "KEDGE_SOCKETS"
"""The variable that holds the file numbers of the sockets to the other processes, by their ranks."""

LAUNCHER = "KEDGE_LAUNCHER"
"""The variable that holds the file number of the socket to the launcher."""

JOINED, LEFT = b"+", b"-"
"""What a process tells the launcher in addition to its heartbeat."""

MEETING = 60.0
"""Seconds in which all processes must have met."""

BEAT = 2.0
"""Seconds between two heartbeats over the network."""

ADVICE = "a launcher such as torchrun sets it; without one, unset RANK"


class Membership(NamedTuple):
    """Which process this is, and how many there are."""

    rank: int
    world: int


def membership() -> Membership | None:
    """Return what a launcher has put into the environment; None without a launcher."""
    if "RANK" not in os.environ:
        return None
    count = _number("WORLD_SIZE", 1)
    return Membership(_number("RANK", 0, count - 1), count)


def _number(name: str, least: int, most: int = 10**6) -> int:
    value = os.environ.get(name)
    if value is None:
        raise UsageError(f"RANK is {os.environ['RANK']!r}, but {name} is not set; {ADVICE}")
    if not (value.isascii() and value.isdecimal() and len(value) < 10 and least <= int(value) <= most):
        raise UsageError(f"{name} is {value!r}, but must be a whole number from {least} to {most}; {ADVICE}")
    return int(value)


def is_rank() -> bool:
    """Whether a launcher has started this process as one of several."""
    return membership() is not None


def is_follower() -> bool:
    """Whether this is not the first of them, which keeps the directory and talks to the user."""
    here = membership()
    return here is not None and here.rank != 0


def own_device(device: str) -> str:
    """Return the device of this process: several on one machine have a GPU each."""
    mine = device == "cuda" and is_rank() and "LOCAL_RANK" in os.environ
    return f"cuda:{_number('LOCAL_RANK', 0)}" if mine else device


def _unsaid(text: str) -> None:
    """Say nothing."""


@contextmanager
def joined(stall_timeout: float = RunSettings().stall_timeout, say: Callable[[str], None] = _unsaid) -> Iterator[None]:
    """Join the processes that a launcher has started with this one; alone, do nothing."""
    here = membership()
    if here is None or here.world == 1:
        yield
    elif SOCKETS in os.environ:
        with connected(_inherited(here)):
            _tell(JOINED)
            try:
                yield
            finally:
                _tell(LEFT)
    else:
        with _met(here, stall_timeout, say):
            yield


def _tell(what: bytes) -> None:
    """Tell the launcher, which waits longer for processes that are starting or ending; if it is gone, we soon end."""
    with suppress(KeyError, ValueError, OSError):
        os.write(int(os.environ[LAUNCHER]), what)


def _inherited(here: Membership) -> SocketTransport:
    """Return the sockets that `kedge run --workers` created."""
    given = os.environ.pop(SOCKETS)
    others = [rank for rank in range(here.world) if rank != here.rank]
    try:
        sockets = [socket.socket(fileno=int(number)) for number in given.split()]
        peers = dict(zip(others, sockets, strict=True))
    except (ValueError, OSError) as error:
        raise UsageError(f"{SOCKETS} is {given!r}, but only `kedge run --workers` may set it; unset it") from error
    for peer in peers.values():
        peer.set_inheritable(False)
    return SocketTransport(here.rank, peers)


@contextmanager
def _met(here: Membership, stall_timeout: float, say: Callable[[str], None]) -> Iterator[None]:
    """Meet the others at MASTER_ADDR and MASTER_PORT, and watch that they answer."""
    address, port = os.environ.get("MASTER_ADDR"), _number("MASTER_PORT", 1, 65535)
    if not address:
        raise UsageError(f"RANK is {here.rank}, but MASTER_ADDR is not set; {ADVICE}")
    limit = min(MEETING, stall_timeout)
    unmet = UsageError(
        f"process {here.rank} of {here.world} did not meet the others at {address}:{port} within {limit:g} s; "
        "without a launcher such as torchrun, unset RANK"
    )
    try:
        socket.getaddrinfo(address, port)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"MASTER_ADDR is {address!r}, but there is no such host; {ADVICE}") from error
    hosts = here.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    if not hosts and not _reachable(address, port, limit):  # checked here, because torch would say it in twenty lines
        raise unmet
    fast = torch.cuda.is_available() and dist.is_nccl_available()
    patience = timedelta(seconds=limit)
    try:
        store, rank, count = next(rendezvous("env://", timeout=patience))
        beats = TCPStore(address, port, is_master=False, timeout=patience, wait_for_workers=False)
        beats.set(_beat(rank), "")
        backend = "cpu:gloo,cuda:nccl" if fast else "gloo"
        dist.init_process_group(backend, store=PrefixStore("kedge", store), rank=rank, world_size=count)
    except (RuntimeError, ValueError, OSError) as error:
        raise unmet from error
    ended = threading.Event()
    watch = threading.Thread(target=_attend, args=(beats, here, stall_timeout, say, ended), daemon=True)
    watch.start()
    try:
        yield
    finally:
        ended.set()
        dist.destroy_process_group()


def _reachable(address: str, port: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        try:
            socket.create_connection((address, port), timeout=left).close()
        except (OSError, UnicodeError):
            time.sleep(min(0.1, left))
        else:
            return True
    return False


def _beat(rank: int) -> str:
    return f"kedge/beat/{rank}"


def _attend(
    store: Store, here: Membership, stall_timeout: float, say: Callable[[str], None], ended: threading.Event
) -> None:
    """Send heartbeats and listen for those of the others; end this process when one of them has stalled.

    The launcher then restarts all. The first process that answers speaks for all.
    """

    def speak(text: str) -> None:
        if here.rank == min(set(range(here.world)) - set(silence.quiet()), default=0):
            say(text)

    silence = Silence(here.world, stall_timeout, speak, playing=True)
    names = [_beat(rank) for rank in range(here.world)]
    before = [b""] * here.world
    while not ended.wait(BEAT):
        try:
            store.set(_beat(here.rank), str(time.time_ns()))
            now = store.multi_get(names)
        except RuntimeError:  # the process that keeps the store is gone: the next exchange finds out
            return
        for rank, (old, new) in enumerate(zip(before, now, strict=True)):
            if old != new or rank == here.rank:
                silence.heard(rank)
        before = now
        if (stalled := silence.look()) is not None:
            speak(f"process {stalled} of {here.world} does not answer; this process ends")
            sys.stderr.flush()
            os._exit(LOST)
