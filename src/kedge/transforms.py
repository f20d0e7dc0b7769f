"""What happens to a reply between a client's rules and the server's: compression and privacy, for every algorithm.

    simulate(..., reply_transforms=[kedge.TopK(0.01)])
    simulate(..., reply_transforms=[kedge.Privacy(clip=1.0, noise=1.1)])

They are part of the federation's `Settings`, and `kedge.round.answer` applies the client's half: in a simulation, and
in a client process through `kedge.client.Client`, whose reply then holds what may be sent, and whose proposed state
what the transforms keep. `Rounds.fold` applies the server's half. A process has nothing else to do. But if a deployment
promises privacy, it must give `Client` (and `Rounds`) a secret ``noise_seed``: the noise of a simulation is keyed by
the run's seed, so that it can be repeated, and whoever knows that seed can subtract it. `Reply.loss` is not part of the
message.

Your own is a frozen dataclass that overrides `client` or `server`, and `keeps` if it needs client state. All vectors
are (d,): one client's. Importing this does not load torch.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from kedge.calls import parsed
from kedge.checks import is_finite, whole
from kedge.errors import UsageError, shown

if TYPE_CHECKING:
    from torch import Tensor

    from kedge.algorithm import Algorithm
    from kedge.direction import Vector

INDEX = 4
"""Bytes of the place of a number in a sparse vector."""

SERVER = 1 << 62
"""The number under which the server draws."""

Vectors = Mapping[str, "Vector"]


class Place(NamedTuple):
    """Where a reply is sent: what it draws is keyed by this."""

    seed: int
    round: int  # -1 before the first
    exchange: int  # its number in the round
    kind: str  # the class of the exchange
    client: int

    def normal(self, like: "Vectors") -> "dict[str, Vector]":
        """Draw standard normal vectors."""
        import torch

        from kedge.keyed import PRIVACY, keyed

        source = keyed(self.seed, PRIVACY, self.round, self.exchange, self.client)
        return {name: torch.from_numpy(source.standard_normal(len(vector))).to(vector) for name, vector in like.items()}


class ReplyTransform:
    """Base class; without overriding anything, it changes nothing."""

    sparse: ClassVar[bool] = False
    """Whether replies are mostly zeros, so that places and values are sent if they are smaller."""

    def check(self, weights: str, statistics: bool) -> None:
        """Refuse a federation in which it does not mean what it says."""

    def keeps(self, x: "Vector", fields: Sequence[str]) -> "dict[str, Vector]":
        """Return what a client keeps before it first takes part; ``fields`` are the vectors that rounds send up.

        Their names are those of `named`: the exchange and the field of its reply.
        """
        return {}

    def client(self, up: "Vectors", kept: "Vectors", at: Place) -> "tuple[Vectors, Vectors]":
        """Return what a client sends instead of the vectors ``up`` of its reply, and what it keeps of ``kept``."""
        return up, kept

    def most(self, size: int, round: int) -> int:
        """Return how many numbers of a vector of ``size`` it may leave different from zero."""
        return size

    def server(self, mean: "Vectors", replies: int, at: Place) -> "Vectors":
        """Return what the server folds instead of the mean of this many replies."""
        return mean


def is_sparse(transforms: Sequence[ReplyTransform] | None) -> bool:
    """Whether these transforms leave replies that are mostly zeros."""
    return any(transform.sparse for transform in transforms or ())


def named(kind: str, field: str) -> str:
    """Return the name of a field of the reply of an exchange."""
    return f"{kind}_{field}"


@dataclass(frozen=True)
class TopK(ReplyTransform):
    """Sends only the largest ``share`` of the numbers of every vector, and adds the rest to the next reply.

    Error feedback (Stich et al. 2018): the rest is client state, ``residual_...``. The exchanges before the first round
    are sent whole. A vector counts as its values and their places, of 4 bytes each.
    """

    sparse = True

    share: float

    def __post_init__(self) -> None:
        if not is_finite(self.share) or isinstance(self.share, bool) or not 0 < self.share <= 1:
            raise UsageError(f"share of TopK is {shown(self.share)}, but must be above 0 and at most 1")

    def keeps(self, x: "Vector", fields: Sequence[str]) -> "dict[str, Vector]":
        """Return a residual of zeros for every vector."""
        return {f"residual_{field}": 0 * x for field in fields}

    def most(self, size: int, round: int) -> int:
        """Return the share of them; before the first round, all."""
        return size if round < 0 else max(1, math.ceil(self.share * size))

    def client(self, up: "Vectors", kept: "Vectors", at: Place) -> "tuple[Vectors, Vectors]":
        """Send the largest numbers and keep the others."""
        if at.round < 0:
            return up, kept
        sent, rest = {}, dict(kept)
        for field, vector in up.items():
            residual = f"residual_{named(at.kind, field)}"
            if residual not in kept:
                raise UsageError(f"round {at.round} sends {field} in {at.kind}, but none of the first rounds did")
            whole = vector + kept[residual]
            places = whole.abs().topk(self.most(len(whole), at.round)).indices
            sent[field] = (0 * whole).index_copy_(0, places, whole[places])
            rest[residual] = whole - sent[field]
        return sent, rest


@dataclass(frozen=True)
class Privacy(ReplyTransform):
    """Differential privacy of the clients: each reply is scaled down to at most ``clip``, and noise is added.

    The noise has the standard deviation ``noise`` times ``clip``. ``mode="central"``: the server adds it once to the
    sum of the replies, so that the model hides who took part. ``mode="local"``: every client adds it to its own reply,
    so that it need not trust the server. All vectors of a reply count together, in every exchange, also in
    those before the first round.
    """

    clip: float
    noise: float
    mode: str = "central"

    def __post_init__(self) -> None:
        for name, least in (("clip", "above"), ("noise", "at least")):
            value = getattr(self, name)
            if not is_finite(value) or isinstance(value, bool) or value < 0 or (least == "above" and value == 0):
                raise UsageError(f"{name} of Privacy is {shown(value)}, but must be finite and {least} 0")
        if self.mode not in ("central", "local"):
            raise UsageError(f"mode of Privacy is {shown(self.mode)}, but must be central or local")

    def check(self, weights: str, statistics: bool) -> None:
        """Refuse what would leak more than the noise hides."""
        if weights != "uniform":
            raise UsageError(f"Privacy needs clients of equal weight, but weights is {weights}")
        if statistics:
            raise UsageError("Privacy does not cover BatchNorm's statistics, but the model has some; use GroupNorm")

    def client(self, up: "Vectors", kept: "Vectors", at: Place) -> "tuple[Vectors, Vectors]":
        """Scale the reply down and, in local mode, add noise."""
        norm = math.sqrt(sum(float(vector.double().norm()) ** 2 for vector in up.values()))
        if not math.isfinite(norm):  # there is nothing to scale down by: nothing of it is sent
            up, norm = {name: vector.new_zeros(len(vector)) for name, vector in up.items()}, 0.0
        scale = min(1.0, self.clip / norm) if norm else 1.0
        up = {name: scale * vector for name, vector in up.items()}
        return (self._noisy(up, self.noise * self.clip, at) if self.mode == "local" else up), kept

    def server(self, mean: "Vectors", replies: int, at: Place) -> "Vectors":
        """Add the noise of the sum to the mean."""
        return self._noisy(mean, self.noise * self.clip / replies, at) if self.mode == "central" else mean

    def _noisy(self, vectors: "Vectors", deviation: float, at: Place) -> "Vectors":
        drawn = at.normal(vectors)
        return {name: vector + deviation * drawn[name] for name, vector in vectors.items()}

    def epsilon(
        self, algorithm: "Algorithm[Any, Any]", *, rounds: int, clients: int, cohort: int | None, delta: float,
        seed: int = 0,
    ) -> float:  # fmt: skip
        """Return epsilon of (epsilon, delta)-differential privacy after a run; needs the extra ``privacy``.

        One client's data may be replaced by any other, so a sum changes by at most 2 clip. Central: Rényi accounting of
        cohorts drawn without replacement. Local: that of the client who answers most often in this run. It holds for
        noise from a secret seed.
        """
        from kedge.keyed import sample_cohort

        try:
            import dp_accounting as dp  # type: ignore[import-untyped]
        except ImportError:
            raise UsageError(
                "epsilon needs dp-accounting, which is not installed; run `pip install 'kedge[privacy]'`"
            ) from None
        if not self.noise:
            return math.inf
        rounds, size = whole("rounds", rounds, 1), cohort or clients
        accountant = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
        everyone, sampled = _asked(algorithm, rounds, seed)
        if self.mode == "local":
            answers = [everyone] * clients
            for round, exchanges in enumerate(sampled):
                for client in sample_cohort(seed, round, clients, size):
                    answers[client] += exchanges
            accountant.compose(dp.GaussianDpEvent(self.noise / 2), max(answers))
            return float(accountant.get_epsilon(delta))
        if everyone:
            accountant.compose(dp.GaussianDpEvent(self.noise / 2), everyone)
        for exchanges, times in Counter(filter(None, sampled)).items():
            # One cohort answers all exchanges of its round: that is one release with less noise, sampled once.
            release = dp.GaussianDpEvent(self.noise / 2 / math.sqrt(exchanges))
            whole_cohort = size == clients
            accountant.compose(
                release if whole_cohort else dp.SampledWithoutReplacementDpEvent(clients, size, release), times
            )
        return float(accountant.get_epsilon(delta))


def _asked(algorithm: "Algorithm[Any, Any]", rounds: int, seed: int) -> tuple[int, list[int]]:
    """Return how many exchanges of a run ask everyone and, for each round, how many ask its cohort or one of it.

    The opening asks everyone. An exchange that sends nothing up is counted too.
    """
    kinds = [[each.cohort for each in algorithm.at(round).exchanges(round, seed)] for round in range(rounds)]
    everyone = len(algorithm.at(-1).opening()) + sum(own.count("everyone") for own in kinds)
    return everyone, [len(own) - own.count("everyone") for own in kinds]


def wire_size(message: "Sequence[Tensor]", parameters: int, hidden: int, sparse: bool = False) -> int:
    """Return the size of a message whose vectors, as large as the model, lack the ``hidden`` numbers.

    If ``sparse``, a vector is sent as `packed` where that is smaller.
    """
    size = 0
    for value in message:
        whole = value.nbytes - (hidden * value.element_size() if value.numel() == parameters else 0)
        few = int(value.count_nonzero()) * (value.element_size() + INDEX) if sparse and value.ndim == 1 else whole
        size += min(whole, few)
    return size


def packed(vector: "Vector") -> "tuple[Tensor, Tensor]":
    """Return the places, as 32-bit numbers, and the values of what is not zero, for a wire."""
    import torch

    places = vector.nonzero().squeeze(1)
    return places.to(torch.int32), vector[places]


def unpacked(places: "Tensor", values: "Tensor", size: int) -> "Vector":
    """Return the vector that `packed` was made of."""
    return values.new_zeros(size).index_copy_(0, places.long(), values)


KINDS: dict[str, Callable[..., Any]] = {"TopK": TopK, "Privacy": Privacy}
"""The transforms that a configuration may name."""


def read(value: Any) -> tuple[ReplyTransform, ...] | None:
    """Return the transforms that a value stands for: one, several, or texts such as TopK(0.01)."""
    if value is None:
        return None
    if isinstance(value, ReplyTransform):
        return (value,)
    if isinstance(value, str) and (call := parsed(value)) is not None:
        return read(call.made("reply transform", {**KINDS, "chain": lambda *parts: list(parts)}))
    if isinstance(value, list | tuple):
        return tuple(one for each in value for one in read(each) or ()) or None
    raise UsageError(f"reply_transforms is {shown(value)}, but must be TopK(share), Privacy(clip, noise), or a list")


def text(transforms: tuple[ReplyTransform, ...]) -> str:
    """Return transforms as a configuration writes them."""
    return repr(transforms[0]) if len(transforms) == 1 else f"chain({', '.join(map(repr, transforms))})"
