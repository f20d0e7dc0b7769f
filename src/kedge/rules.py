"""What a client must know, in addition to a question, to answer it, and what it keeps from round to round.

A client keeps the algorithm's own state and that of the extras: personal layers of a local update, the residual of a
compressed reply. Together they are one NamedTuple of vectors, so that stores and checkpoints need not tell them apart.
"""

from collections import namedtuple
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from kedge.algorithm import Algorithm
from kedge.costs import rate
from kedge.direction import Vector
from kedge.errors import UsageError
from kedge.exchange import Effort, Exchange
from kedge.local_updates import LocalUpdate, in_steps, text
from kedge.probe import check_rules, check_update
from kedge.settings import Settings

if TYPE_CHECKING:
    from kedge.round import Question

AnyExchange = Exchange[Any, Any, Any, Any]
AnyAlgorithm = Algorithm[Any, Any]

ASKED = 1 << 32
"""The number of an exchange asked outside the rounds: it draws minibatches that no exchange of a round draws."""


@dataclass(frozen=True)
class Rules:
    """What a client must know, in addition to a question, to answer it."""

    algorithm: AnyAlgorithm
    settings: Settings
    random: bool = False  # whether the model draws random numbers (dropout)
    update: LocalUpdate | None = None  # bound to the model

    @classmethod
    def of(
        cls, algorithm: AnyAlgorithm, settings: Settings, parameters: Mapping[str, slice], x: Vector, random: bool
    ) -> "Rules":
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
        return cls(algorithm, settings, random, update)

    @property
    def hidden(self) -> int:
        """How many numbers of every vector never leave a client."""
        return 0 if self.update is None else self.update.hidden()

    def initial_state(self, x: Vector) -> Any:
        """Return what a client keeps before it first takes part: the algorithm's state and that of the extras."""
        own = self.algorithm.at(0).init_client(x)
        return own if self.update is None else self.joined(own, self.update.keeps(x))

    @staticmethod
    def joined(own: Any, kept: Mapping[str, Vector]) -> Any:
        """Return the algorithm's part of a client's state and what else it keeps as one."""
        return _kind((*own._fields, *kept))(*own, *kept.values()) if kept else own

    def parted(self, state: Any) -> tuple[Any, dict[str, Vector]]:
        """Return the two parts of what a client keeps."""
        if self.update is None:
            return state, {}
        names = state._fields[len(self._own._fields) :]
        return self._own(*state[: len(self._own._fields)]), {name: getattr(state, name) for name in names}

    @cached_property
    def _own(self) -> Any:
        return type(self.algorithm.at(0).init_client(torch.zeros(2)))

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


def wire_size(message: Iterable[Tensor], parameters: int, hidden: int) -> int:
    """Return the size of a message whose vectors, as large as the model, lack the ``hidden`` numbers."""
    return sum(
        value.nbytes - (hidden * value.element_size() if value.numel() == parameters else 0) for value in message
    )


@lru_cache(maxsize=64)
def _kind(fields: tuple[str, ...]) -> Any:
    """Return the type of what a client keeps."""
    if len(set(fields)) < len(fields):
        twice = next(name for name in fields if fields.count(name) > 1)
        raise UsageError(f"the algorithm's client state has a field {twice!r}, but an extra keeps one of that name")
    return namedtuple("Kept", fields)
