"""Several processes give the bits of one, also when some of them die."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from kedge.simulator.ranks import Ranks
from tests.ranks import results

ROOT = Path(__file__).parents[2]


def start(arguments: list[str], directory: Path, **variables: str) -> subprocess.Popen[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **variables}
    return subprocess.Popen(
        [sys.executable, *arguments], cwd=directory, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return results(tmp_path_factory.mktemp("alone"))


@pytest.mark.parametrize("count", [2, 3, 4])
def test_any_number_of_processes_gives_the_same_bits(count, alone, tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": str(count), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    ranks = [
        start(["-m", "tests.ranks", "results.safetensors"], tmp_path, RANK=str(rank), **common) for rank in range(count)
    ]
    for rank in ranks:
        _, error = rank.communicate(timeout=240)
        assert rank.returncode == 0, error
    found = load_file(tmp_path / "results.safetensors")
    assert set(found) == set(alone)
    assert [name for name in found if not torch.equal(found[name], alone[name])] == []


@pytest.mark.parametrize(("count", "shards"), [(1, 16), (3, 16), (4, 4), (5, 7)])
def test_every_process_has_neighbouring_shards(count, shards):
    owners = [Ranks(0, count).owner(shard, shards) for shard in range(shards)]
    assert owners == sorted(owners)
    assert set(owners) == set(range(count))
    sizes = [owners.count(rank) for rank in range(count)]
    assert max(sizes) - min(sizes) <= 1


RUN = ["-m", "kedge", "run", "--rounds", "400", "--eval-every", "50", "--checkpoint-every", "5", "--eta", "0.5"]


def children(process: subprocess.Popen[str]) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


def wait_for(condition, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "nothing happens"
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def outcome(directory: Path) -> tuple[bytes, list[str]]:
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return (directory / "model.safetensors").read_bytes(), [re.sub(', "seconds.*', "", line) for line in lines]


def test_processes_that_die_start_again_and_the_result_is_the_same(tmp_path):
    plain = start([*RUN, "--out", "plain"], tmp_path)
    process = start([*RUN, "--workers", "2", "--out", "killed"], tmp_path)
    checkpoints = tmp_path / "killed" / "checkpoint"
    wait_for(lambda: checkpoints.exists() and len(children(process)) == 2, process)
    os.kill(children(process)[1], signal.SIGKILL)
    output, error = process.communicate(timeout=240)
    assert process.returncode == 0, error
    assert "process 1 of 2 was ended by SIGKILL; all start again from round" in error
    assert "2 processes" in output
    assert "Traceback" not in error
    plain.communicate(timeout=240)
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "plain")


def test_a_run_that_gets_no_further_ends_with_a_sentence(tmp_path):
    never = [*RUN, "--rounds", "100000", "--checkpoint-every", "never", "--workers", "2", "--out", "run"]
    process = start(never, tmp_path)
    killed: set[int] = set()

    def kill() -> bool:
        begun = (tmp_path / "run" / "metrics.jsonl").exists()
        for pid in children(process)[:1] if begun else []:
            if pid not in killed:
                killed.add(pid)
                os.kill(pid, signal.SIGKILL)
        return process.poll() is not None

    deadline = time.monotonic() + 180
    while not kill():
        assert time.monotonic() < deadline
        time.sleep(0.2)
    _, error = process.communicate()
    assert process.returncode == 1
    assert re.search(r"process 0 of 2 was ended by SIGKILL 2 times in a row before round 1 was saved", error), error


def test_a_signal_stops_all_processes_with_a_checkpoint(tmp_path):
    process = start([*RUN, "--rounds", "100000", "--workers", "2", "--out", "run"], tmp_path)
    wait_for((tmp_path / "run" / "metrics.jsonl").exists, process)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 143
    assert "`kedge resume run` goes on" in error
    assert list((tmp_path / "run" / "checkpoint").glob("round-*.json"))
