"""What an algorithm costs, found by running its own rules on tensors without data.

Nothing is declared, so nothing can disagree with the code: messages are broadcast and answered, the local steps run
with a gradient function that only counts its calls, and the sizes are read off the result.
"""

from collections.abc import Iterable, MutableMapping, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kedge.algorithm import Algorithm, rate
from kedge.direction import Vector
from kedge.errors import UsageError
from kedge.exchange import Cohort, Effort, Exchange, Heard, Needs, NotKeptError
from kedge.forming import formed
from kedge.local_steps import local_steps


class Size(NamedTuple):
    """The size of a message or a state."""

    vectors: int  # fields as large as the model
    numbers: int  # scalars in total, including those of the vectors

    @classmethod
    def of(cls, fields: Iterable[Any], parameters: int) -> "Size":
        """Measure a NamedTuple of tensors."""
        counts = [field.numel() if isinstance(field, Tensor) else 1 for field in fields]
        return cls(sum(count >= parameters for count in counts), sum(counts))

    def __add__(self, other: Any) -> "Size":
        return Size(self.vectors + other.vectors, self.numbers + other.numbers)


@dataclass(frozen=True)
class ExchangeCost:
    """The cost of one exchange for one client that takes part in it."""

    cohort: Cohort
    down: Size
    up: Size
    gradients: int  # minibatch gradients
    full_passes: int  # gradients of the client's whole data
    needs: Needs


class Trace(NamedTuple):
    """The cost of an exchange, the reply, and the resulting states."""

    cost: ExchangeCost
    up: Any
    server: Any
    client: Any


@dataclass(frozen=True)
class Cost:
    """The cost of an algorithm: per client, exchange by exchange, and its state."""

    opening: tuple[ExchangeCost, ...]
    round: tuple[ExchangeCost, ...]
    server: Size
    client: Size

    def down(self) -> Size:
        """What a round sends to an ordinary client of the cohort."""
        return sum((e.down for e in self.round if e.cohort != "first"), Size(0, 0))

    def up(self) -> Size:
        """What a round receives from an ordinary client of the cohort."""
        return sum((e.up for e in self.round if e.cohort != "first"), Size(0, 0))

    def gradients(self) -> int:
        """Minibatch gradients per round on an ordinary client of the cohort."""
        return sum(e.gradients for e in self.round if e.cohort != "first")

    def full_passes(self) -> int:
        """Gradients of the whole local data per round on an ordinary client of the cohort."""
        return sum(e.full_passes for e in self.round if e.cohort != "first")


def fresh(exchange: Exchange[Any, Any, Any, Any], down: Any, sent: MutableMapping[str, Any]) -> dict[str, Any]:
    """Return the fields of ``down`` that the round has not sent yet, and note them in ``sent``.

    A client keeps the messages of the current round, so a vector that has not been replaced since is not sent twice.
    Only an exchange with everyone may include clients that have not heard anything yet, and what only the first client
    of a cohort hears does not count as sent.
    """
    if exchange.cohort == "everyone":
        sent.clear()
    new = {name: value for name, value in down._asdict().items() if sent.get(name) is not value}
    if exchange.cohort != "first":
        sent.update(new)
    return new


def trace(
    algorithm: Algorithm[Any, Any],
    exchange: Exchange[Any, Any, Any, Any],
    server: Any,
    client: Any,
    base: Effort,
    sent: dict[str, Any],
    known: Set[str] = frozenset(),
) -> Trace:
    """Run one exchange on tensors without data; the parts of the message that clients already know are not sent."""
    down = exchange.broadcast(server)
    effort = exchange.effort(base)
    calls, needs = 0, Needs()

    def count(x: Vector, k: int, second: bool) -> Vector:
        nonlocal calls
        calls += 1
        return x

    rule, start, eta = exchange.direction(down, client), exchange.start(down, client), rate(algorithm, exchange)
    while True:
        calls = 0
        local = local_steps(rule, start, eta, effort.steps, count, needs)
        try:
            up, new = exchange.reply(down, client, local)
            break
        except NotKeptError as missing:
            needs = needs._replace(**{missing.name: True})
    parameters = server.x.numel()
    message = [value for name, value in fresh(exchange, down, sent).items() if name not in known]
    cost = ExchangeCost(
        cohort=exchange.cohort,
        down=Size.of(message, parameters),
        up=Size.of(up, parameters),
        gradients=0 if effort.minibatches is None else calls * effort.minibatches,
        full_passes=calls if effort.minibatches is None else 0,
        needs=needs,
    )
    return Trace(cost, up, exchange.fold(server, up, Heard(share=1.0, local_steps=base.steps)), new)


def cost(
    algorithm: Algorithm[Any, Any],
    parameters: int = 1000,
    local_steps: int = 16,
    round: int = 1,
    seed: int = 0,
    *,
    everyone: bool = False,
) -> Cost:
    """Return what the opening and a round of ``algorithm`` cost for a model of ``parameters`` parameters.

    ``seed`` is the run's seed: it matters to an algorithm whose rounds are drawn at random. If ``everyone`` takes part
    in every round and keeps the last message, what follows from it is not sent again.
    """
    if not isinstance(algorithm, Algorithm):
        raise UsageError(f"algorithm is {algorithm!r}, but must be a kedge.Algorithm such as FedAvg(eta=0.1)")
    algorithm = algorithm.at(round)
    x = torch.empty(parameters, device="meta")
    server, client = algorithm.init_server(x), algorithm.init_client(x)
    base = Effort(steps=local_steps)
    formed_in = formed(algorithm) if everyone and round else frozenset()

    def run(
        exchanges: Iterable[Exchange[Any, Any, Any, Any]], server: Any, client: Any, formed_in: Set[tuple[int, str]]
    ) -> tuple[Any, Any, Any]:
        sent: dict[str, Any] = {}
        costs = []
        for number, exchange in enumerate(exchanges):
            known = {name for place, name in formed_in if place == number}
            traced = trace(algorithm, exchange, server, client, base, sent, known)
            server, client = traced.server, traced.client
            costs.append(traced.cost)
        return tuple(costs), server, client

    opening, server, client = run(algorithm.opening(), server, client, frozenset())
    costs, server, client = run(algorithm.exchanges(round, seed), server, client, formed_in)
    return Cost(
        opening=opening,
        round=costs,
        server=Size.of(server, parameters),
        client=Size.of(client, parameters),
    )
