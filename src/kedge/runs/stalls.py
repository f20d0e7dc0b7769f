"""Which process of a run does not answer, and for how long."""

import time
from collections.abc import Callable

QUIET = 20.0
"""Seconds after which its silence is said, or after half the timeout."""

STEP = 5.0
"""No more seconds than these count between two looks: while this process was stopped too, nobody could be heard."""


class Silence:
    """How long each process has not been heard of."""

    def __init__(self, count: int, timeout: float, say: Callable[[str], None]) -> None:
        self._seconds = [0.0] * count
        self._said: set[int] = set()
        self._timeout = timeout
        self._say = say
        self._looked = time.monotonic()

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
        return [rank for rank, seconds in enumerate(self._seconds) if seconds >= min(QUIET, self._timeout / 2)]

    def look(self) -> int | None:
        """Let time pass, say who is silent, and return a process that has been so for too long."""
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, STEP), now
        self._seconds = [seconds + passed for seconds in self._seconds]
        for rank in self.quiet():
            if rank not in self._said and self._seconds[rank] < self._timeout:
                self._said.add(rank)
                self._say(
                    f"process {rank} of {len(self._seconds)} has not answered for {self._seconds[rank]:.0f} s; "
                    f"it counts as lost after {self._timeout:g} s (--stall-timeout)"
                )
        return next((rank for rank, seconds in enumerate(self._seconds) if seconds >= self._timeout), None)
