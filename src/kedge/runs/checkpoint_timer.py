"""When to checkpoint: after a number of rounds or seconds, or so that it takes at most a fiftieth of the time."""

import re
from dataclasses import dataclass
from typing import Any

from kedge.checks import whole
from kedge.errors import UsageError, shown

SHARE = 0.02
"""The share of the time that checkpoints may take by default."""

PAUSE = 5.0
"""Seconds of work that are cheap to lose: by default, checkpoints are at least this far apart."""

# A guess at what a checkpoint takes, until one has been measured.
SECONDS = 0.02
BYTES_PER_SECOND = 200e6


@dataclass(frozen=True)
class Interval:
    """How often to checkpoint; with neither rounds nor seconds, as often as `SHARE` allows."""

    rounds: int | None = None  # 0: only at the end, or when the run is stopped
    seconds: float | None = None
    never: bool = False

    @classmethod
    def of(cls, value: Any) -> "Interval":
        """Read None or "auto", a number of rounds, "30s" for seconds, or "never"."""
        if value is None or value == "auto":
            return cls()
        if value == "never":
            return cls(never=True)
        if isinstance(value, str):
            if found := re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)\s*s", value, re.ASCII):
                return cls(seconds=float(found[1]))
            if not re.fullmatch(r"\d{1,15}", value, re.ASCII):
                rule = "must be a number of rounds, seconds as in '30s', auto or never"
                raise UsageError(f"checkpoint_every is {shown(value)}, but {rule}")
            value = int(value)
        return cls(rounds=whole("checkpoint_every", value, 0))


class CheckpointTimer:
    """Decides after every round, from the time passed and what checkpoints have taken so far."""

    def __init__(self, interval: Interval) -> None:
        self.interval = interval
        self.spent = 0.0  # seconds spent in checkpoints
        self._last = 0.0  # when the last one was over
        self._slower = 1.0  # how much slower than guessed they are

    def is_due(self, round: int, elapsed: float, size: int) -> bool:
        """Return whether to checkpoint after this round; it would write ``size`` bytes."""
        interval = self.interval
        if interval.never:
            return False
        if interval.rounds is not None:
            return interval.rounds > 0 and round % interval.rounds == 0
        if interval.seconds is not None:
            return elapsed - self._last >= interval.seconds
        # Another one like this follows at the end of the run.
        takes = 2 * self._slower * _guess(size)
        return elapsed - self._last >= PAUSE and self.spent + takes <= SHARE * elapsed

    def took(self, seconds: float, elapsed: float, size: int) -> None:
        """Note what a checkpoint took."""
        self.spent += seconds
        self._last = elapsed
        # There may be another slow one, so its effect only halves each time.
        self._slower = max(seconds / _guess(size), self._slower / 2)


def _guess(size: int) -> float:
    return SECONDS + size / BYTES_PER_SECOND
