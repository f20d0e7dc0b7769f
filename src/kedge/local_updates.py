"""What a client does differently in its local steps, where the affine `Direction` cannot say it.

    simulate(..., local_update=kedge.Clip(1.0))
    simulate(..., local_update=[kedge.Clip(1.0), kedge.SAM(0.05)])

A local update changes one of three things, and costs nothing where there is none:

- the *gradient* (`Clip`, `SAM`): wherever the algorithm takes a gradient, it gets the changed one. All that it derives,
  such as control variates, follows, so this works with every algorithm;
- the *step* (`Adam`, `AdamW`, `HeavyBall`, `ClientRates`): x moves along something else than the algorithm's direction.
  That is defined for algorithms that only use where the local steps ended (`Algorithm.any_solver`);
- what a client *keeps* (`Personal`): coordinates that never leave it.

Vectors are (clients, d), and a client's row must not depend on the others: use `norms`, not ``vector.norm()``.
Importing this does not load torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from kedge.calls import parsed
from kedge.checks import is_finite, limits
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


def _check(owner: object, **ranges: Mapping[str, float]) -> None:
    """Refuse an option that is not a number in its range."""
    for name, rule in ranges.items():
        value = getattr(owner, name)
        rule = {"above": -1e300, "at_least": -1e300, "below": 1e300, **rule}
        good = is_finite(value) and not isinstance(value, bool)
        if not (good and value > rule["above"] and value >= rule["at_least"] and value < rule["below"]):
            wanted = " and ".join(limits({key: rule[key] for key in rule if abs(rule[key]) < 1e300}))
            raise UsageError(f"{name} of {type(owner).__name__} is {shown(value)}, but must be finite and {wanted}")


@dataclass(frozen=True)
class Clip(LocalUpdate):
    """Gradient clipping: every minibatch gradient, including weight decay, is scaled down to at most ``norm``."""

    norm: float

    def __post_init__(self) -> None:
        _check(self, norm={"above": 0})

    def gradient(self, x: "Vector", at: "Callable[[Vector], Vector]") -> "Vector":
        """Scale the gradient."""
        gradient = at(x)
        return gradient * (self.norm / norms(gradient).clamp(min=self.norm))


@dataclass(frozen=True)
class SAM(LocalUpdate):
    """Sharpness-aware gradients: the gradient at x + rho g / |g| (Foret et al. 2021; FedSAM, Qu et al. 2022).

    It takes two gradients of the same minibatch wherever the algorithm takes one.
    """

    rho: float

    def __post_init__(self) -> None:
        _check(self, rho={"above": 0})

    def gradient(self, x: "Vector", at: "Callable[[Vector], Vector]") -> "Vector":
        """Take the second gradient, uphill."""
        gradient = at(x)
        return at(x + gradient * (self.rho / norms(gradient).clamp(min=1e-12)))


@dataclass(frozen=True)
class HeavyBall(LocalUpdate):
    """Local momentum: m <- momentum m + g, x <- x - eta m; m starts from zero in every round."""

    solver = True

    momentum: float = 0.9

    def __post_init__(self) -> None:
        _check(self, momentum={"at_least": 0, "below": 1})

    def begin(self, x: "Vector") -> Memory:
        """Start from zero."""
        return (0 * x,)

    def step(self, direction: "Vector", memory: Memory, step: Step) -> "tuple[Vector, Memory]":
        """Move along the momentum."""
        moved = self.momentum * memory[0] + direction
        return moved, (moved,)


@dataclass(frozen=True)
class Adam(LocalUpdate):
    """Local Adam (Kingma and Ba 2015) with its bias correction; its moments start from zero in every round."""

    solver = True

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        _check(self, beta1={"at_least": 0, "below": 1}, beta2={"at_least": 0, "below": 1}, eps={"above": 0})

    def begin(self, x: "Vector") -> Memory:
        """Start from zero."""
        return 0 * x, 0 * x

    def step(self, direction: "Vector", memory: Memory, step: Step) -> "tuple[Vector, Memory]":
        """Divide the mean direction by the root of the mean square."""
        mean = self.beta1 * memory[0] + (1 - self.beta1) * direction
        square = self.beta2 * memory[1] + (1 - self.beta2) * direction * direction
        scale = (square / (1 - self.beta2 ** (step.k + 1))).sqrt_().add_(self.eps)
        return mean / (1 - self.beta1 ** (step.k + 1)) / scale, (mean, square)


@dataclass(frozen=True)
class AdamW(LocalUpdate):
    """Local Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

    solver = True

    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        _check(self, weight_decay={"at_least": 0})
        self._adam()

    def _adam(self) -> Adam:
        return Adam(self.beta1, self.beta2, self.eps)

    def begin(self, x: "Vector") -> Memory:
        """Start from zero."""
        return self._adam().begin(x)

    def step(self, direction: "Vector", memory: Memory, step: Step) -> "tuple[Vector, Memory]":
        """Add the decay to the step of Adam."""
        moved, memory = self._adam().step(direction, memory, step)
        return moved.add_(step.x, alpha=self.weight_decay), memory


@dataclass(frozen=True)
class ClientRates(LocalUpdate):
    """Client i steps with eta times ``factors[i]``."""

    solver = True

    factors: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "factors", tuple(self.factors))
        for number, factor in enumerate(self.factors):
            if not is_finite(factor) or factor <= 0:
                raise UsageError(f"factor {number} of ClientRates is {shown(factor)}, but must be finite and above 0")

    def step(self, direction: "Vector", memory: Memory, step: Step) -> "tuple[Vector, Memory]":
        """Scale the step of every client."""
        if (most := max(step.clients)) >= len(self.factors):
            raise UsageError(f"ClientRates has {len(self.factors)} factors, but there is a client {most}")
        factors = direction.new_tensor([self.factors[client] for client in step.clients])
        return direction * factors.unsqueeze(1), memory


@dataclass(frozen=True)
class Personal(LocalUpdate):
    """Parameters that never leave the client, such as its own head: ``Personal("2.")`` or ``Personal("head")``.

    ``prefix`` is how the parameters' names begin, as in ``model.named_parameters()``. Every client starts from the
    initial model's values and trains its own. To the algorithm, these coordinates never move.
    """

    prefix: str
    places: tuple[tuple[int, int], ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.prefix, str):
            raise UsageError(
                f"prefix of Personal is {shown(self.prefix)}, but must be how the names of parameters begin"
            )

    def bound(self, parameters: Mapping[str, slice]) -> "LocalUpdate":
        """Find the parameters."""
        found = [place for name, place in parameters.items() if name.startswith(self.prefix)]
        if not found or len(found) == len(parameters):
            which = "none" if not found else "all"
            raise UsageError(
                f"Personal is for parameters that begin with {shown(self.prefix)}, but {which} of the model's do: "
                f"{', '.join(list(parameters)[:10])}"
            )
        return replace(self, places=tuple((place.start, place.stop) for place in found))

    def keeps(self, x: "Vector") -> "dict[str, Vector]":
        """Return the initial model's values."""
        return {"personal": self._own(x).clone()}

    def _own(self, x: "Vector") -> "Vector":
        import torch

        return torch.cat([x[..., begin:end] for begin, end in self.places], -1)

    def _with(self, x: "Vector", own: "Vector") -> "Vector":
        """Return ``x`` with these values in the personal places."""
        result, at = x.clone(), 0
        for begin, end in self.places:
            result[..., begin:end] = own[..., at : at + end - begin]
            at += end - begin
        return result

    def enter(self, point: "Vector", kept: "Mapping[str, Vector]") -> "Vector":
        """Put the client's own values in."""
        own = kept["personal"]
        return self._with(point.expand(len(own), -1), own)

    def leave(
        self, start: "Vector", local: "Local", kept: "Mapping[str, Vector]"
    ) -> "tuple[Local, Mapping[str, Vector]]":
        """Keep the client's values; the algorithm sees that they have not moved."""

        def still(vector: "Vector | None") -> "Vector | None":
            return None if vector is None else self._with(vector, 0 * self._own(vector))

        seen = replace(
            local,
            start=start,
            x=self._with(local.x, self._own(start).expand(len(local.x), -1)),
            only_direction=still(local.only_direction),
            kept_mean_grad=still(local.kept_mean_grad),
            kept_last_direction=still(local.kept_last_direction),
        )
        return seen, {"personal": self._own(local.x)}

    def hidden(self) -> int:
        """Count them."""
        return sum(end - begin for begin, end in self.places)


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


KINDS: dict[str, Callable[..., Any]] = {
    kind.__name__: kind for kind in (Clip, SAM, HeavyBall, Adam, AdamW, ClientRates, Personal)
}
"""The updates that a configuration may name."""


def read(value: Any) -> LocalUpdate | None:
    """Return the update that a value stands for: one, several, or texts such as Clip(1.0)."""
    if value is None or isinstance(value, LocalUpdate):
        return value
    if isinstance(value, str) and (call := parsed(value)) is not None:
        made: LocalUpdate = call.made("local update", {**KINDS, "chain": chain})
        return made
    if isinstance(value, list | tuple):
        updates = [update for one in value if (update := read(one)) is not None]
        return chain(*updates) if updates else None
    known = ", ".join(KINDS)
    raise UsageError(f"local_update is {shown(value)}, but must be one of {known}, as in Clip(1.0), or a list of them")


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
