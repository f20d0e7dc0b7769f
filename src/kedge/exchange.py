"""An exchange: server -> cohort -> server, once. A round is a tuple of them.

A gradient query (the full batch for MIME, B minibatches for c_i^0) is an exchange of one step with a large
batch, so that no engine needs a special feature for it. All methods are pure and elementwise in the vectors:
the same object serves (d,) vectors on one client and (S, d) cohorts in a simulator. The server sees only the
field-wise mean of the replies.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from torch import Tensor

from kedge.direction import Direction, Vector

Cohort = Literal["sampled", "everyone", "first"]
"""Who takes part: the round's sample, all N clients, or the client that was drawn first (uniform in the sample)."""


class Effort(NamedTuple):
    """What a client computes: ``steps`` steps, each on the union of ``minibatches`` minibatches."""

    steps: int
    minibatches: int | None = 1  # None: the client's whole data


class Heard(NamedTuple):
    """What a server knows about the replies it folds, in addition to their mean."""

    share: float  # replies / N
    local_steps: float  # K; its mean over the clients where they differ


class Needs(NamedTuple):
    """What a reply reads of the local steps beyond where they ended, as found by `costs.trace`."""

    mean_grad: bool = False
    last_direction: bool = False


class NotKeptError(Exception):
    """A rule read something that the local steps were not asked to keep."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the local steps did not keep {name}")
        self.name = name


@dataclass(frozen=True)
class Local:
    """The result of local steps: (d,) for one client, (S, d) for a cohort."""

    start: Vector  # x_i^{r,0}
    x: Vector  # x_i^{r,K}
    eta: float
    steps: Tensor  # K_i
    only_direction: Vector | None = None  # of one step, where there was one
    kept_mean_grad: Vector | None = None
    kept_last_direction: Vector | None = None

    @property
    def mean_direction(self) -> Vector:
        """(x_i^{r,0} - x_i^{r,K}) / (eta K_i); of one step its direction, not a rounded difference."""
        if self.only_direction is not None:
            return self.only_direction
        return self.displacement.div_(self.eta * self.steps.clamp(min=1))

    @property
    def mean_grad(self) -> Vector:
        """1/K_i sum_k ∇F(x_i^{r,k}; ξ): the mean of the gradients at the local models."""
        return _kept("mean_grad", self.kept_mean_grad)

    @property
    def last_direction(self) -> Vector:
        """g_i^{r,K-1}."""
        return _kept("last_direction", self.kept_last_direction)

    @property
    def displacement(self) -> Vector:
        """x_i^{r,0} - x_i^{r,K}."""
        return self.start - self.x


def _kept(name: str, value: Vector | None) -> Vector:
    if value is None:
        raise NotKeptError(name)
    return value


class Down(Protocol):
    """Every message to a client carries at least the server's model, or is `Nothing`."""

    @property
    def x(self) -> Vector:
        """x^r."""
        ...


class Nothing(NamedTuple):
    """No state, or an empty message; a message down may be empty only if `start` does not need it."""


ServerT = TypeVar("ServerT", bound=tuple[Any, ...])
DownT = TypeVar("DownT", bound=Down)
ClientT = TypeVar("ClientT", bound=tuple[Any, ...])
UpT = TypeVar("UpT", bound=tuple[Any, ...])


class Exchange(ABC, Generic[ServerT, ClientT, DownT, UpT]):
    """Four rules, over NamedTuples of vectors: server state, client state, message down, reply."""

    cohort: Cohort = "sampled"

    @abstractmethod
    def broadcast(self, server: ServerT) -> DownT:
        """All that a client needs. A field that this round already sent, unchanged, is not sent again."""

    @abstractmethod
    def direction(self, down: DownT, client: ClientT) -> Direction:
        """g_i^{r,k}."""

    @abstractmethod
    def reply(self, down: DownT, client: ClientT, local: Local) -> tuple[UpT, ClientT]:
        """What goes up, and the client's new state. If the reply is lost, so is the new state."""

    @abstractmethod
    def fold(self, server: ServerT, up: UpT, heard: Heard) -> ServerT:
        """The server's new state from the mean reply."""

    def start(self, down: DownT, client: ClientT) -> Vector:
        """x_i^{r,0}: by default, the server's model."""
        return down.x

    def effort(self, base: Effort) -> Effort:
        """What a client computes, given a round of plain local training; by default, the same."""
        return base
