"""What need not be sent to clients that take part in every round, because they can form it from earlier messages.

With x^{r+1} = x^r - γ g^{r+1}, a client that keeps the message of the last round has g^{r+1} = (x^r - x^{r+1}) / γ as
soon as it hears x^{r+1}. As with all costs, this is not declared but found by running an algorithm's rules: they are
played on a few clients with random quadratics and weights, and a vector counts as formed if it is the same linear
combination of x and the previous round's vectors in every round. With schedules, which the clients know, the
combination may differ from round to round.
"""

import dataclasses
import itertools
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kedge.algorithm import Algorithm, rate
from kedge.direction import Vector
from kedge.exchange import Effort, Heard, Needs
from kedge.local_steps import local_steps

CLIENTS, SIZE, STEPS, ROUNDS = 3, 48, 2, 5
CHANGE = 0.04
"""By which part of its first value a scheduled hyper-parameter falls from one of these rounds to the next."""
EXACT = 1e-9
"""A residual, relative to the vector, that is nothing but rounding."""

Received = dict[tuple[int, str], Tensor]
"""The vectors that a client hears in a round, by exchange and field."""

_RATES = {"eta": 0.1, "gamma": 0.2}  # they do not affect which vectors are formed, but they do affect overflow


@lru_cache(maxsize=256)
def formed(algorithm: Algorithm[Any, Any]) -> frozenset[tuple[int, str]]:
    """Return what such clients form themselves: the exchange of the round and the field of its message."""
    heard = _heard(algorithm)
    if len({tuple(round) for round in heard}) > 1:
        return frozenset()  # the rounds differ
    pairs = list(itertools.pairwise(heard))
    parts = [[pair] for pair in pairs] if algorithm.scheduled else [pairs]
    return frozenset(place for place in heard[0] if place[1] != "x" and all(_is_formed(place, part) for part in parts))


def _is_formed(place: tuple[int, str], pairs: list[tuple[Received, Received]]) -> bool:
    number, _ = place
    if (number, "x") not in pairs[0][0]:
        return False
    known = torch.cat([torch.stack([now[number, "x"], *before.values()], dim=1) for before, now in pairs])
    wanted = torch.cat([now[place] for _, now in pairs])
    residual = wanted - known @ torch.linalg.lstsq(known, wanted[:, None], driver="gelsd").solution[:, 0]
    return bool(wanted.norm() > 0) and float(residual.norm() / wanted.norm()) < EXACT


class _Client(NamedTuple):
    hessian: Tensor
    noise: Tensor  # one column per local step
    weight: float


def _heard(algorithm: Algorithm[Any, Any]) -> list[Received]:
    """Return the vectors that every client hears, round by round, except in the first, which may differ."""
    given = {field.name for field in dataclasses.fields(algorithm) if getattr(algorithm, field.name) is not None}
    scheduled = frozenset(algorithm.scheduled)
    rates = {name: value for name, value in _RATES.items() if name in given}
    algorithm = dataclasses.replace(algorithm.at(0), **rates)
    random = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=random)

    clients = [_Client(draw(SIZE), draw(SIZE, STEPS), 0.5 + 0.5 * number) for number in range(CLIENTS)]
    x = draw(SIZE)
    server, own = algorithm.init_server(x), [algorithm.init_client(x) for _ in clients]
    heard: list[Received] = []
    for number in range(-1, ROUNDS):
        messages: Received = {}
        # What a schedule changes is different in every round here, even if the schedule changes it only later.
        changed = {name: getattr(algorithm, name) * (1 - CHANGE * max(number, 0)) for name in scheduled}
        now = dataclasses.replace(algorithm, **changed)
        for place, exchange in enumerate(now.opening() if number < 0 else now.exchanges(number, 0)):
            down = exchange.broadcast(server)
            if exchange.cohort != "first":
                fields = down._asdict().items()
                messages |= {(place, name): value for name, value in fields if value.numel() == SIZE}
            asked = [0] if exchange.cohort == "first" else range(CLIENTS)
            steps, eta = exchange.effort(Effort(STEPS)).steps, rate(now, exchange)
            replies = []
            for i in asked:
                rule, start = exchange.direction(down, own[i]), exchange.start(down, own[i])
                local = local_steps(rule, start, eta, steps, _gradient(clients[i], number), Needs(True, True))
                reply, own[i] = exchange.reply(down, own[i], local)
                weight = 1.0 if exchange.cohort == "first" else clients[i].weight
                replies.append([weight * field for field in reply])
            mean = type(reply)(*(sum(fields) / len(replies) for fields in zip(*replies, strict=True)))
            server = exchange.fold(server, mean, Heard(share=1.0, local_steps=STEPS))
        if number > 0:
            heard.append(messages)
    return heard


def _gradient(client: _Client, round: int) -> Any:
    def gradient(x: Vector, k: int, second: bool) -> Vector:
        return client.hessian * x + client.noise[:, k % STEPS].roll(round + 1)

    return gradient
