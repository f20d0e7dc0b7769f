"""An algorithm: a frozen dataclass of hyper-parameters, its state, and the exchanges of a round.

The command line, the configuration and the docs derive from the dataclass: each hyper-parameter declares its range
and meaning with `hyper`.
"""

import dataclasses
import inspect
import math
import numbers
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Generic, Self, cast

from kedge.checks import LARGEST, is_finite, limits
from kedge.direction import Vector
from kedge.errors import UsageError, shown
from kedge.exchange import ClientT, DownT, Exchange, Heard, Nothing, ServerT, UpT
from kedge.schedules import Schedule, is_schedule, read

SYMBOLS = """\
x^r is the server's model in round r, x_i^{r,k} that of client i after k of its K local steps, each of which subtracts
η g_i^{r,k}. ∇F(x; ξ) is the gradient of a minibatch, ∇f_i that of all the client's data. mean_i is over the S of N
clients whose replies have arrived, mean_k over the K steps. η is `eta`, γ `gamma`, β `beta`, η_s `server_lr`,
B `opening_batches`; other Greek letters are spelled out."""


def hyper(
    default: Any = MISSING,
    *,
    help: str,
    above: float = -math.inf,
    at_least: float = -math.inf,
    at_most: float = math.inf,
    choices: tuple[str, ...] = (),
    fixed: bool = False,
) -> Any:
    """Declare a hyper-parameter: its default, its meaning and its range.

    A number may also be a schedule over the rounds (`kedge.schedules`), unless it is a count or ``fixed``.
    """
    range = {"above": above, "at_least": at_least, "at_most": at_most, "choices": choices, "fixed": fixed}
    return dataclasses.field(default=default, metadata={"help": help, **range})


def rule_of(field: "dataclasses.Field[Any]") -> Mapping[str, Any]:
    """Return what `hyper` says about a hyper-parameter; without `hyper`, a field is a finite number."""
    return {**hyper(help="").metadata, "help": "", **field.metadata}


def hyper_eta() -> Any:
    """Declare the local learning rate."""
    return hyper(help="local learning rate", above=0)


def hyper_gamma() -> Any:
    """Declare the server learning rate."""
    return hyper(None, help="server learning rate; by default eta * K, plain averaging", above=0)


def hyper_beta(default: float = 0.1) -> Any:
    """Declare the momentum."""
    return hyper(default, help="momentum: the weight of the new gradient; 1 is no momentum", above=0, at_most=1)


def hyper_opening(default: int = 1, at_least: int = 0) -> Any:
    """Declare the B of the initial gradients over all clients."""
    zeros = "" if at_least else "; 0 starts from zeros"
    return hyper(default, help=f"minibatches per client of the initial gradients{zeros}", at_least=at_least)


def is_whole(field: "dataclasses.Field[Any]") -> bool:
    """Whether a hyper-parameter is a count: int or int | None, even if annotations are stored as text."""
    kind = field.type.__name__ if isinstance(field.type, type) else str(field.type)
    return kind in ("int", "int | None")


def _check(owner: str, field: "dataclasses.Field[Any]", value: Any) -> None:
    name, rule = field.name, rule_of(field)
    if not field.metadata and (isinstance(field.default, bool) or not isinstance(value, numbers.Real)):
        return  # declared without `hyper`, and not a number: nothing is known about it
    if rule["choices"]:
        if value not in rule["choices"]:
            raise UsageError(f"{name} of {owner} is {shown(value)}, but must be one of {', '.join(rule['choices'])}")
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        also = " or a schedule such as cosine(0.1, 0.001, rounds=100)" if isinstance(value, str) else ""
        raise UsageError(f"{name} of {owner} is {shown(value)}, but must be a finite number{also}")
    if abs(value) > LARGEST:
        raise UsageError(f"{name} of {owner} is {value:g}, but must be at most {LARGEST:g}")
    if is_whole(field) and not isinstance(value, int):
        raise UsageError(f"{name} of {owner} is {value:g}, but must be a whole number")
    if not (value > rule["above"] and rule["at_least"] <= value <= rule["at_most"]):
        raise UsageError(f"{name} of {owner} is {value:g}, but must be {' and '.join(limits(rule))}")


def _plain(value: Any) -> Any:
    """Return a finite number of another library, such as numpy, as Python's own, and anything else as it is."""
    if isinstance(value, bool) or not is_finite(value):
        return value
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def _scheduled(owner: str, field: "dataclasses.Field[Any]", value: Any) -> Schedule:
    """Return the schedule that a value stands for, or refuse it where the hyper-parameter cannot be one."""
    schedule = read(value)
    if is_whole(field) or rule_of(field)["fixed"]:
        raise UsageError(f"{field.name} of {owner} is {schedule}, but must be the same number in all rounds")
    for reached in schedule.reaches:
        try:
            _check(owner, field, reached)
        except UsageError as error:
            raise UsageError(f"{field.name} of {owner} is the schedule {schedule}, but {error}") from None
    return schedule


@dataclass(frozen=True)
class Algorithm(ABC, Generic[ServerT, ClientT]):
    """Hyper-parameters, initial state, and who sends what to whom."""

    full_participation: ClassVar[bool] = False
    """Whether the algorithm is defined only if every client takes part in every round."""

    any_solver: ClassVar[bool] = False
    """Whether the rules use only where the local steps ended, so that any solver may take them, such as local Adam."""

    eta: float = hyper_eta()

    def __post_init__(self) -> None:
        owner = type(self).__name__
        for field in dataclasses.fields(self):
            value = _plain(getattr(self, field.name))
            if not rule_of(field)["choices"] and is_schedule(value):
                object.__setattr__(self, field.name, _scheduled(owner, field, value))
            elif not (value is None and field.default is None):
                _check(owner, field, value)
                object.__setattr__(self, field.name, value)

    @cached_property
    def scheduled(self) -> Mapping[str, Schedule]:
        """The hyper-parameters that change from round to round."""
        values = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        return {name: value for name, value in values if isinstance(value, Schedule)}

    def at(self, round: int) -> Self:
        """Return the algorithm of a round, in which every hyper-parameter is a number; before the first, of round 0."""
        return cast("Self", _resolved(self, max(round, 0))) if self.scheduled else self

    @classmethod
    def explained(cls) -> str:
        """The docstring, the hyper-parameters as `hyper` declares them, and the symbols of the formulas."""
        lines = []
        for field in dataclasses.fields(cls):
            rule = rule_of(field)
            default = "required" if field.default is MISSING else f"{field.default!r} by default"
            allowed = " or ".join(map(repr, rule["choices"])) or ", ".join(limits(rule))
            lines.append(f"    {field.name:<15}  {rule['help']} ({'; '.join(filter(None, [allowed, default]))})")
        return "\n".join([inspect.cleandoc(cls.__doc__ or ""), "", "Hyper-parameters:", "", *lines, "", SYMBOLS])

    @abstractmethod
    def init_server(self, x: Vector) -> ServerT:
        """The server's state at x^0; its field `x` is the model."""

    @abstractmethod
    def exchanges(self, round: int, seed: int) -> tuple[Exchange[ServerT, ClientT, Any, Any], ...]:
        """The exchanges of round r = 0, 1, ... of the run with this seed; what they draw is keyed by both."""

    def init_client(self, x: Vector) -> ClientT:
        """A client's state before it first takes part; by default none."""
        return cast("ClientT", Nothing())

    def opening(self) -> tuple[Exchange[ServerT, ClientT, Any, Any], ...]:
        """Exchanges before the first round, as for c_i^0; by default none."""
        return ()


@lru_cache(maxsize=64)
def _resolved(algorithm: Algorithm[Any, Any], round: int) -> Algorithm[Any, Any]:
    values = {name: schedule(round) for name, schedule in algorithm.scheduled.items()}
    try:
        return dataclasses.replace(algorithm, **values)
    except UsageError as error:
        raise UsageError(f"in round {round}, {error}") from None


class SingleExchange(Algorithm[ServerT, ClientT], Exchange[ServerT, ClientT, DownT, UpT]):
    """An algorithm whose round is a single exchange: itself."""

    def exchanges(self, round: int, seed: int) -> tuple[Exchange[ServerT, ClientT, Any, Any], ...]:
        """Return itself, in every round."""
        return (self,)


def rate(algorithm: Algorithm[Any, Any], exchange: Exchange[Any, Any, Any, Any]) -> float:
    """Return the local rate of an exchange: its own eta if it has one, else the algorithm's."""
    eta: float = getattr(exchange, "eta", algorithm.eta)
    return eta


def server_rate(gamma: float | None, eta: float, heard: Heard) -> float:
    """Return gamma; None means eta K, plain averaging of the local models."""
    return eta * heard.local_steps if gamma is None else gamma
