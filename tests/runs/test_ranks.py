"""Several processes give the bits of one, also when some of them die."""

import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from kedge.cli.program import execute
from kedge.simulator.gather import divided
from kedge.simulator.transport import mesh
from tests.ranks import results

ROOT = Path(__file__).parents[2]


def start(arguments: list[str], directory: Path, sockets=(), **variables: str) -> subprocess.Popen[str]:
    places = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": places, **variables}
    return subprocess.Popen(
        [sys.executable, *arguments], cwd=directory, env=environment, text=True, pass_fds=sockets,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def start_as_torchrun_does(commands: list[list[str]], directory: Path) -> list[subprocess.Popen[str]]:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": str(len(commands)), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    return [start(command, directory, RANK=str(rank), **common) for rank, command in enumerate(commands)]


def start_with_sockets(commands: list[list[str]], directory: Path) -> list[subprocess.Popen[str]]:
    peers = mesh(len(commands))
    started = []
    for rank, command in enumerate(commands):
        numbers = [peer.fileno() for _, peer in sorted(peers[rank].items())]
        variables = {"RANK": str(rank), "WORLD_SIZE": str(len(commands)), "KEDGE_SOCKETS": " ".join(map(str, numbers))}
        started.append(start(command, directory, numbers, **variables))
    for peer in chain(*(some.values() for some in peers)):
        peer.close()
    return started


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return results(tmp_path_factory.mktemp("alone"))


@pytest.mark.parametrize(
    ("count", "started"), [(2, start_with_sockets), (3, start_as_torchrun_does), (4, start_with_sockets)]
)
def test_any_number_of_processes_gives_the_same_bits(count, started, alone, tmp_path):
    for rank in started([["-m", "tests.ranks", "results.safetensors"]] * count, tmp_path):
        _, error = rank.communicate(timeout=240)
        assert rank.returncode == 0, error
    found = load_file(tmp_path / "results.safetensors")
    assert set(found) == set(alone)
    assert [name for name in found if not torch.equal(found[name], alone[name])] == []


@given(st.lists(st.integers(0, 20), min_size=1, max_size=16), st.integers(1, 8))
def test_the_work_of_neighbouring_shards_is_divided_evenly(loads, count):
    ends = divided(loads, count)
    assert ends == sorted(ends)
    assert (ends[0], ends[-1], len(ends)) == (0, len(loads), count + 1)
    largest = max(sum(loads[first:end]) for first, end in itertools.pairwise(ends))
    assert largest <= sum(loads) / count + max(loads)


RUN = ["-m", "kedge", "run", "--rounds", "400", "--eval-every", "50", "--checkpoint-every", "5", "--eta", "0.5"]


def children(process: subprocess.Popen[str]) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


def named_in(pid: int) -> list[bytes]:
    """Return the words of a process's command."""
    return re.findall(rb"[\w.]+", Path(f"/proc/{pid}/cmdline").read_bytes())


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
    assert "process 1 of 2 was ended by SIGKILL; all restart from round" in error
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
    assert "continue with `kedge resume run`" in error
    assert list((tmp_path / "run" / "checkpoint").glob("round-*.json"))


def test_one_process_that_hears_a_signal_stops_all_of_them(tmp_path):
    process = start([*RUN, "--rounds", "100000", "--workers", "2", "--out", "run"], tmp_path)
    wait_for((tmp_path / "run" / "metrics.jsonl").exists, process)
    os.kill(children(process)[1], signal.SIGTERM)
    output, error = process.communicate(timeout=120)
    assert process.returncode == 143
    assert "continue with `kedge resume run`" in error
    assert "test loss" not in output


def test_a_directory_whose_name_begins_like_an_option(tmp_path):
    process = start([*RUN, "--rounds", "2", "--workers", "2", "--out=-x"], tmp_path)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert (tmp_path / "-x" / "model.safetensors").exists()


def descendants(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split()
    return [pid, *chain(*(descendants(int(child)) for child in found))]


def listening(pids: list[int]) -> list[str]:
    """Return the lines of /proc/net of these processes' sockets that somebody could connect or send to."""
    links = chain(*((Path("/proc") / str(pid) / "fd").iterdir() for pid in pids))
    inodes = {found[1] for link in links if (found := re.fullmatch(r"socket:\[(\d+)\]", str(link.readlink())))}
    assert inodes, "the processes are connected somehow"
    lines = []
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes and (fields[3] == "0A" or table.startswith("udp")):
                lines.append(line)
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[6] in inodes and len(fields) > 7:
            lines.append(line)
    return lines


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="asks Linux what listens")
def test_processes_of_one_machine_listen_nowhere(tmp_path):
    process = start([*RUN, "--rounds", "100000", "--workers", "2", "--out", "run"], tmp_path)
    wait_for((tmp_path / "run" / "metrics.jsonl").exists, process)
    found = listening(descendants(process.pid))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert found == []


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


SWEEP = ["-m", "kedge", "sweep", "--rounds", "100000", "--jobs", "2"]
SWEEP += ["--grid", "algorithm.eta=0.1,0.2", "--set", "run.eval_every=1"]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks Linux who is alive")
@pytest.mark.parametrize(
    ("command", "count"),
    [([*RUN, "--rounds", "100000", "--workers", "3"], 3), (SWEEP, 2)], ids=["run", "sweep"],
)  # fmt: skip
def test_no_child_outlives_its_parent_even_a_stopped_one(command, count, tmp_path):
    process = start([*command, "--out", "out"], tmp_path)
    wait_for(lambda: list((tmp_path / "out").rglob("metrics.jsonl")), process)
    started = descendants(process.pid)[1:]
    assert len(started) >= count
    computing = [pid for pid in started if {b"rank.py", b"spawn_main"} & set(named_in(pid))]
    os.kill(computing[-1], signal.SIGSTOP)  # one that cannot notice by itself
    process.kill()
    deadline = time.monotonic() + 5
    while left := [pid for pid in started if alive(pid)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    process.communicate()


def test_a_process_that_stalls_is_named_and_started_again(tmp_path):
    process = start([*RUN, "--stall-timeout", "5", "--workers", "2", "--out", "run"], tmp_path)
    wait_for((tmp_path / "run" / "checkpoint").exists, process)
    os.kill(children(process)[1], signal.SIGSTOP)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert re.search(r"process 1 of 2 has not answered for [23] s; it counts as lost after 5 s", error), error
    assert "process 1 of 2 does not answer; all restart from round" in error


def test_a_process_that_stalls_under_torchrun_is_named_and_ends_the_others(tmp_path):
    command = [*RUN, "--rounds", "100000", "--stall-timeout", "8", "--out", "run"]
    first, second = start_as_torchrun_does([command, command], tmp_path)
    wait_for((tmp_path / "run" / "checkpoint").exists, first)
    second.send_signal(signal.SIGSTOP)
    _, error = first.communicate(timeout=60)
    second.kill()
    second.communicate()
    assert first.returncode == 75
    assert re.search(r"process 1 of 2 has not answered for \d s; it counts as lost after 8 s", error), error
    assert "process 1 of 2 does not answer; this process ends" in error


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        (["--eta", "0.1"], "algorithm is 'ScaffoldM(eta=0.5"),
        (["--seed", "1"], "seed is 0 for process 0, but 1 for process 1"),
        (["--dataset", "synthetic"], "for process 0, but"),
        (["--rounds", "7"], "rounds is 400 for process 0, but 7 for process 1"),
        (["--eval-every", "7"], "eval_every is 50 for process 0, but 7 for process 1"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_processes_that_were_told_different_things_say_the_first_difference(option, sentence, tmp_path):
    command = [*RUN, "--out", "run"]
    for process in start_as_torchrun_does([command, [*command, *option]], tmp_path):
        _, error = process.communicate(timeout=60)
        assert process.returncode == 2, error
        assert "the processes of this run differ: " in error
        assert sentence in error
        assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"RANK": "0"}, "RANK is '0', but WORLD_SIZE is not set"),
        ({"RANK": "", "WORLD_SIZE": "2"}, "RANK is '', but must be a whole number from 0 to 1"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK is '2', but must be a whole number from 0 to 1"),
        ({"RANK": "0", "WORLD_SIZE": "9" * 5000}, "WORLD_SIZE is '999"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "MASTER_PORT is not set"),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "29400"}, "MASTER_ADDR is not set"),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "no.such.host.invalid", "MASTER_PORT": "29400"},
            "MASTER_ADDR is 'no.such.host.invalid', but there is no such host",
        ),
        (
            {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"},
            "process 1 of 2 did not meet the others at 127.0.0.1:1 within 0.5 s",
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "free"},
            "process 0 of 2 did not meet the others at localhost:",
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "KEDGE_SOCKETS": "x"},
            "KEDGE_SOCKETS is 'x', but only `kedge run",
        ),
    ],
)
def test_variables_of_a_launcher_without_one_are_one_sentence_and_exit_2(
    variables, sentence, tmp_path, monkeypatch, capfd
):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    for name, value in variables.items():
        monkeypatch.setenv(name, str(port) if value == "free" else value)
    assert execute(["run", "--rounds", "2", "--stall-timeout", "0.5", "--out", str(tmp_path / "run")]) == 2
    error = capfd.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()
