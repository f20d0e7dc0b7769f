"""Which processes of a run do not answer, and for how long."""

import time
from collections.abc import Callable

QUIET = 20.0
"""Seconds of silence after which a process is reported, or half the timeout."""

GRACE = 60.0
"""The shortest timeout of a process that is starting or ending: loading torch may silence it for seconds."""

STEP = 5.0
"""The most seconds that count between two looks: while this process was suspended too, it could hear no heartbeat."""


class Silence:
    """How long each process has been silent."""

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
        """Note a heartbeat."""
        self._seconds[rank] = 0.0
        if rank in self._said:
            self._said.remove(rank)
            self._say(f"process {rank} of {len(self._seconds)} answers again")

    def ended(self, rank: int) -> None:
        """Note that a process has ended, so its silence means nothing."""
        self._seconds[rank] = 0.0

    def quiet(self) -> list[int]:
        """Return which processes have been silent long enough to report."""
        both = zip(self._seconds, self._limits, strict=True)
        return [rank for rank, (seconds, limit) in enumerate(both) if seconds >= min(QUIET, limit / 2)]

    def look(self) -> int | None:
        """Let time pass, report silent processes, and return one that has been silent for too long."""
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
