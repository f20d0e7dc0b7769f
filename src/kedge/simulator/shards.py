"""Virtual shards: a fixed division of the clients that says in which order their replies are summed.

Within a shard replies are summed in the order of the clients, then the sums in the order of the shards. Whoever
computes them, one process or many of which each has whole shards, the result is the same to the bit.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


class Sum:
    """A running sum of tuples of tensors; nothing is copied before there is something to add."""

    def __init__(self) -> None:
        self.values: list[Tensor] = []
        self._is_own = False

    def add(self, values: Sequence[Tensor]) -> None:
        """Add one tuple."""
        if not self.values:
            self.values = list(values)
        elif self._is_own:
            for total, value in zip(self.values, values, strict=True):
                total.add_(value)
        else:
            self.values = [torch.add(total, value) for total, value in zip(self.values, values, strict=True)]
            self._is_own = True


class ShardSums:
    """Sums of replies, which come in the order of the clients."""

    def __init__(self, *, keep: bool) -> None:
        """With ``keep`` the shards are kept apart, for `Ranks.gather`; else they are summed as they come."""
        self.total = Sum()
        self.shards: dict[int, list[Tensor]] = {}
        self._keep = keep
        self._open: tuple[int, Sum] | None = None

    def add(self, shard: int, reply: Sequence[Tensor]) -> None:
        """Add a client's reply."""
        if self._open is None or self._open[0] != shard:
            self.close()
            self._open = (shard, Sum())
        self._open[1].add(reply)

    def close(self) -> None:
        """End the last shard."""
        if self._open is None:
            return
        shard, total = self._open
        if self._keep:
            self.shards[shard] = total.values
        else:
            self.total.add(total.values)
        self._open = None
