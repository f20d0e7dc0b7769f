"""The memory of a client and of the server on Flower, in vectors as large as the model.

    python -m benchmarks.flower_memory [--parameters 100000000] [--algorithms fedavg scaffold-m] [--clients 2]

Plays two rounds of two local steps on one square linear layer, after the opening where there is one. The server is a
process, and so is each answer of a client, as on Flower; messages go between them through files instead of the network,
so what Flower itself needs to send and receive them is not counted. A figure is the peak of a process, less that of the
same process with a tiny model. It is read from Linux's /proc.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from torch import nn

from kedge.flower import client_app, server_app

ROUNDS, STEPS, BATCH = 2, 2, 4
TINY = 400
"""Parameters of the model whose peaks are the baseline."""

NAME = "benchmarks.flower_memory"


class Peaks(NamedTuple):
    """The most memory that the server and the answers of its clients took, in bytes or in vectors."""

    client: float
    server: float


def model(context: Context) -> nn.Module:
    side = int(context.run_config["model.widths"])
    return nn.Linear(side, side, bias=False)


def load_data(context: Context) -> tuple[torch.Tensor, torch.Tensor]:
    side = int(context.run_config["model.widths"])
    return torch.rand(BATCH, side), torch.arange(BATCH) % side


def save(place: Path, content: RecordDict) -> None:
    """Write a message, one array after another."""
    place.mkdir(parents=True)
    about: dict[str, Any] = {}
    arrays: dict[str, Any] = {}
    for record, values in content.items():
        if isinstance(values, ConfigRecord):
            about[record] = dict(values)
            continue
        for name, array in values.items():
            arrays[f"{record}.{name}"] = [array.dtype, array.shape, array.stype]
            (place / f"{record}.{name}").write_bytes(array.data)
    (place / "message.json").write_text(json.dumps([about, arrays]))


def load(place: Path) -> RecordDict:
    about, arrays = json.loads((place / "message.json").read_text())
    content = RecordDict({name: ConfigRecord(record) for name, record in about.items()})
    for key, (dtype, shape, stype) in arrays.items():
        record, name = key.split(".")
        found = Array(dtype, tuple(shape), stype, (place / key).read_bytes())
        content.setdefault(record, ArrayRecord())[name] = found
        (place / key).unlink()
    return content


class FileGrid(Grid):
    """Starts a process per message, which answers it from and to files."""

    def __init__(self, place: Path, clients: int) -> None:
        self._place, self._clients, self._count = place, clients, 0
        self._sent: dict[str, Message] = {}

    run: Any = None

    def set_run(self, run: Any) -> None: ...
    def create_message(self, *arguments: Any, **more: Any) -> Any: ...
    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any: ...
    def get_node_ids(self) -> Any: ...
    def get_nodes(self) -> Any:
        return [NodeInfo(node_id=100 + client, last_activated_at="a") for client in range(self._clients)]

    def push_messages(self, messages: Any) -> Any:
        identities = []
        for message in messages:
            self._count += 1
            identity = f"m{self._count}"
            node = message.metadata.dst_node_id
            save(self._place / identity, message.content)
            metadata = {"kind": message.metadata.message_type, "client": node - 100}
            (self._place / identity / "metadata.json").write_text(json.dumps(metadata))
            subprocess.run([sys.executable, "-m", NAME, "--answer", str(self._place), identity], check=True)
            message.metadata.__dict__["_message_id"] = identity
            self._sent[identity] = Message(RecordDict(), node, message.metadata.message_type)
            self._sent[identity].metadata.__dict__["_message_id"] = identity
            identities.append(identity)
        return identities

    def pull_messages(self, message_ids: Any) -> Any:
        return [
            Message(load(self._place / f"{identity}-reply"), reply_to=self._sent.pop(identity))
            for identity in message_ids
            if identity in self._sent
        ]


def answer(place: Path, identity: str) -> None:
    """Be a client for one message."""
    config = json.loads((place / "config.json").read_text())
    metadata = json.loads((place / identity / "metadata.json").read_text())
    node = {"client": metadata["client"], "state-dir": str(place / f"disk-{metadata['client']}")}
    content = load(place / identity)
    message = Message(content, 1, metadata["kind"])
    message.metadata.__dict__["_message_id"] = identity
    del content
    reply = client_app(model, load_data)(message, Context(1, 1, node, RecordDict(), config))
    if "refused" in reply.content["about"]:
        raise RuntimeError(str(reply.content["about"]["refused"]))
    save(place / f"{identity}-reply", reply.content)
    note(place, metadata["kind"])


def serve(place: Path) -> None:
    """Be the server of a run."""
    config = json.loads((place / "config.json").read_text())
    context = Context(1, 1, {}, RecordDict(), config)
    server_app(model)(FileGrid(place, config["data.clients"]), context)
    note(place, "server")


def note(place: Path, kind: str) -> None:
    """Write down the peak of this process."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    with (place / f"{kind}.peaks").open("a") as file:
        file.write(f"{int(line.split()[1]) * 1024}\n")


def played(algorithm: str, parameters: int, clients: int, place: Path) -> Peaks:
    """Play a run and return its peaks in bytes."""
    place.mkdir()
    config = {
        "algorithm.name": algorithm, "algorithm.eta": 0.1, "data.clients": clients,
        "model.widths": str(math.isqrt(parameters)), "run.cohort": clients, "run.rounds": ROUNDS,
        "run.local_steps": STEPS, "run.batch_size": BATCH,
        "flower.out": str(place / "out"),
    }  # fmt: skip
    (place / "config.json").write_text(json.dumps(config))
    # Every vector is given back to the system when it is freed, whatever its size.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", NAME, "--serve", str(place)]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    found = {kind: max(map(int, (place / f"{kind}.peaks").read_text().split())) for kind in ("train", "server")}
    return Peaks(found["train"], found["server"])


def measured(algorithms: Sequence[str], parameters: int, clients: int) -> Iterator[tuple[str, Peaks]]:
    """Return the peaks of each algorithm in vectors."""
    with tempfile.TemporaryDirectory(prefix="kedge-memory-") as place:
        tiny = played("scaffold-m", TINY, 1, Path(place) / "tiny")
        for algorithm in algorithms:
            large = played(algorithm, parameters, clients, Path(place) / algorithm)
            yield algorithm, Peaks(*((one - other) / (4 * parameters) for one, other in zip(large, tiny, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=100_000_000, help="rounded to a square")
    parser.add_argument("--algorithms", nargs="+", default=["fedavg", "scaffold-m"])
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--answer", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # Flower asks who this process is
    if chosen.answer:
        answer(Path(chosen.answer[0]), chosen.answer[1])
    elif chosen.serve:
        serve(chosen.serve)
    else:
        parameters = math.isqrt(chosen.parameters) ** 2
        print(f"{parameters:,} parameters, {chosen.clients} clients; vectors of {4 * parameters:,} bytes")
        for algorithm, found in measured(chosen.algorithms, parameters, chosen.clients):
            print(f"{algorithm:12} client {found.client:5.2f}, server {found.server:5.2f}", flush=True)


if __name__ == "__main__":
    main()
