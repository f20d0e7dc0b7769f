"""One exchange, from both ends.

The server's half (`Rounds`) says who is asked what, counts what that costs, and folds the mean of what it heard. The
client's half (`answer`) turns a question into a reply and a *proposed* state. It commits nothing: whoever gathers the
replies decides when a proposal becomes the client's state, so a lost reply is a proposal that was never taken.

Neither half knows where the other one is. Between them stands a `Gather`: this process, several ranks, or a real
federation.
"""

import math
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kedge.costs import fresh, trace
from kedge.direction import Direction, Vector
from kedge.exchange import Effort, Heard, Local, Needs
from kedge.forming import formed
from kedge.keyed import LOSS, NOISE, draw_minibatches, keyed, sample_cohort
from kedge.local_update import LocalUpdate, seen_through
from kedge.rules import ASKED as ASKED
from kedge.rules import AnyAlgorithm as AnyAlgorithm
from kedge.rules import AnyExchange as AnyExchange
from kedge.rules import Rules as Rules
from kedge.rules import place_of, split_vectors
from kedge.schedules import at
from kedge.settings import Settings
from kedge.transforms import SERVER, wire_size

OPENING = -1
"""The round of the exchanges before the first one."""

FORMS = 64
"""How many forms of exchanges to remember."""


class Question(NamedTuple):
    """What the server sends in one exchange, the same to every client it asks."""

    exchange: AnyExchange
    round: int
    number: int  # of the exchange in its round
    down: Any
    buffers: Tensor  # BatchNorm's statistics, which are not part of the algorithms' vectors
    measured: bool = False  # whether the clients report the loss of their minibatches


class Reply(NamedTuple):
    """What one client answers. Its state is a proposal until whoever gathers accepts it."""

    client: int
    up: Any
    state: Any
    buffers: Tensor
    bytes: int  # sent up
    gradients: float  # minibatch gradients; a pass over n samples counts n / batch_size
    loss: float = 0.0  # the sum of the losses of the minibatches, if the question is measured
    measured: int = 0  # how many they are


# ---- the client's half


class Work(NamedTuple):
    """The local steps of a group of clients in one exchange; vectors are (clients, d)."""

    rule: Direction
    start: Vector
    buffers: Tensor  # the server's
    eta: float
    weight_decay: float
    clients: Sequence[int]
    steps: int
    batches: NDArray[np.int64] | None  # client i, step k: its samples batches[i, k]; None: all of them
    seeds: NDArray[np.int64] | None  # of the dropout masks of client i, step k; None: the model draws nothing
    needs: Needs
    update: LocalUpdate | None = None  # None: plain steps
    measured: bool = False  # whether to return the losses


class Done(NamedTuple):
    """The result of the local steps of a group."""

    local: Local
    buffers: Tensor  # of a group of one
    gradients: int  # how often each client took a gradient
    losses: Sequence[Sequence[float]] = ()  # of each client: the loss at every local model, if measured


class Member(NamedTuple):
    """A client, as its half of an exchange sees it."""

    client: int
    samples: int
    state: Any


def answer(
    rules: Rules, question: Question, needs: Needs, members: Sequence[Member], compute: Callable[[Work], Done]
) -> list[Reply]:
    """Answer for a group of clients of equal effort; ``compute`` runs their local steps. Nothing is committed."""
    exchange, down = question.exchange, question.down
    effort = rules.effort(exchange, members[0].samples)
    own, kept = rules.parted(_stacked([member.state for member in members]))
    rule, start = exchange.direction(down, own), exchange.start(down, own).expand(len(members), -1)
    begin, update = start, rules.update
    if update is not None:
        rule, begin = seen_through(update, rule, kept), update.enter(start, kept)
    clients = [member.client for member in members]
    done = compute(
        Work(
            rule, begin, question.buffers, rules.eta(question),
            at(rules.settings.weight_decay, question.round), clients, effort.steps,
            _batches(rules.settings, question, members, effort),
            _noise(rules.settings, question, clients, effort.steps) if rules.random else None,
            needs, rules.update_in(question), question.measured and effort.minibatches is not None,
        )
    )  # fmt: skip
    local = done.local
    if update is not None:
        local, after = update.leave(start, local, kept)
        kept = {**kept, **after} if rules.trains(exchange) else kept
    up, own = exchange.reply(down, own, local)
    # A row kept as a view would keep its whole group in memory.
    states = [type(row)(*(vector.clone() for vector in row)) for row in _split(rules.joined(own, kept), len(members))]
    ups = _split(up, len(members))
    if rules.settings.reply_transforms and question.number != ASKED:
        pairs = zip(clients, ups, states, strict=True)
        ups, states = map(list, zip(*(rules.transformed(question, begin[0], *each) for each in pairs), strict=True))
    trained = [done.buffers] if effort.steps else []
    return [
        Reply(
            member.client, up, state, done.buffers,
            wire_size([*up, *trained], begin.shape[1], rules.hidden, rules.sparse),
            done.gradients * rules.settings.minibatches(effort, member.samples), sum(losses), len(losses),
        )
        for member, up, state, losses in zip(
            members, ups, states, done.losses or [()] * len(members), strict=True
        )
    ]  # fmt: skip


def _batches(
    settings: Settings, question: Question, members: Sequence[Member], effort: Effort
) -> NDArray[np.int64] | None:
    """Draw the samples of every client and step; None stands for a client's whole data."""
    if settings.batch_size is None or effort.minibatches is None:
        return None
    size = min(settings.batch_size, members[0].samples)  # the same for a group
    drawn = draw_minibatches(
        settings.seed, question.round, question.number, [member.client for member in members],
        samples=[member.samples for member in members],
        counts=[effort.steps * effort.minibatches] * len(members),
        batch_size=size,
    )  # fmt: skip
    return np.stack(drawn).reshape(len(members), effort.steps, effort.minibatches * size)


def _noise(settings: Settings, question: Question, clients: list[int], steps: int) -> NDArray[np.int64]:
    places = ((question.round, question.number, client) for client in clients)
    return np.stack([keyed(settings.seed, NOISE, *place).integers(2**63, size=steps) for place in places])


def _stacked(states: list[Any]) -> Any:
    """Stack the states of a group: vectors (clients, d)."""
    if len(states) == 1:
        return type(states[0])(*(vector.unsqueeze(0) for vector in states[0]))
    return type(states[0])(*(torch.stack(vectors) for vectors in zip(*states, strict=True)))


def _split(values: Any, clients: int) -> list[Any]:
    """Return each client's own part of what a rule made of a group; what is common to all goes to everyone."""
    fields = [value.unbind(0) if value.ndim == 2 else [value] * clients for value in values]
    return [type(values)(*(field[i] for field in fields)) for i in range(clients)]


# ---- what both ends know of an exchange


class Form(NamedTuple):
    """The form of an exchange's reply, and what it reads of the local steps."""

    needs: Needs
    up: type[Any]
    shapes: tuple[torch.Size | None, ...]  # of each field of the reply; None: a vector as large as the model

    @classmethod
    def of(cls, algorithm: AnyAlgorithm, exchange: AnyExchange) -> "Form":
        """Find it by running the rules on a tiny vector: they are elementwise."""
        x, algorithm = torch.zeros(2), algorithm.at(0)
        server, client = algorithm.init_server(x), algorithm.init_client(x)
        traced = trace(algorithm, exchange, server, client, Effort(steps=1), {})
        shapes = (None if value.shape == x.shape else value.shape for value in traced.up)
        return cls(traced.cost.needs, type(traced.up), tuple(shapes))


# ---- the server's half


class Moment(NamedTuple):
    """The complete state of the server at one moment."""

    round: int  # the next one to play
    state: Any  # the algorithm's: a NamedTuple of vectors
    buffers: Tensor
    bytes_down: int = 0
    bytes_up: int = 0
    gradients: float = 0.0
    loss: float = 0.0  # the sum of the losses of the minibatches of the last round, where they were measured
    measured: int = 0  # how many they are

    @property
    def train_loss(self) -> float:
        """The mean loss of the minibatches that the last round trained on; not a number if it was not measured."""
        return self.loss / self.measured if self.measured else math.nan


class Total(NamedTuple):
    """The sum of the replies that were heard, as `Rounds.summands` gives them, and who sent them.

    `Rounds` divides the sum of several replies in place, so nothing else may hold it.
    """

    values: Sequence[Tensor]
    heard: Sequence[int]

    @property
    def replies(self) -> int:
        """Return how many there are."""
        return len(self.heard)


Gather = Callable[[Question, list[int]], Total]
"""gather(question, clients): ask these clients, in rising order, and return the sum of the replies that it heard, at
least one. It commits their proposed states or arranges for it."""


@dataclass(frozen=True)
class Rounds:
    """The server's rules: a moment and the replies of a round give the next moment."""

    algorithm: AnyAlgorithm
    settings: Settings
    sizes: NDArray[np.int64]  # each client's number of samples
    forms: bool = True  # whether a client that hears every round forms itself what follows from earlier messages
    hidden: int = 0  # numbers of every vector that never leave a client
    noise_seed: int | None = None  # of what the reply transforms draw; None: the settings'

    @cached_property
    def _samples(self) -> int:
        return int(self.sizes.sum())

    @cached_property
    def _mean_steps(self) -> float:
        steps = self.settings.steps(self.sizes)
        return int(steps.sum()) / len(steps)

    @cached_property
    def _forms(self) -> dict[AnyExchange, Form]:
        return {}

    @cached_property
    def _formed(self) -> frozenset[tuple[int, str]]:
        """What clients of every round form from the message before; not with lost replies, when rounds differ."""
        everyone = self.forms and self.settings.cohort in (None, len(self.sizes))
        return formed(self.algorithm) if everyone and not self.settings.lost_replies else frozenset()

    def form(self, exchange: AnyExchange) -> Form:
        """Return the form of an exchange's reply."""
        if exchange not in self._forms:
            if len(self._forms) >= FORMS:  # schedules make new exchanges in every round, and so do questions
                self._forms.clear()
            self._forms[exchange] = Form.of(self.algorithm, exchange)
        return self._forms[exchange]

    def begin(self, x: Vector, buffers: Tensor) -> Moment:
        """Return the moment before the first round."""
        return Moment(0, self.algorithm.at(0).init_server(x), buffers)

    def cohort(self, round: int) -> list[int]:
        """Return who takes part in a round, in the order in which they are drawn."""
        everyone = len(self.sizes)
        return sample_cohort(self.settings.seed, round, everyone, self.settings.cohort or everyone)

    def play(self, moment: Moment, gather: Gather, *, measured: bool = False) -> Moment:
        """Play the next round; before the first one, the opening. If gathering fails, ``moment`` is still valid.

        If ``measured``, the new moment has the `train_loss` of the round.
        """
        if moment.round == 0:
            moment = self.open(moment, gather)
        return self.advance(moment, gather, self.cohort(moment.round), measured=measured)

    def open(self, moment: Moment, gather: Gather) -> Moment:
        """Play the exchanges before the first round."""
        return self._played(moment, self.algorithm.at(OPENING).opening(), OPENING, range(len(self.sizes)), gather)

    def advance(self, moment: Moment, gather: Gather, cohort: Sequence[int], *, measured: bool = False) -> Moment:
        """Play the next round with these clients, in the order in which they were drawn."""
        exchanges = self.algorithm.at(moment.round).exchanges(moment.round, self.settings.seed)
        moment = moment._replace(loss=0.0, measured=0)
        moment = self._played(moment, exchanges, moment.round, cohort, gather, measured=measured)
        return moment._replace(round=moment.round + 1)

    def _played(
        self, moment: Moment, exchanges: Sequence[AnyExchange], round: int, sampled: Sequence[int], gather: Gather,
        *, measured: bool = False,
    ) -> Moment:  # fmt: skip
        sent: WeakValueDictionary[str, Tensor] = WeakValueDictionary()
        silent: set[int] = set()  # whose reply was awaited in vain: they have no further part in this round
        for number, exchange in enumerate(exchanges):
            members = range(len(self.sizes)) if exchange.cohort == "everyone" else sampled
            asked = [client for client in members if client not in silent]
            heard = [client for client in asked if not self._is_lost(round, client)]
            if exchange.cohort == "first":
                asked = heard = heard[:1]
            question = self.question(moment, exchange, round, number)._replace(measured=measured)
            size = self._size(question, moment.state.x.numel(), sent)
            moment = moment._replace(bytes_down=moment.bytes_down + len(asked) * size)
            if heard:
                total = gather(question, sorted(heard))
                silent |= set(heard) - set(total.heard)
                question = question._replace(down=None)  # no longer needed, and perhaps as large as the model
                moment = self.fold(moment, question, total)
        return moment

    def _size(self, question: Question, parameters: int, sent: MutableMapping[str, Tensor]) -> int:
        """Return the bytes of a question, of which clients know what was ``sent`` and is still the same object."""
        place, exchange = question.number, question.exchange
        new = fresh(exchange, question.down, sent)
        message = [value for name, value in new.items() if question.round < 1 or (place, name) not in self._formed]
        message += [question.buffers] if exchange.effort(Effort(1)).steps else []
        return wire_size(message, parameters, self.hidden)

    @staticmethod
    def question(moment: Moment, exchange: AnyExchange, round: int, number: int) -> Question:
        """Return what an exchange sends to its clients."""
        return Question(exchange, round, number, exchange.broadcast(moment.state), moment.buffers)

    def _is_lost(self, round: int, client: int) -> bool:
        probability = self.settings.lost_replies
        return probability > 0 and keyed(self.settings.seed, LOSS, round, client=client).random() < probability

    @staticmethod
    def summands(question: Question, reply: Reply, weight: float) -> list[Tensor]:
        """Return what to sum of a reply: the weighted message, the change of the buffers, bytes and gradients."""
        up = [value if weight == 1 else weight * value for value in reply.up]
        # As changes, so that what is constant stays the same to the bit.
        buffers = reply.buffers - question.buffers if reply.buffers.numel() else reply.buffers
        return [*up, buffers, _numbers(reply.bytes, reply.gradients, reply.loss, reply.measured)]

    def layout(self, question: Question, x: Vector) -> list[Tensor]:
        """Return tensors of the shapes, dtypes and device of `summands`, for a model of the form of ``x``."""
        shapes = (x.shape if shape is None else shape for shape in self.form(question.exchange).shapes)
        return [*(x.new_empty(shape) for shape in shapes), question.buffers, _numbers(0, 0, 0, 0)]

    def mean(self, question: Question, total: Total) -> Any:
        """Return the mean reply."""
        *up, _, _ = total.values
        count = total.replies
        parts = (value.div_(count) if count > 1 and value.is_floating_point() else value / count for value in up)
        return self.form(question.exchange).up(*parts)

    def _transformed(self, question: Question, total: Total, x: Vector) -> Any:
        """Return the mean reply as the reply transforms leave it."""
        mean = self.mean(question, total)
        if not self.settings.reply_transforms:
            return mean
        vectors, rest = split_vectors(mean, x)
        place = place_of(question, SERVER, self.settings, self.noise_seed)
        for transform in self.settings.reply_transforms:
            vectors = transform.server(vectors, total.replies, place)
        return type(mean)(**{**rest, **vectors})

    def fold(self, moment: Moment, question: Question, total: Total) -> Moment:
        """Return what the server makes of the mean reply."""
        *_, buffers, (sent, gradients, loss, measured) = total.values
        heard = Heard(total.replies / len(self.sizes), self._mean_steps)
        return moment._replace(
            state=question.exchange.fold(moment.state, self._transformed(question, total, moment.state.x), heard),
            buffers=moment.buffers + buffers / total.replies if buffers.numel() else moment.buffers,
            bytes_up=moment.bytes_up + int(sent),
            gradients=moment.gradients + float(gradients),
            loss=moment.loss + float(loss),
            measured=moment.measured + int(measured),
        )

    def shard(self, client: int) -> int:
        """Return the shard in which a client's reply is summed."""
        return client * self.settings.shards // len(self.sizes)

    def weight(self, exchange: AnyExchange, client: int) -> float:
        """N p_i: its mean over the clients is 1, so a plain mean over a random cohort is unbiased."""
        if self.settings.weights == "uniform" or exchange.cohort == "first":
            return 1.0
        return len(self.sizes) * int(self.sizes[client]) / self._samples


def nbytes(tensors: Iterable[Tensor]) -> int:
    """Return the size of tensors."""
    return sum(tensor.nbytes for tensor in tensors)


def _numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
