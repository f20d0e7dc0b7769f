"""Virtual shards: a fixed division of the clients that says in which order their replies are summed.

Within a shard replies are summed in the order of the clients, and the shards by a fixed binary tree. Whoever computes a
part of it, one process or many of which each has neighbouring shards, the result is the same to the bit; and a process
with a whole branch of the tree need not send more than its sum.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

Node = tuple[int, int]
"""A branch of the tree: the shards from the first number up to, not including, the second."""

Values = Sequence[Tensor]


class Replies:
    """Replies in the order of the clients, of which the next one's shard can be seen."""

    def __init__(self, replies: Iterable[tuple[int, Values]]) -> None:
        self._replies = iter(replies)
        self._next = next(self._replies, None)

    def of(self, shard: int) -> Iterator[Values]:
        """Take the replies of a shard, if they are the next ones."""
        while self._next is not None and self._next[0] == shard:
            yield self._next[1]
            self._next = next(self._replies, None)


def summed(node: Node, replies: Replies) -> Values | None:
    """Return the sum of the replies of a branch; None if there are none."""
    if is_leaf(node):
        total: list[Tensor] | None = None
        fresh = False  # nothing is copied before there is something to add
        for values in replies.of(node[0]):
            if total is None:
                total = list(values)
            elif fresh:
                for one, other in zip(total, values, strict=True):
                    one.add_(other)
            else:
                total, fresh = _added(total, values), True
        return total
    left, right = halves(node)
    return joined(summed(left, replies), summed(right, replies))


def completed(node: Node, parts: Mapping[Node, Values]) -> Values | None:
    """Return the sum of a branch from those of others within it."""
    if node in parts:
        return parts[node]
    if is_leaf(node):
        return None
    left, right = halves(node)
    return joined(completed(left, parts), completed(right, parts))


def joined(left: Values | None, right: Values | None) -> Values | None:
    """Return the sum of two branches."""
    if left is None or right is None:
        return right if left is None else left
    return _added(left, right)


def _added(left: Values, right: Values) -> list[Tensor]:
    return [torch.add(one, other) for one, other in zip(left, right, strict=True)]


def is_leaf(node: Node) -> bool:
    """Whether a branch is one shard."""
    return node[1] - node[0] == 1


def halves(node: Node) -> tuple[Node, Node]:
    """Return the two branches of a branch."""
    middle = sum(node) // 2
    return (node[0], middle), (middle, node[1])
