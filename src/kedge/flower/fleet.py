"""Which node is which client. A node that was started again is another activation, even if it kept its id."""

import itertools
import time
from collections.abc import Callable, Iterable
from logging import INFO, WARNING
from typing import Any, NamedTuple

from flwr.app import Message, RecordDict
from flwr.common import log
from flwr.serverapp import Grid

from kedge.errors import UsageError
from kedge.flower.wire import Present, about, plain, refusal

LOOK = 1.0
"""Seconds between looks at who is connected."""

PATIENCE = 600.0
"""Seconds for a node to say who it is."""


class Incarnation(NamedTuple):
    """A node from its start to its end."""

    since: str
    node: int


class Fleet:
    """The connected nodes and the clients they are."""

    def __init__(self, grid: Grid, clients: int, names: dict[str, int], sizes: dict[int, int]) -> None:
        self.names, self.sizes = names, sizes  # the checkpoint keeps both
        self._grid, self._clients = grid, clients
        self._online: set[Incarnation] = set()
        self._known: dict[Incarnation, int] = {}
        self._refused: set[Incarnation] = set()
        self._asked: dict[str, Incarnation] = {}
        self._looked = -LOOK

    def look(self) -> None:
        """Find out who is connected, and ask new nodes who they are."""
        if time.monotonic() - self._looked >= LOOK:
            self._looked = time.monotonic()
            self._online = {Incarnation(node.last_activated_at, node.node_id) for node in self._grid.get_nodes()}
            new = sorted(self._online - self._known.keys() - self._refused - set(self._asked.values()))
            messages = [Message(RecordDict(), one.node, "query", ttl=PATIENCE) for one in new]
            if messages:
                self._asked |= dict(zip(self._grid.push_messages(messages), new, strict=True))
        for reply in pulled(self._grid, self._asked):
            activation = self._asked.pop(reply.metadata.reply_to_message_id)
            try:
                self._meet(activation, reply)
            except UsageError as error:
                self._refused.add(activation)
                log(WARNING, "node %s is not a client: %s", activation.node, plain(error))

    def _meet(self, activation: Incarnation, reply: Message) -> None:
        if reply.has_error():
            raise UsageError(f"it did not say who it is: {reply.error.reason}")
        if (reason := refusal(reply.content)) is not None:
            raise UsageError(reason)
        who = about(reply.content, Present)
        client = who.client if who.client >= 0 else self.names.get(who.name, self._free())
        if who.client >= 0 and client in self.names.values():
            raise UsageError(f"it is client {client}, but a client with a name has that number")
        if client >= self._clients:
            raise UsageError(f"it is client {client}, but data.clients is {self._clients}")
        if who.client < 0:
            self.names[who.name] = client
        self._known[activation] = client
        self.sizes[client] = who.samples
        log(INFO, "client %s is node %s, with %s samples", client, activation.node, who.samples)
        if sum(self._known.get(one) == client for one in self._online) > 1:
            asked = max(one for one in self._online if self._known.get(one) == client)
            text = "client %s is on several connected nodes, or was started again: only node %s is asked"
            log(WARNING, text, client, asked.node)

    def _free(self) -> int:
        taken = {*self.names.values(), *self.sizes}
        return next(number for number in itertools.count() if number not in taken)

    def activation(self, client: int) -> Incarnation | None:
        """Return the latest node that is this client; None if it is not connected."""
        return max((one for one in self._online if self._known.get(one) == client), default=None)

    def present(self) -> list[int]:
        """Return the connected clients."""
        return sorted({self._known[one] for one in self._online if one in self._known})

    def wait(self, enough: Callable[[list[int]], bool], seconds: float, sleep: Callable[[float], Any]) -> bool:
        """Wait until those present are enough; return whether they are."""
        end = time.monotonic() + seconds
        while True:
            self.look()
            if enough(self.present()):
                return True
            if time.monotonic() >= end:
                return False
            sleep(LOOK / 4)


def pulled(grid: Grid, identities: Iterable[str]) -> list[Message]:
    """Return the replies to these messages that have come so far."""
    wanted = list(identities)
    return list(grid.pull_messages(wanted)) if wanted else []
