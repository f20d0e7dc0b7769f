"""Which process of a run does not answer, and for how long."""

import time
from collections.abc import Callable

QUIET = 20.0
"""Seconds after which its silence is said, or after half the timeout."""

GRACE = 60.0
"""The least timeout of a process that is starting or ending: to load torch may silence it for seconds."""

STEP = 5.0
"""No more seconds than these count between two looks: while this process was stopped too, nobody could be heard."""


class Silence:
    """How long each process has not been heard of."""

    def __init__(self, count: int, timeout: float, say: Callable[[str], None], *, playing: bool) -> None:
        self._timeout = timeout
        self._say = say
        self._limits = [timeout if playing else max(timeout, GRACE)] * count
        self._seconds = [0.0] * count
        self._said: set[int] = set()
        self._looked = time.monotonic()

    def plays(self, rank: int, playing: bool) -> None:
        """Note that a process has joined the others, or left them."""
        self._limits[rank] = self._timeout if playing else max(self._timeout, GRACE)

    def heard(self, rank: int) -> None:
        """Note a sign of life."""
        self._seconds[rank] = 0.0
        if rank in self._said:
            self._said.remove(rank)
            self._say(f"process {rank} of {len(self._seconds)} answers again")

    def ended(self, rank: int) -> None:
        """Note that a process has ended, which silence does not make worse."""
        self._seconds[rank] = 0.0

    def quiet(self) -> list[int]:
        """Return who has been silent long enough to be said."""
        both = zip(self._seconds, self._limits, strict=True)
        return [rank for rank, (seconds, limit) in enumerate(both) if seconds >= min(QUIET, limit / 2)]

    def look(self) -> int | None:
        """Let time pass, say who is silent, and return a process that has been so for too long."""
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, STEP), now
        self._seconds = [seconds + passed for seconds in self._seconds]
        for rank in self.quiet():
            seconds, limit = self._seconds[rank], self._limits[rank]
            if seconds >= limit:
                return rank
            if rank not in self._said:
                self._said.add(rank)
                self._say(
                    f"process {rank} of {len(self._seconds)} has not answered for {seconds:.0f} s; "
                    f"it counts as lost after {limit:g} s (--stall-timeout)"
                )
        return None
