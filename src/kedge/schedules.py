"""Hyper-parameters that change from round to round. Importing them does not load torch.

    kedge.ScaffoldM(eta=kedge.schedules.cosine(0.1, 0.001, rounds=100), beta=0.2)
    kedge.FedAvg(eta=lambda round: 0.1 / (1 + round))

`Algorithm.at(round)` is the algorithm of one round, in which every schedule is a number: rules and engines never see a
schedule. A configuration and the command line write the same text, which is read and never run.
"""

import math
from collections.abc import Callable
from typing import Any

from kedge.calls import number, parsed
from kedge.checks import is_finite, real, whole
from kedge.errors import UsageError, shown


class Schedule:
    """A number for every round 0, 1, ...; its text is how a configuration writes it."""

    def __init__(self, text: str, value: Callable[[int], float], reaches: tuple[float, ...] = ()) -> None:
        self.text, self.value, self.reaches = text, value, reaches

    def __call__(self, round: int) -> float:
        """Return the value of a round; the exchanges before the first one (round -1) have that of round 0."""
        try:
            value = self.value(max(round, 0))
        except OverflowError:
            value = math.inf
        if not is_finite(value):
            raise UsageError(
                f"the schedule {self.text} is {shown(value)} in round {round}, but must be a finite number"
            )
        return float(value)

    @property
    def function(self) -> Callable[[int], float] | None:
        """The user's own function, if it is one."""
        return None if parsed(self.text) else self.value

    def _key(self) -> object:
        return self.function or self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return self.text

    def __format__(self, spec: str) -> str:
        return self.text

    def __reduce__(self) -> Any:
        return (read, (self.function or self.text,))


def constant(value: float) -> Any:
    """Return the schedule that is always ``value``."""
    value = _number("value", value)
    return Schedule(f"constant({number(value)})", lambda _: value, (value,))


def step(start: float, factor: float, *, every: int) -> Any:
    """Return ``start``, multiplied by ``factor`` after every ``every`` rounds."""
    start, factor, every = _number("start", start), real("factor", factor, positive=True), whole("every", every, 1)
    text = f"step({number(start)}, {number(factor)}, every={every})"
    return Schedule(text, lambda round: start * factor ** (round // every), (start,))


def cosine(start: float, end: float, *, rounds: int) -> Any:
    """Return half a cosine wave from ``start`` in round 0 to ``end`` in round ``rounds`` and after it."""
    start, end, rounds = _number("start", start), _number("end", end), whole("rounds", rounds, 1)
    text = f"cosine({number(start)}, {number(end)}, rounds={rounds})"

    def value(round: int) -> float:
        return end + (start - end) * (1 + math.cos(math.pi * min(round, rounds) / rounds)) / 2

    return Schedule(text, value, (start, end))


def warmup(to: Any, *, rounds: int) -> Any:
    """Return ``to``, a number or a schedule, times 1/``rounds``, 2/``rounds``, ... in the first rounds."""
    after, rounds = read(to) if not is_finite(to) else constant(to), whole("rounds", rounds, 1)
    text = f"warmup({number(to) if is_finite(to) else after.text}, rounds={rounds})"
    if after.function is not None:
        raise UsageError("warmup takes a number or a schedule of kedge.schedules, but was given a function")
    return Schedule(text, lambda round: after(round) * min(1.0, (round + 1) / rounds), after.reaches)


KINDS: dict[str, Callable[..., Any]] = {"constant": constant, "step": step, "cosine": cosine, "warmup": warmup}
"""The schedules that a text may name."""


def _number(name: str, value: Any) -> float:
    if not is_finite(value) or isinstance(value, bool):
        raise UsageError(f"{name} of a schedule is {shown(value)}, but must be a finite number")
    return float(value)


def is_schedule(value: Any) -> bool:
    """Whether a value stands for a schedule: one of these, a function, or the text of one."""
    return isinstance(value, Schedule) or callable(value) or (isinstance(value, str) and parsed(value) is not None)


def read(value: Any) -> Schedule:
    """Return the schedule that a value stands for."""
    if isinstance(value, Schedule):
        return value
    if isinstance(value, str) and (call := parsed(value)) is not None:
        made: Schedule = call.made("schedule", KINDS)
        return made
    if callable(value):
        return Schedule(f"the function {getattr(value, '__qualname__', type(value).__qualname__)}", value)
    raise UsageError(f"the schedule is {shown(value)}, but must be one such as cosine(0.1, 0.001, rounds=100)")


def at(value: Any, round: int) -> Any:
    """Return what a value is in a round."""
    return value(round) if isinstance(value, Schedule) else value


__all__ = ["Schedule", "constant", "cosine", "step", "warmup"]
