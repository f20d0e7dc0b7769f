"""How a server gathers replies from the nodes of a federation."""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from logging import WARNING
from typing import Any
from weakref import WeakValueDictionary

from flwr.app import Message, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from torch import Tensor

from kedge.errors import UsageError
from kedge.exchange import Effort
from kedge.flower.agreement import Agreement
from kedge.flower.arrays import Spec
from kedge.flower.fleet import Fleet, Incarnation, pulled
from kedge.flower.versions import FRESH
from kedge.flower.wire import Asked, Layouts, Told, about, pack, payload, plain, refusal, unpack, unpack_buffers
from kedge.round import OPENING, Question, Reply, Rounds, Total
from kedge.rules import keeps_state
from kedge.shards import Sums
from kedge.transforms import is_sparse, wire_size

POLL = 0.1
"""Seconds between looks for replies."""

GRACE = 120.0
"""Seconds beyond the deadline for which a reply stays at the SuperLink: those that came in time are then read."""

ENOUGH = 4
"""The fewest replies among which an outlier can be told."""


class TooFewError(RuntimeError):
    """An exchange without enough replies: the round is to be played again from its start."""


@dataclass
class Counted:
    """Which version of its state each client has, as the server counts them."""

    now: dict[int, str] = field(default_factory=dict)
    kept: dict[int, str] = field(default_factory=dict)
    """As the last checkpoint has them."""

    def settle(self) -> None:
        """The present ones are on disk."""
        self.kept = dict(self.now)

    def roll_back(self) -> None:
        """Return to those of the checkpoint."""
        self.now = dict(self.kept)


class Gatherer:
    """Asks clients through a Grid. A reply counts as soon as the server has folded it; no client is told so."""

    def __init__(
        self, grid: Grid, fleet: Fleet, agreed: Agreement, rounds: Callable[[], Rounds], x: Spec, experiment: str,
        epoch: int, versions: Counted, sleep: Callable[[float], Any] = time.sleep,
    ) -> None:  # fmt: skip
        self.fleet, self.versions = fleet, versions
        self.silent: set[int] = set()
        """Whose replies the last exchange has not heard."""
        self.metrics: list[Told] = []
        """What the clients of this round found on their own test data."""
        self.sent = 0
        self.received = 0
        """Bytes of vectors, as they travelled."""
        self._grid, self._agreed, self._rounds, self._sleep = grid, agreed, rounds, sleep
        self._experiment, self._epoch = experiment, epoch
        self._questions = 0
        self.attempt = ""
        """The tag of this attempt at a round."""
        self._evaluate = False
        self._told: dict[int, WeakValueDictionary[str, Tensor]] = {}
        self._heard: set[int] = set()
        self._stateful = keeps_state(agreed.algorithm, agreed.settings)
        algorithm = agreed.algorithm
        self._layouts = lru_cache(64)(lambda exchange: Layouts.of(algorithm, exchange, x))

    def begin(self, *, evaluate: bool = False) -> None:
        """Begin an attempt at a round."""
        self.metrics, self._told, self._heard, self._evaluate = [], {}, set(), evaluate
        self.attempt = self._tag()

    def _tag(self) -> str:
        self._questions += 1
        return f"{self._epoch:06d}-{self._questions:010d}"

    def __call__(self, question: Question, clients: list[int]) -> Total:
        """Return the sum of the valid replies that came in time."""
        tag, rounds = self._tag(), self._rounds()
        sums, heard = Sums([(0, rounds.settings.shards)]), list[int]()
        for reply in self._accepted(question, clients, tag):
            weight = rounds.weight(question.exchange, reply.client)
            sums.add(rounds.shard(reply.client), rounds.summands(question, reply, weight))
            heard.append(reply.client)
            del reply  # before the next one is read
        self.silent = set(clients).difference(heard)
        full, asked = self._agreed.algorithm.full_participation, len(clients)
        least = asked if full else min(self._agreed.flower.min_replies, asked)
        if len(heard) < least:
            raise TooFewError(f"{len(heard)} of {asked} clients replied, but {least} must")
        if self._stateful:
            # Its state would keep half a round: the others' must not count this half.
            if lost := self._heard & self.silent:
                raise TooFewError(f"clients {sorted(lost)} stopped replying in the middle of the round")
            self._heard.update(heard)
            self.versions.now |= dict.fromkeys(heard, tag)
        (values,) = sums.finished().values()
        return Total(values, heard)

    # ---- asking

    def _accepted(self, question: Question, clients: list[int], tag: str) -> Iterator[Reply]:
        """Return the replies that are fit to be summed, in the order of the clients."""
        enough = self._enough(question, clients)
        if enough == len(clients) and self._agreed.flower.z_score is None:
            yield from self._collected(question, clients, tag, enough, ordered=True)
        else:
            found = {reply.client: reply for reply in self._collected(question, clients, tag, enough, ordered=False)}
            yield from (reply for _, reply in sorted(self._plausible(found).items()))

    def _collected(
        self, question: Question, clients: list[int], tag: str, enough: int, *, ordered: bool
    ) -> Iterator[Reply]:
        """Ask, ask again the nodes that were restarted meanwhile, and return the valid replies.

        If ``ordered``, they come in the order of the clients, and a reply stays where it is until it is its turn, so
        that few are in memory at once. Only a client that is not connected is not waited for: the replies of those
        after it are kept here.
        """
        end = time.monotonic() + self._agreed.flower.deadline
        news = self._news(question, clients)
        owed, waiting, sent = set(clients), dict[str, int](), set[tuple[int, Incarnation]]()
        kept: dict[int, Reply] = {}
        count = 0
        while owed and count < enough:
            late = time.monotonic() >= end
            if not late:
                self.fleet.look()
                waiting |= self._send(question, news, owed, tag, sent, end)
            for reply in self._pulled(question, tag, owed, waiting, ordered=ordered, late=late):
                count += 1
                kept[reply.client] = reply
                del reply  # nothing here may keep it once it is summed
                while ordered and kept and min(kept) < min(owed, default=math.inf):
                    yield kept.pop(min(kept))
            if late or (not waiting and not any(self.fleet.activation(client) for client in owed)):
                break  # it is too late, or whoever still owes a reply is not connected
            if owed and count < enough:
                self._sleep(POLL)
        if owed and count < enough:
            log(WARNING, "round %s: no reply of clients %s", question.round, sorted(owed))
        while kept:
            yield kept.pop(min(kept))

    def _pulled(
        self, question: Question, tag: str, owed: set[int], waiting: dict[str, int], *, ordered: bool, late: bool
    ) -> Iterator[Reply]:
        """Take the replies that have come; if ``ordered`` and not ``late``, up to the first client without one."""
        for turn in [{client} for client in sorted(owed & set(waiting.values()))] if ordered else [set(owed)]:
            messages = pulled(self._grid, [name for name, client in waiting.items() if client in turn])
            while messages:
                message = messages.pop(0)
                client = waiting.pop(message.metadata.reply_to_message_id)  # an error may come from another node
                if client not in owed or (message.has_error() and client in waiting.values()):
                    continue
                owed.discard(client)
                try:
                    reply = self._reply(message, question, client, tag)
                except UsageError as error:
                    text = "round %s: the reply of client %s is dropped: %s"
                    log(WARNING, text, question.round, client, plain(error))
                    continue
                yield reply
                del reply
            if ordered and not late and turn & owed:
                break
        for name in [name for name, client in waiting.items() if client not in owed]:
            del waiting[name]

    def _enough(self, question: Question, clients: list[int]) -> int:
        """Return how many replies end the waiting: with over-sampling, as many as the cohort has."""
        if question.round == OPENING or question.exchange.cohort != "sampled" or not self._agreed.flower.oversample:
            return len(clients)
        return min(len(clients), self._agreed.settings.cohort or self._agreed.clients)

    def _news(self, question: Question, clients: list[int]) -> dict[int, tuple[str, ...]]:
        """Return which vectors to send to each client: those that the round has not told it yet."""
        fields, news = question.down._asdict(), {}
        if question.exchange.cohort == "everyone":
            self._told.clear()
        for client in clients:
            told = self._told.setdefault(client, WeakValueDictionary())
            news[client] = tuple(name for name, value in fields.items() if told.get(name) is not value)
            told.update(fields)
        return news

    def _send(
        self, question: Question, news: Mapping[int, tuple[str, ...]], owed: set[int], tag: str,
        sent: set[tuple[int, Incarnation]], end: float,
    ) -> dict[str, int]:  # fmt: skip
        """Send to every node that owes a reply and was not asked yet; return the messages' names."""
        found = ((client, self.fleet.activation(client)) for client in sorted(owed))
        due = [(client, one) for client, one in found if one is not None and (client, one) not in sent]
        if not due:
            return {}
        sent.update(due)
        exchange, fields = question.exchange, question.down._asdict()
        buffers = question.buffers if exchange.effort(Effort(1)).steps else None
        ttl = max(1.0, end - time.monotonic()) + GRACE
        vectors: dict[tuple[str, ...], RecordDict] = {}  # the same object for all who get the same
        out = []
        for client, one in due:
            asked = Asked(
                rules=self._agreed.rules, experiment=self._experiment, client=client, round=question.round,
                exchange=question.number, tag=tag, base=self.versions.now.get(client, FRESH),
                keep=self.versions.kept.get(client, FRESH), attempt=self.attempt,
                evaluate=self._evaluate and question.number == 0,
            )  # fmt: skip
            new = news[client]
            if new not in vectors:
                vectors[new] = pack(asked, {name: fields[name] for name in new}, buffers)
            content = RecordDict({**vectors[new], **pack(asked, {})})
            self.sent += payload(content)
            out.append(Message(content, one.node, "train", ttl=ttl))
        return dict(zip(self._grid.push_messages(out), (client for client, _ in due), strict=True))

    # ---- reading

    def _reply(self, message: Message, question: Question, client: int, tag: str) -> Reply:
        """Return a reply if it is valid."""
        if message.has_error():
            raise UsageError(f"{message.error.reason or 'no reason'} (code {message.error.code})")
        content, exchange = message.content, question.exchange
        if (reason := refusal(content)) is not None:
            raise UsageError(reason)
        told = about(content, Told)
        if (told.client, told.tag) != (client, tag):
            raise UsageError("it answers another question")
        transforms, size = self._agreed.settings.reply_transforms or (), payload(content)
        sparse = is_sparse(transforms)
        most = partial(transforms[-1].most, round=question.round) if sparse else None
        up = self._rounds().form(exchange).up(**unpack(content, self._layouts(exchange).up, most=most))
        trained = bool(exchange.effort(Effort(1)).steps)
        like = question.buffers if trained else question.buffers[:0]
        buffers = unpack_buffers(content, like, sparse=sparse) if trained else question.buffers
        self.received += size
        if told.test_samples:
            self.metrics.append(told)
        declared = wire_size([*up, *([buffers] if trained else [])], 0, 0, sparse)
        return Reply(client, up, None, buffers, declared, told.gradients)

    def _plausible(self, replies: dict[int, Reply]) -> dict[int, Reply]:
        """Leave out replies with an absurd norm, if that is asked for."""
        most = self._agreed.flower.z_score
        if most is None or len(replies) < ENOUGH:
            return replies
        norms = {client: sum(float(v.double().square().sum()) for v in r.up) ** 0.5 for client, r in replies.items()}
        middle = statistics.median(norms.values())
        spread = 1.4826 * statistics.median(abs(norm - middle) for norm in norms.values()) + 1e-3 * middle
        for client, norm in norms.items():
            if norm - middle > most * spread:
                log(WARNING, "the reply of client %s is dropped: its norm is %g, the median %g", client, norm, middle)
        return {client: reply for client, reply in replies.items() if norms[client] - middle <= most * spread}
