"""The one error that a user's mistake raises, a sentence that states the rule and the value; and the one warning."""

import difflib
import math
from collections.abc import Iterable

SHOWN = 100
"""Characters of a value that a sentence shows."""


class UsageError(ValueError):
    """A wrong input. Its message is one sentence; the command line prints it and exits with code 2."""


class FailedRunError(RuntimeError):
    """A run that came to no result; the command line prints why and exits with code 1."""


class RunWarning(UserWarning):
    """Something of a run's directory was not as it should be, and the run goes on without it."""


def shown(value: object) -> str:
    """Write a value for a sentence: as Python does, but never long."""
    if isinstance(value, int) and value.bit_length() > 3 * SHOWN:
        return f"a number of about {round(value.bit_length() * math.log10(2))} digits"
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # thousands of digits, or of brackets
        return f"a {type(value).__name__} too large to write"
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 20]}...{text[-10:]}"


def unknown(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """Say that ``name`` is not a known ``kind``, with the nearest known one or the whole list."""
    names = sorted(known)
    near = difflib.get_close_matches(name[:SHOWN].lower(), names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}."
    return UsageError(f"{kind} {shown(name)} does not exist; {hint}")


class LostProcessError(RuntimeError):
    """Another process of the same run is gone."""


class UnlikeError(UsageError):
    """The processes of a run were told different things."""
