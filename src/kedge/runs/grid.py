"""A grid: for some keys of a configuration, the values to try, or a range to search."""

import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kedge.errors import UsageError
from kedge.runs.toml import check_values, parse_value

POINTS = 100_000
"""The most points a grid may have."""

_FORM = "but must have the form key=value,value,... or key=low..high[:log], as in algorithm.eta=0.01,0.1"
_RANGE = re.compile(r"[^/,\"'\[{]*\.\.[^/,]*")  # unlike ../a/path
_CLOSING = {"(": ")", "[": "]", "{": "}", '"': '"', "'": "'"}


@dataclass(frozen=True)
class Choices:
    """The values of a key."""

    values: tuple[Any, ...]

    def __str__(self) -> str:
        return ",".join(label(value) for value in self.values)


@dataclass(frozen=True)
class Range:
    """All numbers from low to high: whole numbers if both ends are."""

    low: float
    high: float
    log: bool = False

    @property
    def whole(self) -> bool:
        """Whether only whole numbers are meant."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def __str__(self) -> str:
        return f"{self.low}..{self.high}{':log' if self.log else ''}"


Axis = Choices | Range
Point = dict[str, Any]


def parse_grid(texts: Iterable[str]) -> dict[str, Axis]:
    """Read ``algorithm.eta=0.01,0.1`` or ``algorithm.eta=0.001..1:log``, one text per key."""
    axes: dict[str, Axis] = {}
    for text in texts:
        key, equals, values = (part.strip() for part in text.partition("="))
        section, dot, name = key.partition(".")
        if not (equals and section and dot and name):
            raise UsageError(f"--grid is {text!r}, {_FORM}")
        if key in axes:
            raise UsageError(f"--grid names {key} twice, but must list all its values together")
        if key == "run.seed":
            raise UsageError("--grid names run.seed, but --seeds sets the seeds")
        axes[key] = _axis(text, values)
    if not axes:
        raise UsageError("there is no --grid, but a sweep needs at least one, as in --grid algorithm.eta=0.01,0.1")
    return axes


def _axis(text: str, values: str) -> Axis:
    if not values:
        raise UsageError(f"--grid is {text!r}, but names no value")
    if _RANGE.fullmatch(values):
        return _range(text, values)
    parts = [part.strip() for part in _split(values)]
    if not all(parts):
        raise UsageError(f"--grid is {text!r}, but one of its values is empty")
    chosen: list[Any] = []
    for value in map(parse_value, parts):
        check_values({"a value of --grid": value})
        if _has_table(value):
            raise UsageError(f"--grid is {text!r}, but no setting is a table")
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"--grid is {text!r}, but {value} is not a finite number")
        if any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in chosen):
            raise UsageError(f"--grid is {text!r}, but names {label(value)} twice")
        chosen.append(value)
    return Choices(tuple(chosen))


def _has_table(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(map(_has_table, value)))


def _range(text: str, values: str) -> Range:
    ends, colon, scale = values.partition(":")
    low, _, high = ends.partition("..")
    numbers = [parse_value(end.strip()) for end in (low, high)]
    if not all(isinstance(n, int | float) and not isinstance(n, bool) and math.isfinite(n) for n in numbers):
        raise UsageError(f"--grid is {text!r}, but a range goes from a number to a number, as in 0.001..1:log")
    if colon and scale.strip() != "log":
        raise UsageError(f"--grid is {text!r}, but the only scale of a range is log, as in 0.001..1:log")
    if not numbers[0] < numbers[1]:
        raise UsageError(f"--grid is {text!r}, but a range must go from a smaller number to a larger one")
    if colon and numbers[0] <= 0:
        raise UsageError(f"--grid is {text!r}, but a range on a log scale must be above 0")
    return Range(numbers[0], numbers[1], bool(colon))


def _split(text: str) -> Iterator[str]:
    """Split at commas outside brackets and quotes."""
    open_: list[str] = []
    start, escaped = 0, False
    for place, letter in enumerate(text):
        if escaped or (letter == "\\" and open_[-1:] == ['"']):
            escaped = not escaped
        elif open_ and letter == open_[-1]:
            open_.pop()
        elif letter in _CLOSING and not (open_ and open_[-1] in "\"'"):
            open_.append(_CLOSING[letter])
        elif letter == "," and not open_:
            yield text[start:place]
            start = place + 1
    yield text[start:]


def extended(there: Mapping[str, Axis], here: Mapping[str, Axis]) -> dict[str, Axis]:
    """Return the grid with the values of both, numbers in their order; the keys must be the same."""
    if list(there) != list(here):
        raise UsageError(f"--grid names {', '.join(here)}, but the existing sweep is over {', '.join(there)}")
    axes: dict[str, Axis] = {}
    for key, axis in here.items():
        before = there[key]
        if isinstance(axis, Choices) and isinstance(before, Choices):
            values = [*before.values, *(value for value in axis.values if value not in before.values)]
            numbers = all(isinstance(value, int | float) for value in values)
            axes[key] = Choices(tuple(sorted(values) if numbers and values != list(before.values) else values))
        elif axis != before:
            raise UsageError(f"--grid has {key}={axis}, but the existing sweep has {key}={before}")
        else:
            axes[key] = axis
    return axes


def points(axes: Mapping[str, Axis]) -> list[Point]:
    """Return every combination of the values, the last key's changing fastest."""
    for key, axis in axes.items():
        if isinstance(axis, Range):
            raise UsageError(f"--grid has the range {key}={axis}, which needs --search optuna")
    choices = [axis.values for axis in axes.values() if isinstance(axis, Choices)]
    if (count := math.prod(map(len, choices))) > POINTS:
        raise UsageError(f"--grid has {count:.3g} points, but at most {POINTS} can be tried")
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*choices)]


def corners(axes: Mapping[str, Axis]) -> list[Point]:
    """Return the first and the last point of a space that may have ranges."""
    ends = [axis.values if isinstance(axis, Choices) else (axis.low, axis.high) for axis in axes.values()]
    return [dict(zip(axes, (values[place] for values in ends), strict=True)) for place in (0, -1)]


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Return the last part of every key, or all of it where that is not enough to tell it from another."""
    lasts = [key.rpartition(".")[2] for key in keys]
    return {key: last if lasts.count(last) == 1 else key for key, last in zip(keys, lasts, strict=True)}


def point_name(point: Point) -> str:
    """Return a name for the directories of a point: ``eta0.1-beta0.5``."""
    shorts = short_keys(list(point))
    parts = (f"{shorts[key]}{short_label(value)}" for key, value in point.items())
    return re.sub(r"[^\w.+-]+", "_", "-".join(parts))


def label(value: Any) -> str:
    """Write a value as on the command line, so that it is read back unchanged."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(json.dumps(item) if isinstance(item, str) else label(item) for item in value)}]"
    if isinstance(value, str):
        plain = parse_value(value) == value and not set(value) & {",", *_CLOSING} and not _RANGE.fullmatch(value)
        return value if plain and value and value == value.strip() else json.dumps(value)
    return str(value)


def short_label(value: Any) -> str:
    """Write a value for people: only the class of ``my_file.py:MyAlgorithm``."""
    return label(value).rpartition(":")[2]
