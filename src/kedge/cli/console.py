"""Where the command line writes: results to standard output, progress and errors to standard error.

Much of the text comes from the user, such as names of directories: none of it is interpreted as markup.
"""

import codecs
import errno
import os
import sys
from contextlib import suppress
from typing import Any, TextIO

from rich.console import Console

LONGEST = 2000
"""The most characters of a sentence."""

output = Console(markup=False, highlight=False, emoji=False)
errors = Console(stderr=True, markup=False, highlight=False, emoji=False)


def say(message: object) -> None:
    """Write one of kedge's own sentences to standard error."""
    errors.print(f"kedge: {sentence(str(message))}", soft_wrap=True)


def sentence(text: str) -> str:
    """Return a text on one line, not too long, and without terminal escape sequences."""
    text = "".join(letter if _is_harmless(letter) else repr(letter)[1:-1] for letter in " ".join(text.splitlines()))
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 4 :]}"


def _is_harmless(letter: str) -> bool:
    return letter.isprintable() or "\udc80" <= letter <= "\udcff"


class Standard:
    """A standard stream that never ends a run: if it breaks, the rest is dropped, and `failure` says why."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.failure: OSError | None = None
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=ERRORS)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, unless it is broken."""
        try:
            self._stream.write(text)
        except OSError as error:
            self._break(error)
        return len(text)

    def flush(self) -> None:
        """Flush, unless it is broken."""
        try:
            self._stream.flush()
        except OSError as error:
            self._break(error)

    def _break(self, error: OSError) -> None:
        """Redirect the stream to nowhere: Python still has to flush its buffer, at the latest on exit."""
        # A reader that closes a pipe, as `head` does, has read all it wanted.
        self.failure = self.failure or (None if error.errno == errno.EPIPE else error)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        with suppress(OSError):
            self._stream.flush()


ERRORS = "kedge"
"""How to write what the encoding cannot express: bytes of file names as they are, otherwise a question mark."""


def _encode(error: UnicodeError) -> tuple[bytes | str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    return b"".join(_byte(letter) for letter in letters), error.end


def _byte(letter: str) -> bytes:
    return bytes([ord(letter) - 0xDC00]) if "\udc80" <= letter <= "\udcff" else b"?"


codecs.register_error(ERRORS, _encode)


def guard() -> Standard | None:
    """Let this process outlive its standard streams; return standard output, if there is one."""
    if sys.stderr is not None:
        sys.stderr = Standard(sys.stderr)
    if sys.stdout is None:
        return None
    standard = Standard(sys.stdout)
    sys.stdout = standard
    return standard


def say_to_all(message: object) -> None:
    """Write a sentence even if this process should be quiet, because no other process speaks for it."""
    Console(stderr=True).print(f"kedge: {message}", markup=False, highlight=False, soft_wrap=True)


def figure(value: float | None, form: str = ".4g") -> str:
    """Format a number, or a dash if there is none."""
    return "-" if value is None else format(value, form)


def number(metric: str, value: float | None) -> str:
    """Format a value of a metric."""
    return figure(value, ".1%" if metric == "test_accuracy" else ".4g")


def size(count: float) -> str:
    """Format a number of bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
