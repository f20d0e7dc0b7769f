"""Ctrl-C, SIGTERM and SIGHUP: the first asks the run to stop after its round, the second stops it at once."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

HANGUP = getattr(signal, "SIGHUP", None)
"""What a terminal sends when it is closed; not on Windows."""


class StoppedError(Exception):
    """A run that a signal stopped, with a checkpoint; the process exits with 128 plus the signal's number."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


class Stop:
    """Whether a signal asks the run to stop, and which."""

    def __init__(self, patient: bool) -> None:
        self.signal: int | None = None
        self._patient = patient

    def __call__(self) -> bool:
        """Answer the run."""
        return self.signal is not None

    def ask(self, number: int, frame: FrameType | None) -> None:
        """Note the first signal; a second one interrupts, unless this is patient."""
        if self._patient:
            self.signal = self.signal or number
            return
        if self.signal is not None:
            if number == HANGUP:  # the system and the shell both report that the terminal is gone
                return
            raise KeyboardInterrupt
        self.signal = number
        with suppress(OSError):  # past Python's streams: the signal may have come while one of them was writing
            os.write(2, b"kedge: stopping after this round; interrupt again to stop at once\n")


@contextmanager
def stopping(*, patient: bool = False) -> Iterator[Stop]:
    """Yield what the run asks after every round; only the main thread receives signals.

    ``patient``: the terminal and a launcher may both send the same signal, so a second one means nothing new.
    """
    stop = Stop(patient)
    heard = [signal.SIGINT, signal.SIGTERM] if threading.current_thread() is threading.main_thread() else []
    if heard and HANGUP is not None and signal.getsignal(HANGUP) != signal.SIG_IGN:  # as under nohup
        heard.append(HANGUP)
    before = {number: signal.signal(number, stop.ask) for number in heard}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
