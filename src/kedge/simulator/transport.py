"""How the processes of a run send each other tensors: over torch.distributed, or over socket pairs on one machine.

A socket pair has no address: only the two processes that inherited its ends can reach it.
"""

import selectors
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from kedge.errors import LostProcessError


class Transport(Protocol):
    """What the ranks of a run need from each other. Every receiving tensor is contiguous."""

    def all_gather(self, messages: Sequence[Tensor], message: Tensor) -> None:
        """Fill ``messages`` with those of all ranks, which have the same shape and dtype."""

    def broadcast(self, tensor: Tensor) -> None:
        """Fill the tensor with that of rank 0."""

    def send(self, tensor: Tensor, rank: int) -> None:
        """Send a tensor, which the other rank must receive."""

    def receive(self, tensor: Tensor, rank: int) -> None:
        """Fill the tensor with the next one that a rank sends."""


class TorchTransport:
    """The default process group of torch.distributed, without any of its functions that pickle."""

    def all_gather(self, messages: Sequence[Tensor], message: Tensor) -> None:
        """As the protocol says."""
        with _together():
            dist.all_gather(list(messages), message)

    def broadcast(self, tensor: Tensor) -> None:
        """As the protocol says."""
        with _together():
            dist.broadcast(tensor, 0)

    def send(self, tensor: Tensor, rank: int) -> None:
        """As the protocol says."""
        with _together():
            dist.send(tensor.contiguous(), rank)

    def receive(self, tensor: Tensor, rank: int) -> None:
        """As the protocol says."""
        with _together():
            dist.recv(tensor, rank)


TORCH = TorchTransport()


@contextmanager
def _together() -> Iterator[None]:
    """Say what an error of torch's transport means."""
    try:
        yield
    except RuntimeError as error:
        raise LostProcessError(f"another process of this run is gone: {error}") from error


class SocketTransport:
    """A stream socket to every other rank; GPU tensors pass through host memory."""

    def __init__(self, rank: int, peers: Mapping[int, socket.socket]) -> None:
        self.rank = rank
        self.count = len(peers) + 1
        self._peers = peers
        for peer in peers.values():
            peer.setblocking(False)

    def all_gather(self, messages: Sequence[Tensor], message: Tensor) -> None:
        """As the protocol says."""
        messages[self.rank].copy_(message)
        self._move(dict.fromkeys(self._peers, message), {rank: messages[rank] for rank in self._peers})

    def broadcast(self, tensor: Tensor) -> None:
        """As the protocol says."""
        if self.rank == 0:
            self._move(dict.fromkeys(self._peers, tensor), {})
        else:
            self._move({}, {0: tensor})

    def send(self, tensor: Tensor, rank: int) -> None:
        """As the protocol says."""
        self._move({rank: tensor}, {})

    def receive(self, tensor: Tensor, rank: int) -> None:
        """As the protocol says."""
        self._move({}, {rank: tensor})

    def close(self) -> None:
        """Leave the others."""
        for peer in self._peers.values():
            peer.close()

    def _move(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor]) -> None:
        hosts = {rank: torch.empty_like(t, device="cpu") if t.is_cuda else t for rank, t in incoming.items()}
        self._exchange(
            {rank: _bytes(tensor.cpu().contiguous()) for rank, tensor in outgoing.items()},
            {rank: _bytes(tensor) for rank, tensor in hosts.items()},
        )
        for rank, tensor in incoming.items():
            if hosts[rank] is not tensor:
                tensor.copy_(hosts[rank])

    def _exchange(self, outgoing: dict[int, memoryview], incoming: dict[int, memoryview]) -> None:
        """Send and receive at once, in whatever order the others are ready: two that only send would wait forever."""
        with selectors.DefaultSelector() as selector:

            def watch(rank: int) -> None:
                wanted = selectors.EVENT_WRITE if outgoing.get(rank) else 0
                wanted |= selectors.EVENT_READ if incoming.get(rank) else 0
                known = selector.get_map().get(self._peers[rank])
                if known is None and wanted:
                    selector.register(self._peers[rank], wanted, rank)
                elif known is not None and not wanted:
                    selector.unregister(self._peers[rank])
                elif known is not None and known.events != wanted:
                    selector.modify(self._peers[rank], wanted, rank)

            for rank in {*outgoing, *incoming}:
                watch(rank)
            while selector.get_map():
                for key, events in selector.select():
                    rank, peer = key.data, self._peers[key.data]
                    try:
                        if events & selectors.EVENT_WRITE:
                            outgoing[rank] = outgoing[rank][peer.send(outgoing[rank]) :]
                        if events & selectors.EVENT_READ:
                            count = peer.recv_into(incoming[rank])
                            if not count:
                                raise ConnectionResetError
                            incoming[rank] = incoming[rank][count:]
                    except BlockingIOError:
                        continue
                    except OSError as error:
                        raise LostProcessError(f"process {rank} of this run is gone") from error
                    watch(rank)


def _bytes(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous tensor."""
    return tensor.detach().view(-1).view(torch.uint8).numpy().data


def mesh(count: int) -> list[dict[int, socket.socket]]:
    """Return, for each of ``count`` processes, its sockets to the others by rank."""
    peers: list[dict[int, socket.socket]] = [{} for _ in range(count)]
    for one, other in combinations(range(count), 2):
        peers[one][other], peers[other][one] = socket.socketpair()
    return peers


_sockets: SocketTransport | None = None


@contextmanager
def connected(transport: SocketTransport) -> Iterator[None]:
    """Act as one of the processes that these sockets connect."""
    global _sockets
    _sockets = transport
    try:
        yield
    finally:
        _sockets = None
        transport.close()


def current() -> tuple[int, int, Transport]:
    """Return the rank of this process, how many there are, and how to reach them."""
    if _sockets is not None:
        return _sockets.rank, _sockets.count, _sockets
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size(), TORCH
    return 0, 1, TORCH
