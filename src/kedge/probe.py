"""Rules are checked before a run: what two clients compute together must be what each computes alone.

A simulator stacks clients as (S, d), and how many depends on the number of threads. A rule that is not elementwise,
such as one with a norm over the whole stack, would depend on it too, unnoticed.
"""

from functools import lru_cache
from typing import Any

import torch

from kedge.algorithm import Algorithm, rate
from kedge.direction import Vector
from kedge.errors import UsageError
from kedge.exchange import Effort, Exchange, Heard, Local, Needs
from kedge.local_steps import Gradient, local_steps
from kedge.local_update import LocalUpdate, Step

SIZE, STEPS, ROUNDS, EXACT = 3, 2, 2, 1e-9
CLIENTS = (slice(0, 1), slice(1, 2))


def _refusal(what: str) -> UsageError:
    return UsageError(
        f"{what} gives two clients together a different result than each alone, but must be elementwise in the rows of "
        "(clients, d); a norm, for example, is kedge.norms(vector) or vector.norm(dim=-1, keepdim=True)"
    )


@lru_cache(maxsize=256)
def check_rules(algorithm: Algorithm[Any, Any]) -> None:
    """Refuse an algorithm one of whose rules is not elementwise."""
    algorithm, source = algorithm.at(0), torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Vector:
        return torch.randn(*shape, dtype=torch.float64, generator=source)

    x, curvature, noise = draw(SIZE), draw(2, SIZE).square(), draw(2, SIZE)
    server, states = algorithm.init_server(x), [algorithm.init_client(x) for _ in CLIENTS]
    rounds = (algorithm.exchanges(round, 0) for round in range(ROUNDS))
    for exchange in (*algorithm.opening(), *(exchange for round in rounds for exchange in round)):
        play = _Player(algorithm, exchange, exchange.broadcast(server))
        together = type(states[0])(*(torch.stack(rows) for rows in zip(*states, strict=True)))
        whole = play.steps(together, 2, lambda point, k, _: curvature * point + noise)
        parts = [
            play.steps(
                _row(together, some),
                1,
                lambda point, k, _, some=some: curvature[some] * point + noise[some],  # type: ignore[misc]
            )
            for some in CLIENTS
        ]
        if not _alike(whole, parts):
            raise _refusal(f"the rule direction of {type(algorithm).__name__}")
        up, new = play.reply(together, whole)
        replies = [play.reply(_row(together, some), part) for some, part in zip(CLIENTS, parts, strict=True)]
        if not all(_same([*up, *new], [*one, *own], some) for some, (one, own) in zip(CLIENTS, replies, strict=True)):
            raise _refusal(f"the rule reply of {type(algorithm).__name__}")
        states = [type(new)(*(_of(value, some).squeeze(0) for value in new)) for some in CLIENTS]
        mean = type(up)(*(value.mean(0) if value.ndim > 1 else value for value in up))
        server = exchange.fold(server, mean, Heard(share=1.0, local_steps=STEPS))


class _Player:
    """Plays one exchange."""

    def __init__(self, algorithm: Algorithm[Any, Any], exchange: Exchange[Any, Any, Any, Any], down: Any) -> None:
        self._exchange, self._down = exchange, down
        self._eta = rate(algorithm, exchange)

    def steps(self, own: Any, clients: int, gradient: Gradient) -> Local:
        rule, start = self._exchange.direction(self._down, own), self._exchange.start(self._down, own)
        steps = self._exchange.effort(Effort(STEPS)).steps
        return local_steps(rule, start.expand(clients, -1), self._eta, steps, gradient, Needs(True, True))

    def reply(self, own: Any, local: Local) -> tuple[Any, Any]:
        return self._exchange.reply(self._down, own, local)


def _row(values: Any, some: slice) -> Any:
    return type(values)(*(value[some] for value in values))


def _of(value: Vector, some: slice) -> Vector:
    """Return a client's part of what a group computed; what is common to all is everyone's."""
    return value[some] if value.ndim > 1 else value


def _alike(whole: Local, parts: list[Local]) -> bool:
    return all(_same([whole.x], [part.x], some) for some, part in zip(CLIENTS, parts, strict=True))


def _same(together: list[Vector], alone: list[Vector], some: slice) -> bool:
    for many, one in zip(together, alone, strict=True):
        mine = _of(many, some)
        if mine.shape != one.shape or not torch.allclose(mine, one, rtol=EXACT, atol=EXACT, equal_nan=True):
            return False
    return True


def check_update(update: LocalUpdate, x: Vector) -> None:
    """Refuse a local update whose gradient or step is not that of each client alone; ``x`` is the model."""
    source = torch.Generator().manual_seed(0)
    rows = torch.stack([x.detach().cpu().double()] * 2)
    rows = rows + torch.randn(rows.shape, dtype=torch.float64, generator=source)
    noise = torch.randn(rows.shape, dtype=torch.float64, generator=source)
    name = type(update).__name__

    def play(some: slice) -> tuple[Vector, Vector]:
        point, moved, memory = rows[some], rows[some], update.begin(rows[some])
        gradient = update.gradient(point, lambda at: 0.5 * at + noise[some])
        for k in range(STEPS):
            moved, memory = update.step(gradient, memory, Step(point, k, 0.1, [0] * len(point)))
        return gradient, moved

    whole = play(slice(0, 2))
    for some in CLIENTS:
        for together, alone in zip(whole, play(some), strict=True):
            if not torch.allclose(together[some], alone, rtol=EXACT, atol=EXACT, equal_nan=True):
                raise _refusal(name)
