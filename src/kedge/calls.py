"""Text such as ``cosine(0.1, 0.001, rounds=100)``: a name, numbers and words. It is read, never run."""

import ast
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kedge.errors import UsageError, shown, unknown

LONGEST = 400
"""The most characters of such a text."""


class Call(NamedTuple):
    """A name with its arguments; an argument is a number, a text, true or false, a list, or again a call."""

    name: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    def made(self, kind: str, makers: Mapping[str, Callable[..., Any]]) -> Any:
        """Call the maker of this name, after those of its arguments; a wrong argument is one sentence."""
        if self.name not in makers:
            raise unknown(kind, self.name, makers)
        arguments = [_made(value, kind, makers) for value in self.arguments]
        options = {name: _made(value, kind, makers) for name, value in self.options.items()}
        try:
            return makers[self.name](*arguments, **options)
        except TypeError as error:
            text = str(error).replace("__init__()", f"{self.name}()").removeprefix("type.")
            raise UsageError(f"{kind} {self.name} was given the wrong arguments: {text}") from None


def _made(value: Any, kind: str, makers: Mapping[str, Callable[..., Any]]) -> Any:
    return value.made(kind, makers) if isinstance(value, Call) else value


def parsed(text: str) -> Call | None:
    """Return the call that a text says, or None if it says none."""
    if len(text) > LONGEST:
        return None
    try:
        return _call(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _call(node: ast.expr) -> Call:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ValueError("not a call")
    options = {keyword.arg: _value(keyword.value) for keyword in node.keywords if keyword.arg is not None}
    if len(options) < len(node.keywords):
        raise ValueError("a name is missing")
    return Call(node.func.id, tuple(_value(argument) for argument in node.args), options)


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Call):
        return _call(node)
    value = ast.literal_eval(node)
    if not isinstance(value, int | float | str | list):
        raise ValueError(f"{shown(value)} is neither a number nor a text")
    return value


def number(value: float) -> str:
    """Write a number so that reading it gives the same one."""
    return repr(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))
