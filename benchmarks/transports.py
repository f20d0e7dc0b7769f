"""An all_gather between two processes: the socket pairs of `kedge run --workers` and torch's gloo, in turns.

python -m benchmarks.transports
"""

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from kedge.simulator.transport import TORCH, SocketTransport, mesh

SIZES = {8: 50, 1_000_000: 50, 40_000_000: 9}
"""Bytes of a message, and how often it is sent."""


def play(rank: int, file: int, meeting: str) -> None:
    """Be one of the two processes; the first one prints the medians."""
    torch.set_num_threads(1)
    store = dist.FileStore(meeting, 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    ways = {"socket pair": SocketTransport(rank, {1 - rank: socket.socket(fileno=file)}), "gloo": TORCH}
    for size, repeats in SIZES.items():
        message = torch.zeros(size, dtype=torch.uint8)
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(repeats):
            for name, way in ways.items():
                messages = [torch.zeros_like(message) for _ in range(2)]
                dist.barrier()
                began = time.perf_counter()
                way.all_gather(messages, message)
                times[name].append(time.perf_counter() - began)
        if rank == 0:
            found = ", ".join(f"{name} {statistics.median(values) * 1e3:.2f} ms" for name, values in times.items())
            print(f"{size:>10,d} bytes: {found}", flush=True)
    dist.destroy_process_group()


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        started = []
        for rank, peers in enumerate(mesh(2)):
            (peer,) = peers.values()
            command = [sys.executable, "-m", "benchmarks.transports", str(rank), str(peer.fileno()), f"{place}/store"]
            started.append(
                subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, pass_fds=[peer.fileno()])
            )
            peer.close()
        for process in started:
            process.wait()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        play(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    else:
        main()
