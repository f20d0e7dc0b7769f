"""The public names of kedge with their signatures, one per line.

    python -m tests.api

writes them to tests/api.txt. `test_api.py` fails if they differ: whoever changes what others call decides to, says so
in CHANGELOG.md, and commits the new list.
"""

import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import kedge

BASES = ("Algorithm", "SingleExchange", "Exchange")
"""Public classes to derive from; what they declare is listed once."""

FILE = Path(__file__).with_name("api.txt")


def listing() -> str:
    """Return the list."""
    return (
        "\n".join(line for name in sorted(kedge.__all__) for line in described(f"kedge.{name}", getattr(kedge, name)))
        + "\n"
    )


def described(name: str, thing: Any) -> Iterator[str]:
    """Describe a public thing and, for modules and classes, what can be reached through it."""
    if isinstance(thing, ModuleType):
        yield f"{name}  module"
        for inner in sorted(thing.__all__):
            yield from described(f"{name}.{inner}", getattr(thing, inner))
    elif inspect.isclass(thing):
        yield (
            f"{name}  class{_signature(thing)}" if thing.__module__.startswith("kedge") else f"{name}  {_typed(thing)}"
        )
        if thing.__module__.startswith("kedge"):
            yield from _members(name, thing)
    elif inspect.isfunction(thing):
        yield f"{name}{_signature(thing)}"
    elif isinstance(thing, dict):
        yield f"{name}  {', '.join(sorted(thing))}"
    else:
        yield f"{name}  {_typed(type(thing))}"


def _members(name: str, kind: type) -> Iterator[str]:
    """Describe the public attributes that a class has from kedge, except those of a public base class."""
    public = {getattr(kedge, name) for name in BASES} - {kind}
    homes = [base for base in kind.__mro__ if base.__module__.startswith("kedge")]
    known = {key for base in homes if base in public for key in vars(base)}
    found = {key: value for base in reversed(homes) for key, value in vars(base).items() if not key.startswith("_")}
    for key, value in sorted(found.items()):
        if key in known:
            continue
        if isinstance(value, classmethod | staticmethod):
            yield f"{name}.{key}{_signature(value.__func__)}  {type(value).__name__}"
        elif inspect.isfunction(value):
            yield f"{name}.{key}{_signature(value)}"
        elif isinstance(value, property):
            yield f"{name}.{key}  property"


def _signature(thing: Any) -> str:
    """Return the names, kinds and defaults of the parameters: annotations are checked by mypy."""
    try:
        signature = inspect.signature(thing)
    except ValueError:  # built-in constructors
        return ""
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    shown = inspect.Signature(
        [each.replace(default=_Shown(each.default)) if _has_default(each) else each for each in plain]
    )
    return str(shown)


class _Shown:
    """A default as it is written, without the address of an object."""

    def __init__(self, value: Any) -> None:
        self.text = repr(value) if isinstance(value, str | int | float | tuple | None) else f"<{_typed(type(value))}>"

    def __repr__(self) -> str:
        return self.text


def _has_default(parameter: inspect.Parameter) -> bool:
    return parameter.default is not inspect.Parameter.empty


def _typed(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


if __name__ == "__main__":
    FILE.write_text(listing(), encoding="utf-8")
