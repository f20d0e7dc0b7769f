"""What a client must know, in addition to a question, to answer it, and what it keeps from round to round.

A client keeps the algorithm's own state and that of the extras: personal layers of a local update, the residual of a
compressed reply. Together they are one NamedTuple of vectors, so that stores and checkpoints need not tell them apart.
"""

from collections import namedtuple
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from kedge.algorithm import Algorithm, rate
from kedge.costs import trace
from kedge.direction import Vector
from kedge.errors import UsageError
from kedge.exchange import Effort, Exchange
from kedge.local_update import Chain, LocalUpdate, in_steps, text
from kedge.probe import check_rules, check_update
from kedge.settings import Settings
from kedge.transforms import Place, Privacy, ReplyTransform, is_sparse, named

if TYPE_CHECKING:
    from kedge.round import Question

AnyExchange = Exchange[Any, Any, Any, Any]
AnyAlgorithm = Algorithm[Any, Any]

PERSONAL = "with personal layers no client has the server's model"

ASKED = 1 << 32
"""The number of an exchange asked outside the rounds: it draws minibatches that no exchange of a round draws."""


@dataclass(frozen=True)
class Rules:
    """What a client must know, in addition to a question, to answer it."""

    algorithm: AnyAlgorithm
    settings: Settings
    random: bool = False  # whether the model draws random numbers (dropout)
    update: LocalUpdate | None = None  # bound to the model
    noise_seed: int | None = None  # of what transforms draw; None: the federation's

    @classmethod
    def of(
        cls, algorithm: AnyAlgorithm, settings: Settings, parameters: Mapping[str, slice], x: Vector, random: bool,
        *, statistics: bool = False, noise_seed: int | None = None,
    ) -> "Rules":  # fmt: skip
        """Return the rules for a model ``x`` whose ``parameters`` have these places; refuse what is not defined."""
        check_rules(algorithm)
        update, name = settings.local_update, type(algorithm).__name__
        if update is not None and update.solver and not algorithm.any_solver:
            raise UsageError(
                f"local_update is {text(update)}, which moves the model along something else than {name}'s direction, "
                "but its rules take the mean of the local steps for a mean gradient; use an algorithm that uses "
                "only where the steps ended, such as FedAvg, FedProx, FedDyn or FedAdam"
            )
        if update is not None:
            update = update.bound(parameters)
            if (steps := in_steps(update, query=False)) is not None:
                check_update(steps, x)
        transforms = settings.reply_transforms or ()
        if any(isinstance(each, Privacy) for each in transforms[:-1]):
            raise UsageError("Privacy must be the last of the reply transforms: what follows would undo its clipping")
        for transform in transforms:
            transform.check(settings.weights, statistics)
        private, unequal = any(isinstance(each, Privacy) for each in transforms), settings.local_epochs is not None
        if private and (bare := _bare_field(algorithm, settings.seed, unequal=unequal)) is not None:
            raise UsageError(
                f"Privacy covers only vectors like the model, but {name}'s replies also have the field {bare}, "
                "which depends on the client's data" + " with local_epochs" * unequal
            )
        return cls(algorithm, settings, random, update, noise_seed)

    @property
    def hidden(self) -> int:
        """How many numbers of every vector never leave a client."""
        return 0 if self.update is None else self.update.hidden()

    def entered(self, x: Vector, state: Mapping[str, Vector]) -> Vector:
        """Return the server's ``x`` as a client with this state sees it, with its personal layers."""
        rows = {name: vector.unsqueeze(0) for name, vector in state.items()}
        return x if self.update is None else self.update.enter(x, rows).view(-1)

    def initial_state(self, x: Vector) -> Any:
        """Return what a client keeps before it first takes part: the algorithm's state and that of the extras."""
        own, kept = self.algorithm.at(0).init_client(x), {} if self.update is None else self.update.keeps(x)
        for transform in self.settings.reply_transforms or ():
            kept |= transform.keeps(x, sent_fields(self.algorithm, self.settings.seed))
        return self.joined(own, kept)

    @staticmethod
    def joined(own: Any, kept: Mapping[str, Vector]) -> Any:
        """Return the algorithm's part of a client's state and what else it keeps as one."""
        return _kind((*own._fields, *kept))(*own, *kept.values()) if kept else own

    def parted(self, state: Any) -> tuple[Any, dict[str, Vector]]:
        """Return the two parts of what a client keeps."""
        if self.update is None and not self.settings.reply_transforms:
            return state, {}
        names = state._fields[len(self._own._fields) :]
        return self._own(*state[: len(self._own._fields)]), {name: getattr(state, name) for name in names}

    @cached_property
    def _own(self) -> Any:
        return type(self.algorithm.at(0).init_client(torch.zeros(2)))

    def transformed(self, question: "Question", x: Vector, client: int, up: Any, state: Any) -> tuple[Any, Any]:
        """Return one client's reply as it is sent, and its proposed state with what the transforms keep.

        The reply's vectors have the form of ``x``.
        """
        own, mine = self.parted(state)
        kept: Mapping[str, Vector] = mine
        place = place_of(question, client, self.settings, self.noise_seed)
        vectors, rest = split_vectors(up, x)
        for transform in self.settings.reply_transforms or ():
            vectors, kept = transform.client(vectors, kept, place)
        return type(up)(**{**rest, **vectors}), self.joined(own, kept)

    @property
    def sparse(self) -> bool:
        """Whether replies are mostly zeros."""
        return is_sparse(self.settings.reply_transforms)

    @staticmethod
    def trains(exchange: AnyExchange) -> bool:
        """Whether an exchange is local training: what it does depends on K. Otherwise it is a query."""
        return exchange.effort(Effort(1)).steps != exchange.effort(Effort(2)).steps

    def update_in(self, question: "Question") -> LocalUpdate | None:
        """Return what changes the local steps of an exchange; nothing does if it was asked outside the rounds."""
        if self.update is None or question.number == ASKED:
            return None
        return in_steps(self.update, query=not self.trains(question.exchange))

    def eta(self, question: "Question") -> float:
        """Return the local rate of an exchange, in its round."""
        return rate(self.algorithm.at(question.round), question.exchange)

    def effort(self, exchange: AnyExchange, samples: int) -> Effort:
        """Return what a client with this many samples computes."""
        return exchange.effort(Effort(int(self.settings.steps(np.array([samples]))[0])))


ROUNDS = 1000
"""The first rounds, in which all vectors that are ever sent up should occur."""


def keeps_state(algorithm: AnyAlgorithm, settings: Settings) -> bool:
    """Whether clients keep anything from round to round: the algorithm's state, or that of an extra."""
    update = settings.local_update
    updates = update.updates if isinstance(update, Chain) else (update,)
    extras = any(one is not None and type(one).keeps is not LocalUpdate.keeps for one in updates)
    extras = extras or any(type(one).keeps is not ReplyTransform.keeps for one in settings.reply_transforms or ())
    return extras or len(algorithm.at(0).init_client(torch.zeros(2))) > 0


@lru_cache(maxsize=64)
def sent_fields(algorithm: AnyAlgorithm, seed: int) -> tuple[str, ...]:
    """Return the names of the vectors that an algorithm's rounds send up."""
    found: dict[str, None] = {}
    for exchange, now in _first_exchanges(algorithm, seed).items():
        tiny = torch.zeros(2)
        vectors, _ = split_vectors(_reply(now, exchange, tiny, 1), tiny)
        found |= dict.fromkeys(named(type(exchange).__name__, name) for name in vectors)
    return tuple(found)


@lru_cache(maxsize=64)
def _bare_field(algorithm: AnyAlgorithm, seed: int, *, unequal: bool) -> str | None:
    """Return a field of a reply that no transform changes and that depends on the client's data; None if none does.

    ``unequal``: so does the number of its local steps.
    """
    before = algorithm.at(-1)
    for exchange, now in (dict.fromkeys(before.opening(), before) | _first_exchanges(algorithm, seed)).items():
        one, other = torch.zeros(2), torch.ones(2)
        _, bare = split_vectors(_reply(now, exchange, one, 1), one)
        _, changed = split_vectors(_reply(now, exchange, other, 2 if unequal else 1), other)
        for name, value in bare.items():
            if not torch.equal(value, changed[name]):
                return name
    return None


def _first_exchanges(algorithm: AnyAlgorithm, seed: int) -> dict[AnyExchange, AnyAlgorithm]:
    """Return the different exchanges of the first rounds, each with the algorithm of its round."""
    found: dict[AnyExchange, AnyAlgorithm] = {}
    for round in range(ROUNDS):
        now = algorithm.at(round)
        for exchange in now.exchanges(round, seed):
            found.setdefault(exchange, now)
    return found


def _reply(algorithm: AnyAlgorithm, exchange: AnyExchange, x: Vector, steps: int) -> Any:
    """Return the reply to an exchange, where the gradient at any model is the model itself."""
    server, client = algorithm.init_server(x), algorithm.init_client(x)
    return trace(algorithm, exchange, server, client, Effort(steps), {}).up


def place_of(question: "Question", client: int, settings: Settings, noise_seed: int | None) -> Place:
    """Return where a reply is sent."""
    seed = settings.seed if noise_seed is None else noise_seed
    return Place(seed, question.round, question.number, type(question.exchange).__name__, client)


def split_vectors(up: Any, x: Vector) -> tuple[Mapping[str, Vector], dict[str, Tensor]]:
    """Return the vectors of a reply, which have the form of ``x``, and its other fields, such as a number of steps."""
    fields = up._asdict()
    vectors = {name: value for name, value in fields.items() if value.shape == x.shape}
    return vectors, {name: value for name, value in fields.items() if name not in vectors}


@lru_cache(maxsize=64)
def _kind(fields: tuple[str, ...]) -> Any:
    """Return the type of what a client keeps."""
    if len(set(fields)) < len(fields):
        twice = next(name for name in fields if fields.count(name) > 1)
        raise UsageError(f"the algorithm's client state has a field {twice!r}, but an extra keeps one of that name")
    return namedtuple("Kept", fields)
