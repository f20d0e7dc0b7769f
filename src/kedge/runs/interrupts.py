"""Ctrl-C in a script or a notebook: the first ends the run after its round, the second at once."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stopping_on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` on the first Ctrl-C, where Python would otherwise raise KeyboardInterrupt; a second one raises it.

    A program that has its own handler keeps it, and only the main thread has one.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def first(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print("kedge: stopping after this round; interrupt again to stop at once", file=sys.stderr)
        stop()

    signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
