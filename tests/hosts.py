"""Two hosts on one machine: network namespaces joined by a cable, torchrun in each. Needs root and `ip`.

    python -m tests.hosts

A run on both must end with the bits of one process; so must a run that loses one host for good in the middle.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

HOSTS = {"kedge-a": "10.77.0.1", "kedge-b": "10.77.0.2"}
RUN = ["-m", "kedge", "run", "--rounds", "1500", "--threads", "1", "--checkpoint-every", "20", "--eval-every", "100"]


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@contextmanager
def network():
    """Make the namespaces, and remove them."""
    try:
        for host in HOSTS:
            ip("netns", "add", host)
        ip("link", "add", "eth-a", "netns", "kedge-a", "type", "veth", "peer", "name", "eth-b", "netns", "kedge-b")
        for host, address in HOSTS.items():
            ip("-n", host, "address", "add", f"{address}/24", "dev", f"eth-{host[-1]}")
            for device in ("lo", f"eth-{host[-1]}"):
                ip("-n", host, "link", "set", device, "up")
        yield
    finally:
        for host in HOSTS:
            subprocess.run(["ip", "netns", "delete", host], check=False)


def node(host: str, out: Path) -> subprocess.Popen:
    """Start torchrun on a host."""
    first = host == "kedge-a"
    launcher = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:2", "--nproc-per-node", "1",
        "--rdzv-backend", "c10d", "--rdzv-id", "kedge", "--rdzv-endpoint", f"{HOSTS['kedge-a']}:29400",
        "--rdzv-conf", f"is_host={int(first)}", "--local-addr", HOSTS[host], "--max-restarts", "3",
    ]  # fmt: skip
    variables = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": f"eth-{host[-1]}"}
    return subprocess.Popen(
        ["ip", "netns", "exec", host, *launcher, *RUN, "--out", str(out)],
        env=os.environ | variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def lose(host: str) -> None:
    """End everything on a host, as if it had lost power."""
    pids = subprocess.run(["ip", "netns", "pids", host], capture_output=True, text=True, check=True).stdout.split()
    for pid in pids:
        os.kill(int(pid), signal.SIGKILL)


def play(out: Path, *, lost: bool) -> bytes:
    """Run on both hosts, one of which may be lost after the first checkpoint; return the model."""
    nodes = [node(host, out) for host in HOSTS]
    if lost:
        while not list(out.glob("checkpoint/round-*.json")):
            assert nodes[0].poll() is None, "the first host has ended"
            time.sleep(0.1)
        lose("kedge-b")
    assert nodes[0].wait(600) == 0, "the first host has failed"
    nodes[1].wait(600)
    return (out / "model.safetensors").read_bytes()


def main() -> None:
    """Print what was tried and whether anything differs."""
    with tempfile.TemporaryDirectory() as place, network():
        work = Path(place)
        command = [sys.executable, *RUN, "--out", str(work / "alone")]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})
        alone = (work / "alone" / "model.safetensors").read_bytes()
        print("| hosts | difference in the end |\n|---|---|")
        for what, lost in (("two", False), ("two, one of them lost", True)):
            same = play(work / what.replace(" ", "-"), lost=lost) == alone
            print(f"| {what} | {'none' if same else 'the model'} |", flush=True)


if __name__ == "__main__":
    main()
