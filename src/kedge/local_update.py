"""What a client does differently in its local steps, where the affine `Direction` cannot say it.

A local update changes one of three things, and costs nothing where there is none:

- the *gradient*: wherever the algorithm takes a gradient, it gets the changed one. All that it derives, such as control
  variates, follows, so this works with every algorithm;
- the *step*: x moves along something else than the algorithm's direction. That is defined for algorithms that only use
  where the local steps ended (`Algorithm.any_solver`);
- what a client *keeps*: coordinates that never leave it.

Vectors are (clients, d), and a client's row must not depend on the others: use `norms`, not ``vector.norm()``.
Importing this does not load torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from kedge.errors import UsageError, shown

if TYPE_CHECKING:
    from kedge.direction import Direction, Vector
    from kedge.exchange import Local

Memory = tuple[Any, ...]
"""What an update remembers from one local step to the next: vectors (clients, d)."""


class Step(NamedTuple):
    """Where a local step is taken."""

    x: "Vector"  # x_i^{r,k}, not to be changed
    k: int
    eta: float
    clients: Sequence[int]


class LocalUpdate:
    """Base class: override `gradient`, or `begin` and `step` with ``solver = True``. Use a frozen dataclass."""

    solver: ClassVar[bool] = False
    """Whether x moves along something else than the algorithm's direction."""

    def gradient(self, x: "Vector", at: "Callable[[Vector], Vector]") -> "Vector":
        """Return the gradient that the algorithm gets at ``x``; ``at(point)`` is that of the minibatch at a point.

        The next call of ``at`` may overwrite the result of the previous one.
        """
        return at(x)

    def begin(self, x: "Vector") -> Memory:
        """Return the memory before the first of a round's local steps."""
        return ()

    def step(self, direction: "Vector", memory: Memory, step: Step) -> "tuple[Vector, Memory]":
        """Return what x moves along instead of ``direction`` (x <- x - eta move), and the new memory."""
        return direction, memory

    # ---- what a client keeps from round to round

    def bound(self, parameters: Mapping[str, slice]) -> "LocalUpdate":
        """Return the update for a model whose ``parameters`` have these places in the flat vector."""
        return self

    def keeps(self, x: "Vector") -> "dict[str, Vector]":
        """Return what a client keeps before it first takes part, by name; it is checkpointed with its state."""
        return {}

    def enter(self, point: "Vector", kept: "Mapping[str, Vector]") -> "Vector":
        """Return a point of the server as the client sees it."""
        return point

    def leave(
        self, start: "Vector", local: "Local", kept: "Mapping[str, Vector]"
    ) -> "tuple[Local, Mapping[str, Vector]]":
        """Return what the algorithm sees of the local steps from the server's ``start``, and what the client keeps."""
        return local, kept

    def hidden(self) -> int:
        """Return how many numbers of every vector never leave a client."""
        return 0


def norms(vector: "Vector") -> "Vector":
    """Return the Euclidean norm of each client's row, (clients, 1); no bit of it depends on the other rows."""
    import torch

    return torch.stack([row.norm() for row in vector]).unsqueeze(1) if vector.ndim > 1 else vector.norm().unsqueeze(0)


@dataclass(frozen=True)
class Chain(LocalUpdate):
    """Several updates: gradients pass through the first one first, and so do steps."""

    updates: tuple[LocalUpdate, ...]

    @property
    def solver(self) -> bool:  # type: ignore[override]
        """Whether one of them moves x along something else."""
        return any(update.solver for update in self.updates)

    def gradient(self, x: "Vector", at: "Callable[[Vector], Vector]") -> "Vector":
        """Let each change the gradients of the one before it."""
        for update in self.updates:
            at = _changed(update, at)
        return at(x)

    def begin(self, x: "Vector") -> Memory:
        """Return everyone's memory."""
        return tuple(update.begin(x) for update in self.updates)

    def step(self, direction: "Vector", memory: Memory, step: Step) -> "tuple[Vector, Memory]":
        """Let each change the move of the one before it."""
        memories = []
        for update, own in zip(self.updates, memory, strict=True):
            direction, new = update.step(direction, own, step)
            memories.append(new)
        return direction, tuple(memories)

    def bound(self, parameters: Mapping[str, slice]) -> "LocalUpdate":
        """Bind each."""
        return Chain(tuple(update.bound(parameters) for update in self.updates))

    def keeps(self, x: "Vector") -> "dict[str, Vector]":
        """Return what all of them keep; no two may keep the same."""
        kept: dict[str, Vector] = {}
        for update in self.updates:
            if twice := kept.keys() & update.keeps(x).keys():
                raise UsageError(f"two local updates keep {min(twice)!r}, but each needs its own name for it")
            kept |= update.keeps(x)
        return kept

    def enter(self, point: "Vector", kept: "Mapping[str, Vector]") -> "Vector":
        """Let each put in its own."""
        for update in self.updates:
            point = update.enter(point, kept)
        return point

    def leave(
        self, start: "Vector", local: "Local", kept: "Mapping[str, Vector]"
    ) -> "tuple[Local, Mapping[str, Vector]]":
        """Let each take out its own."""
        for update in reversed(self.updates):
            local, own = update.leave(start, local, kept)
            kept = {**kept, **own}
        return local, kept

    def hidden(self) -> int:
        """Count the numbers that never leave."""
        return sum(update.hidden() for update in self.updates)


def _changed(update: LocalUpdate, at: "Callable[[Vector], Vector]") -> "Callable[[Vector], Vector]":
    return lambda point: update.gradient(point, at)


def chain(*updates: LocalUpdate) -> LocalUpdate:
    """Return several updates as one."""
    if not updates or not all(isinstance(update, LocalUpdate) for update in updates):
        raise UsageError(
            f"chain was given {shown(updates)}, but takes local updates, as in chain(Clip(1.0), SAM(0.05))"
        )
    return updates[0] if len(updates) == 1 else Chain(updates)


def text(update: LocalUpdate) -> str:
    """Return an update as a configuration writes it."""
    if isinstance(update, Chain):
        return f"chain({', '.join(map(text, update.updates))})"
    return repr(update)


def in_steps(update: LocalUpdate | None, *, query: bool) -> LocalUpdate | None:
    """Return the part of an update that acts in local steps; in a gradient query nothing moves."""
    if isinstance(update, Chain):
        parts = [part for one in update.updates if (part := in_steps(one, query=query)) is not None]
        return chain(*parts) if parts else None
    if update is None or (query and update.solver):
        return None
    kind = type(update)
    return None if kind.gradient is LocalUpdate.gradient and kind.step is LocalUpdate.step else update


def seen_through(update: LocalUpdate, rule: "Direction", kept: "Mapping[str, Vector]") -> "Direction":
    """Return a rule whose fixed points are seen as the client sees them."""

    def entered(point: "Vector | None") -> "Vector | None":
        return None if point is None else update.enter(point, kept)

    anchors = tuple(a._replace(point=entered(a.point), first=entered(a.first)) for a in rule.anchors)
    return replace(rule, anchors=anchors)
