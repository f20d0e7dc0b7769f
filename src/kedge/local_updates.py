"""The local updates that come with kedge, and the text that names one in a configuration.

    simulate(..., local_update=kedge.Clip(1.0))
    simulate(..., local_update=[kedge.Clip(1.0), kedge.SAM(0.05)])

`Clip` and `SAM` change the gradient, `HeavyBall`, `Adam`, `AdamW` and `ClientRates` the step, and `Personal` what a
client keeps. Importing this does not load torch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kedge.calls import parsed
from kedge.checks import is_finite, limits
from kedge.errors import UsageError, shown
from kedge.local_update import LocalUpdate, Memory, Step, chain, norms

if TYPE_CHECKING:
    from kedge.direction import Vector
    from kedge.exchange import Local


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
