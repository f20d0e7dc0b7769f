"""A federation without processes: a Grid that plays the nodes itself, and loses what it is told to."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

import kedge
from kedge.client import FlatModule
from kedge.flower.agreement import Agreement
from kedge.flower.client import client_app
from kedge.flower.server import Server

TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # this process is the ServerApp

CLIENTS = 3
Fate = Callable[[int, Message], str]


class Died(BaseException):
    """The server is killed here."""


class LocalGrid(Grid):
    """Calls the client's app for every message, and lets ``fate`` decide what becomes of message and reply.

    A fate is "ok", "lost", "reply lost", "late" (the client gets it before the next message to it, and nobody hears
    the reply), "twice", "restarted", "die before", "die after", or the name of a corruption.
    """

    def __init__(self, app: Any, contexts: dict[int, Context], fate: Fate = lambda client, message: "ok") -> None:
        self.app, self.contexts, self.fate = app, contexts, fate
        self.replies: dict[str, Message] = {}
        self.late: dict[int, list[Message]] = {node: [] for node in contexts}
        self.activated = dict.fromkeys(contexts, "a")
        self.count = self.plays = 0
        self.down: list[int] = []
        self.up: list[int] = []
        """The bytes of every vector, as it travelled."""

    run: Any = None

    def set_run(self, run: Any) -> None: ...
    def create_message(self, *arguments: Any, **more: Any) -> Any: ...
    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any: ...
    def get_node_ids(self) -> Any:
        return list(self.contexts)

    def get_nodes(self) -> Any:
        return [NodeInfo(node_id=node, last_activated_at=self.activated[node]) for node in self.contexts]

    def push_messages(self, messages: Any) -> Any:
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        self.count += 1
        node, identity = message.metadata.dst_node_id, f"m{self.count}"
        message.metadata.__dict__["_message_id"] = identity
        fate = self.fate(node - 100, message) if message.metadata.message_type == "train" else "ok"
        if fate == "restarted":  # before it has heard anything
            self.activated[node] += "a"
            self.late[node], fate = [], "lost"
        gone = Message(Error(code=3, reason="node unavailable"), reply_to=message)
        if fate == "die before":
            raise Died
        if fate in ("lost", "late"):
            self.late[node] += [message] if fate == "late" else []
            self.replies[identity] = gone
            return identity
        self.plays += 1
        reply = self._answer(node, message)
        for old in self.late[node]:  # it was overtaken
            self._answer(node, old)
        self.late[node] = []
        if fate == "twice":
            self._answer(node, message)
        if fate == "die after":
            raise Died
        self.replies[identity] = gone if fate == "reply lost" else CORRUPTIONS.get(fate, lambda reply: reply)(reply)
        return identity

    def _answer(self, node: int, message: Message) -> Message:
        content = dict(message.content)
        self.down += sizes(message.content)
        reply = self.app(message, self.contexts[node])
        self.up += sizes(reply.content) if reply.has_content() else []
        message.content.update(content)  # the client has taken the vectors out; the message may be delivered again
        return reply

    def pull_messages(self, message_ids: Any) -> Any:
        return [self.replies.pop(identity) for identity in message_ids if identity in self.replies]


def sizes(content: RecordDict) -> list[int]:
    """Return the bytes of every vector of a message."""
    return [len(array.data) for record in content.array_records.values() for array in record.values()]


def changed(change: Callable[[RecordDict], None]) -> Callable[[Message], Message]:
    """Return what changes a reply's content."""

    def corrupt(reply: Message) -> Message:
        if reply.has_content():
            change(reply.content)
        return reply

    return corrupt


def vectors(change: Callable[[np.ndarray], Any]) -> Callable[[Message], Message]:
    """Return what changes every vector of a reply."""

    def corrupt(content: RecordDict) -> None:
        for record in content.array_records.values():
            for name, array in list(record.items()):
                record[name] = Array(change(array.numpy().copy()))

    return changed(corrupt)


def _nan(values: np.ndarray) -> np.ndarray:
    values[..., -1:] = np.nan
    return values


def _config(**values: Any) -> Callable[[Message], Message]:
    return changed(lambda content: content.config_records["about"].update(values))


def _huge(content: RecordDict) -> None:
    """A header that promises a million times what there is."""
    for record in content.array_records.values():
        for name, array in list(record.items()):
            data = array.data.replace(b"'shape': (", b"'shape': (9999,", 1)
            record[name] = Array("float32", (9999,), "numpy.ndarray", data)


def _pickled(content: RecordDict) -> None:
    for record in content.array_records.values():
        for name, array in list(record.items()):
            record[name] = Array("float32", array.shape, "numpy.ndarray", b"\x80\x04K\x01." + array.data[5:])


def _refused(content: RecordDict) -> None:
    content.clear()
    content["about"] = ConfigRecord({"refused": "no\n\x1b[31mWARNING"})


CORRUPTIONS: dict[str, Callable[[Message], Message]] = {
    "nan": vectors(_nan),
    "infinite": vectors(lambda values: values + np.inf),
    "short": vectors(lambda values: values[..., :-1] if values.ndim else values[None]),
    "matrix": vectors(lambda values: values[None]),
    "double": vectors(lambda values: values.astype(np.float64)),
    "half": vectors(lambda values: values.astype(np.float16)),
    "huge": changed(_huge),
    "pickled": changed(_pickled),
    "more vectors": changed(lambda content: content.setdefault("fields", ArrayRecord()).update(y=Array(np.zeros(3)))),
    "other vectors": changed(lambda content: content.__setitem__("fields", ArrayRecord({"y": Array(np.zeros(3))}))),
    "another record": changed(lambda content: content.__setitem__("more", ArrayRecord({"y": Array(np.zeros(3))}))),
    "another kind": changed(lambda content: content.__setitem__("fields", ConfigRecord({"y": 1}))),
    "no record": changed(lambda content: content.__delitem__("about")),
    "another client": _config(client=7),
    "another round": _config(tag="000001-0000000001"),
    "a path": _config(tag="../../etc"),
    "another type": _config(client="0"),
    "negative": _config(gradients=-1.0),
    "absurd count": _config(gradients=1e308),  # two of them are infinite
    "absurd loss": _config(test_loss=-1.7e308),
    "more words": _config(hello="x"),
    "refused": changed(_refused),
}


def config(algorithm: str, out: Path, rounds: int, cohort: int, **more: Any) -> dict[str, Any]:
    """Return a run config."""
    return {
        "algorithm.name": algorithm, "algorithm.eta": 0.05, "data.clients": CLIENTS, "run.rounds": rounds,
        "run.cohort": cohort, "run.local_steps": 3, "run.batch_size": 4, "run.seed": 5, "flower.out": str(out),
        "flower.deadline": 5.0, "flower.wait": 2.0, "flower.attempts": 1000,
    } | {key.replace("__", "."): value for key, value in more.items()}  # fmt: skip


class World:
    """A federation on disk: a server's directory and a state directory per client."""

    def __init__(self, path: Path, federation: Any, model: Any, algorithm: Any = None) -> None:
        self.path, self.federation, self.model, self.algorithm = path, federation, model, algorithm

    def grid(self, config: dict[str, Any], fate: Fate = lambda client, message: "ok") -> LocalGrid:
        """Return a Grid with a node per client."""
        nodes = {
            100 + i: Context(1, 100 + i, {"client": i, "state-dir": str(self.path / f"disk-{i}")}, RecordDict(), config)
            for i in range(len(self.federation))
        }
        app = client_app(
            self.model, lambda context: self.federation.client(int(context.node_config["client"])),
            load_test=lambda context: self.federation.test, algorithm=self.algorithm,
        )  # fmt: skip
        return LocalGrid(app, nodes, fate)

    def server(self, config: dict[str, Any], fate: Fate = lambda client, message: "ok", grid: Any = None) -> Server:
        """Return a server that does not sleep."""
        agreed = Agreement.read(config, self.algorithm)
        grid = grid or self.grid(config, fate)
        return Server(grid, agreed, self.model(), self.federation.test, sleep=lambda seconds: None)

    def client(self, server: Server, number: int) -> dict[str, torch.Tensor]:
        """Return a client's state as the server counts it."""
        from safetensors.torch import load_file

        tag = server.versions.now.get(number, "")
        if not tag:
            flat = FlatModule(self.model(), torch.device("cpu"))
            return server._agreed.algorithm.init_client(flat.initial)._asdict()
        (file,) = (self.path / f"disk-{number}").glob(f"*/client-{number}/state/{tag}.safetensors")
        return load_file(file)


def digits() -> Any:
    """Return a small federation."""
    return kedge.load_federation("digits", clients=CLIENTS, partition="dirichlet", alpha=0.5, seed=1, test_samples=50)


def mlp() -> torch.nn.Module:
    """Return a small model."""
    return kedge.build_model("mlp", (64,), 10, widths=[8])
