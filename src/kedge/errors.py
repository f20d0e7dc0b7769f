"""The one error for a user's mistake, a sentence that names the value and the rule; and the one warning."""

import difflib
import math
import sys
import warnings
from collections.abc import Iterable

SHOWN = 100
"""The most characters of a value that a message shows."""

NEAR = 0.65
"""How similar two names must be for one to be proposed for the other, from 0 to 1."""

INSIDE = ("kedge", "contextlib")
"""Packages whose lines are not the user's."""


class UsageError(ValueError):
    """Bad input. Its message is one sentence; the command line prints it and exits with code 2."""


class FailedRunError(RuntimeError):
    """A run that ended without a result; the command line prints why and exits with code 1."""


class RunWarning(UserWarning):
    """Something in a run's directory is not as it should be, and the run continues without it."""


def shown(value: object) -> str:
    """Format a value for a message: as Python does, but never long."""
    if isinstance(value, int) and value.bit_length() > 3 * SHOWN:
        return f"a number with about {round(value.bit_length() * math.log10(2))} digits"
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # thousands of digits, or of brackets
        return f"a {type(value).__name__} too large to write"
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 20]}...{text[-10:]}"


def unknown(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """Return an error that ``name`` is not a known ``kind``, with the nearest known one or the whole list."""
    names = sorted(known)
    if name.endswith(".py"):
        return UsageError(f"{kind} {shown(name)} is a file; name what is in it too, as in {shown(name + ':make')}")
    return UsageError(f"{kind} {shown(name)} does not exist; {hint(name, names)}")


def hint(name: str, known: Iterable[str]) -> str:
    """Return the nearest known name as a question, or the whole list if none is near."""
    names = sorted(known)
    lowered = {each.lower(): each for each in names}
    near = difflib.get_close_matches(name[:SHOWN].lower(), lowered, n=1, cutoff=NEAR)
    return f"did you mean {lowered[near[0]]!r}?" if near else f"known: {', '.join(names)}."


def warn(text: str) -> None:
    """Warn, at the line outside kedge that called it."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in INSIDE:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, RunWarning, stacklevel=level)


class LostProcessError(RuntimeError):
    """Another process of the same run is gone."""


class UnlikeError(UsageError):
    """The processes of a run have different settings."""
