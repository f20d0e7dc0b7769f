"""Virtual shards: a fixed division of the clients that says in which order their replies are summed.

Replies are summed in client order within a shard, and the shards by a fixed binary tree. The result is the same to the
bit whether one process computes it all or each of many computes some neighbouring shards; and a process with a whole
branch of the tree need send only its sum.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

Node = tuple[int, int]
"""A branch of the tree: the shards from the first number up to but not including the second."""

Values = Sequence[Tensor]


class Sums:
    """Adds up the replies of some branches, in client order. Finished branches are joined, to free memory."""

    def __init__(self, branches: Sequence[Node]) -> None:
        self._branches = branches
        self._parts: dict[Node, Values] = {}
        self._shard = 0
        self._sum: list[Tensor] | None = None
        self._own = False  # whether the running sum may be changed: nothing is copied until there is something to add

    def add(self, shard: int, values: Values) -> None:
        """Add the values of the next client."""
        if shard != self._shard:
            self._finish(shard)
        if self._sum is None:
            self._sum, self._own = list(values), False
        elif self._own:
            for one, other in zip(self._sum, values, strict=True):
                one.add_(other)
        else:
            self._sum, self._own = _added(self._sum, values), True

    def finished(self) -> dict[Node, Values]:
        """Return the sums of the branches; empty ones are left out."""
        self._finish(max((end for _, end in self._branches), default=0))
        return self._parts

    def _finish(self, shard: int) -> None:
        """Mark all shards before this one as complete."""
        if self._sum is not None:
            self._parts[self._shard, self._shard + 1] = self._sum
            self._sum = None
        self._shard = shard
        nodes = (node for branch in self._branches for node in within(branch, 0, shard))
        parts = {node: completed(node, self._parts) for node in nodes}
        self._parts = {node: values for node, values in parts.items() if values is not None}


def within(node: Node, first: int, end: int) -> list[Node]:
    """Return the largest branches of a branch whose shards are all from ``first`` up to ``end``, in their order."""
    if first <= node[0] and node[1] <= end:
        return [node]
    if node[1] <= first or end <= node[0]:
        return []
    left, right = halves(node)
    return within(left, first, end) + within(right, first, end)


def completed(node: Node, parts: Mapping[Node, Values]) -> Values | None:
    """Return the sum of a branch from those of others within it; None if there are none."""
    if node in parts:
        return parts[node]
    if node[1] - node[0] == 1:
        return None
    left, right = halves(node)
    return _joined(completed(left, parts), completed(right, parts))


def _joined(left: Values | None, right: Values | None) -> Values | None:
    if left is None or right is None:
        return right if left is None else left
    return _added(left, right)


def _added(left: Values, right: Values) -> list[Tensor]:
    return [torch.add(one, other) for one, other in zip(left, right, strict=True)]


def halves(node: Node) -> tuple[Node, Node]:
    """Return the two branches of a branch."""
    middle = sum(node) // 2
    return (node[0], middle), (middle, node[1])
