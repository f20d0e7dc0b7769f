"""A setting is declared once, in one line: its type, default, range and meaning.

    weight_decay: float = setting(0.0, "λ; λx is added to every gradient.", at_least=0)

What a configuration may hold, the options of the command line, what `kedge.simulate` takes and checks, and
docs/settings.md derive from that line. Importing this does not load torch.
"""

import dataclasses
import inspect
import math
import textwrap
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar, Union, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field

from kedge.checks import LARGEST, MOST, is_finite, limits, whole
from kedge.errors import UsageError, shown, unknown
from kedge.local_update import LocalUpdate
from kedge.local_update import text as update_text
from kedge.local_updates import read as read_update
from kedge.schedules import Schedule, is_schedule, read
from kedge.transforms import ReplyTransform
from kedge.transforms import read as read_transforms
from kedge.transforms import text as transforms_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kedge.exchange import Effort

STEPS = 1_000_000
"""The most local steps."""

SHARDS = 65_536
"""The most shards: every round visits all of them."""

KINDS: dict[Any, str] = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "true or false",
    list[int]: "list of whole numbers",
    Schedule: "schedule",
    LocalUpdate: "text",
    tuple[ReplyTransform, ...]: "text",
}
"""The types of settings, in words."""

_SAME: Any = object()


@dataclass(frozen=True)
class Setting:
    """A setting as `setting` declares it."""

    default: Any
    """The default in Python."""
    meaning: str
    """In it, {none} stands for None, or for the word that a configuration has for it."""
    above: float = -math.inf
    at_least: float = -math.inf
    at_most: float = math.inf
    below: float = math.inf
    check: Callable[[str, Any], object] | None = None
    """Called with the name and the value where a range does not say what is allowed; it raises a `UsageError`."""
    make: Callable[[Any], Any] | None = None
    """Called with the value where something must be made of it; it raises a `UsageError`."""
    write: Callable[[Any], Any] | None = None
    """Called with what was made, for a configuration."""
    word: str | None = None
    """What stands for None in a configuration and on the command line."""
    configured: Any = _SAME
    """The default there, if it differs."""
    default_text: str = ""
    """The default in words, where None stands for something else."""
    option: str | None = None
    """The option of the command line, if it is not the setting's name; "" if there is none."""
    free: bool = False
    """Whether a run may be continued with another value: that changes no result, or only how far it goes."""
    name: str = ""
    annotation: Any = None
    panel: str = ""
    """Under what heading the help of the command line shows it; the section fills in this, name and annotation."""

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The types that it may have, but for None."""
        union = get_origin(self.annotation) in (types.UnionType, Union)
        kinds = get_args(self.annotation) if union else (self.annotation,)
        return tuple(kind for kind in kinds if kind is not type(None))

    @property
    def is_optional(self) -> bool:
        """Whether it may be None."""
        return type(None) in get_args(self.annotation)

    @property
    def choices(self) -> tuple[str, ...]:
        """What it may be, if that can be listed."""
        return get_args(self.kinds[0]) if get_origin(self.kinds[0]) is Literal else ()

    @property
    def start(self) -> Any:
        """The default in a configuration and on the command line."""
        return self.default if self.configured is _SAME else self.configured

    @property
    def start_text(self) -> str:
        """The same in words, "" if there is none."""
        default = self.start
        said = "" if default is None else str(default).lower() if isinstance(default, bool) else str(default)
        return self.default_text or said

    @property
    def type(self) -> str:
        """Its type in words."""
        return "text" if self.choices else " or ".join(KINDS[kind] for kind in self.kinds)

    @property
    def range(self) -> str:
        """What it may be, in words."""
        return ", ".join([*(self.choices or limits(vars(self))), *([f"or {self.word}"] if self.word else [])])

    def help(self, none: str | None = None) -> str:
        """Say what it means, and what stands for None."""
        return self.meaning.replace("{none}", none or repr(self.word))

    def checked(self, value: Any) -> Any:
        """Return a value of the declared type, or refuse it in one sentence."""
        kind = self.kinds[0]
        if value is None and self.is_optional:
            return None
        if self.check is not None:
            self.check(self.name, value)
            return value
        if self.make is not None:
            return self.make(value)
        if kind is int:
            return whole(self.name, value, int(self.at_least), int(self.at_most) if self.at_most < math.inf else MOST)
        if Schedule in self.kinds and is_schedule(value):
            return self._scheduled(value)
        if kind is float:
            return self._real(value)
        if self.choices:
            good, rule = value in self.choices, " or ".join(self.choices)
        elif kind == list[int]:
            good, rule = isinstance(value, list) and all(type(part) is int for part in value), f"a {self.type}"
        else:
            good, rule = isinstance(value, kind), self.type
        if not good:
            raise UsageError(f"{self.name} is {shown(value)}, but must be {rule}")
        return value

    def _scheduled(self, value: Any) -> Schedule:
        schedule = read(value)
        for reached in schedule.reaches:
            self._real(reached)
        return schedule

    def _real(self, value: Any) -> float:
        least, most = (
            limits({name: getattr(self, name) for name in names})
            for names in (("above", "at_least"), ("at_most", "below"))
        )
        if not is_finite(value) or not (value > self.above and value >= self.at_least):
            rule = f"finite and {least[0]}" if least else "a finite number"
            raise UsageError(f"{self.name} is {shown(value)}, but must be {rule}")
        if not (value < self.below and value <= self.at_most):
            raise UsageError(f"{self.name} is {value:g}, but must be {most[0]}")
        return float(value)

    def read(self, value: Any) -> Any:
        """Return what a configuration or the command line means by a value: words for None, 1e3 for 1000."""
        if self.word is not None and value == self.word:
            return None
        if isinstance(value, float) and value.is_integer() and self.kinds[0] is int:
            value = int(value)
        try:
            return self.checked(value)
        except UsageError as error:
            raise UsageError(f"{error}, or {self.word!r}") if self.word is not None else error from None

    def written(self, value: Any) -> Any:
        """Return a value as a configuration writes it."""
        if value is not None and self.write is not None:
            return self.write(value)
        return self.word if value is None else str(value) if isinstance(value, Schedule) else value


def setting(default: Any, meaning: str, **rule: Any) -> Any:
    """Declare a setting of a section; ``rule`` are fields of `Setting`, its range above all."""
    return Field(default, json_schema_extra=cast("Any", {"declared": Setting(default, meaning, **rule)}))


class Section(BaseModel):
    """Settings that belong together. A bad value raises a `UsageError`: one sentence with the value and the rule."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    panel: ClassVar[str] = ""
    own: ClassVar[str] = ""
    """Which of its settings may name a function of the user's own, that takes further settings."""
    declared: ClassVar[Mapping[str, Setting]] = {}
    """Its settings by name."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Collect the declarations."""
        declared = dict(cls.declared)
        for name, field in cls.model_fields.items():
            if name not in declared:
                found = cast("Any", field.json_schema_extra)["declared"]
                option = name if found.option is None else found.option
                declared[name] = dataclasses.replace(
                    found, name=name, annotation=field.annotation, panel=cls.panel, option=option
                )
        cls.declared = declared

    if not TYPE_CHECKING:  # for type checkers, a section takes its fields

        def __init__(self, **values: Any) -> None:
            for name in values:
                if name not in self.declared and not self.takes_more(values):
                    raise unknown("setting", name, self.declared)
            known = {name: self.declared[name].checked(values[name]) for name in values if name in self.declared}
            super().__init__(**values | known)

    @classmethod
    def takes_more(cls, values: Mapping[str, Any]) -> bool:
        """Whether settings that are not declared here may stand beside these."""
        return cls.model_config["extra"] == "allow" and (not cls.own or ".py:" in str(values.get(cls.own)))

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """Return what a configuration says, with the defaults of a configuration."""
        start = {name: each.start for name, each in cls.declared.items() if each.start != each.default}
        known = {name: cls.declared[name].read(value) for name, value in values.items() if name in cls.declared}
        return cls(**start | dict(values) | known)

    def written(self) -> dict[str, Any]:
        """Return all of them as a configuration writes them."""
        values = self.values()
        return values | {name: each.written(values[name]) for name, each in self.declared.items()}

    def values(self) -> dict[str, Any]:
        """Return all of them by name, objects as they are."""
        return {name: getattr(self, name) for name in type(self).model_fields} | (self.model_extra or {})

    def part(self, kind: type["SectionT"]) -> "SectionT":
        """Return the settings of a class that this one extends."""
        return kind(**{name: getattr(self, name) for name in kind.declared})


SectionT = TypeVar("SectionT", bound=Section)
Function = TypeVar("Function", bound=Callable[..., Any])


def documented(kind: type[Section]) -> Callable[[Function], Function]:
    """Let the help of a function that takes ``**settings`` name them: in its signature, and where its doc says so."""

    def decorate(function: Function) -> Function:
        lines = (f"{name}: {each.help('None')}" for name, each in kind.declared.items())
        text = "\n".join(textwrap.fill(line, 112, subsequent_indent="    ") for line in lines)
        function.__doc__ = (function.__doc__ or "").replace("{settings}", textwrap.indent(text, " " * 8).strip())
        signature = inspect.signature(function)
        known = list(signature.parameters.values())[:-1]
        more = (
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.annotation)
            for name, each in kind.declared.items()
            if name not in signature.parameters
        )
        function.__signature__ = signature.replace(parameters=[*known, *more])  # type: ignore[attr-defined]
        return function

    return decorate


class Settings(Section):
    """The rules of a federation, whatever the algorithm."""

    panel = "Federation"

    cohort: int | None = setting(
        10, "S, the clients per round, drawn uniformly without replacement; {none} means all of them. If there are "
        "fewer clients than the default, all take part.",
        at_least=1, word="all", configured=4,
    )  # fmt: skip
    local_steps: int = setting(16, "K, a client's local steps per round.", at_least=1, at_most=STEPS)
    local_epochs: float | None = setting(
        None, "Passes over the client's own data, instead of local_steps: K_i then differs between clients.", above=0
    )
    batch_size: int | None = setting(
        32, "Samples per minibatch, or all that a client has if it has fewer; {none} is the client's whole data, which "
        "makes gradients exact.",
        at_least=1, word="full", configured=16,
    )  # fmt: skip
    weight_decay: float | Schedule = setting(0.0, "λ; λx is added to every gradient.", at_least=0, at_most=LARGEST)
    local_update: LocalUpdate | None = setting(
        None, "What clients do differently in their local steps, as in Clip(1.0), Adam() or SAM(0.05).",
        make=read_update, write=update_text,
    )  # fmt: skip
    reply_transforms: tuple[ReplyTransform, ...] | None = setting(
        None, "What happens to a client's reply, as in TopK(0.01) or Privacy(1.0, 1.1).",
        make=read_transforms, write=transforms_text,
    )  # fmt: skip
    weights: Literal["uniform", "size"] = setting(
        "uniform", "Weights of the clients in the objective: uniform, or by the size of their data."
    )
    lost_replies: float = setting(0.0, "The probability that a client's reply is lost.", at_least=0, below=1)
    seed: int = setting(
        0, "Seeds cohorts, minibatches, dropout masks and lost replies. On the command line and in a configuration it "
        "also divides the data and initialises the model.",
        at_least=0, at_most=2**63 - 1,
    )  # fmt: skip
    shards: int = setting(
        16, "Replies are summed within each shard of clients, then over the shards. A run can have at most this many "
        "processes. The number changes the last bits of the result.", at_least=1, at_most=SHARDS,
    )  # fmt: skip

    def steps(self, samples: "NDArray[np.int64]") -> "NDArray[np.int64]":
        """Return K_i of clients with these numbers of samples."""
        import numpy as np

        if self.local_epochs is None:
            return np.broadcast_to(np.int64(self.local_steps), samples.shape)
        steps = np.ceil(self.local_epochs * samples / np.minimum(self.batch_size or samples, samples))
        if (most := float(steps.max())) > STEPS:
            raise UsageError(
                f"local_epochs is {self.local_epochs:g}: {most:.3g} local steps, but at most {STEPS} can be"
            )
        return np.maximum(steps, 1).astype(np.int64)

    def minibatches(self, effort: "Effort", samples: int) -> float:
        """Return how many minibatches one gradient of this effort stands for, on a client with this many samples."""
        if self.batch_size is None:
            return 1.0
        return samples / min(self.batch_size, samples) if effort.minibatches is None else effort.minibatches
