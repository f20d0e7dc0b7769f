"""The one error for a user's mistake, a sentence that names the value and the rule; and the one warning."""

import difflib
import math
from collections.abc import Iterable

SHOWN = 100
"""The most characters of a value that a message shows."""


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
    near = difflib.get_close_matches(name[:SHOWN].lower(), names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}."
    return UsageError(f"{kind} {shown(name)} does not exist; {hint}")


class LostProcessError(RuntimeError):
    """Another process of the same run is gone."""


class UnlikeError(UsageError):
    """The processes of a run have different settings."""
