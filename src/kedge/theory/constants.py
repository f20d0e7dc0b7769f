"""The constants of a problem, as the theorems name them."""

import math
import numbers
from dataclasses import dataclass
from typing import Any

from kedge.checks import real, whole
from kedge.errors import UsageError, shown


@dataclass(frozen=True)
class Constants:
    """What the theorems know about a problem and its federation.

    >>> import kedge
    >>> kedge.theory.Constants(L=1, delta=1, sigma=0.5, clients=100, cohort=10, local_steps=16).S
    10
    """

    L: float
    """Smoothness: ∇f_i is L-Lipschitz for every client."""
    delta: float
    """Δ = f(x^0) - min f."""
    sigma: float = 0.0
    """Root mean square of the noise of one minibatch gradient."""
    zeta: float = math.inf
    """Heterogeneity: mean_i |∇f_i - ∇f|² is at most ζ² everywhere; inf means that there is no bound."""
    G: float = math.inf
    """The largest norm of any client's gradient; inf means that there is no bound."""
    G0: float | None = None
    """G_0 = mean_i |∇f_i(x^0)|²; None is its upper bound ζ² + 2LΔ."""
    clients: int = 10
    """N."""
    cohort: int | None = None
    """S, the clients per round; None is all of them."""
    local_steps: int = 16
    """K."""
    L_sample: float | None = None
    """Smoothness of every minibatch loss, for the theorems on variance reduction; None is L."""

    def __post_init__(self) -> None:
        for name, positive, boundless in (
            ("L", True, False), ("delta", True, False), ("sigma", False, False), ("zeta", False, True),
            ("G", False, True), ("G0", False, True), ("L_sample", True, False),
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _number(name, value, positive=positive, boundless=boundless))
        clients = whole("clients", self.clients, 1)
        if self.cohort is not None and whole("cohort", self.cohort, 1) > clients:
            raise UsageError(f"cohort is {self.cohort}, but there are {clients} clients")
        whole("local_steps", self.local_steps, 1)
        if self.L_sample is not None and self.L_sample < self.L * (1 - 1e-9):
            raise UsageError(
                f"L_sample is {self.L_sample:g}, but must be at least L, which is {self.L:g}: a mean is as smooth as "
                "its least smooth part"
            )

    @property
    def N(self) -> int:  # noqa: N802
        """All clients."""
        return self.clients

    @property
    def S(self) -> int:  # noqa: N802
        """The clients per round."""
        return self.clients if self.cohort is None else self.cohort

    @property
    def K(self) -> int:  # noqa: N802
        """The local steps."""
        return self.local_steps

    @property
    def sample_smoothness(self) -> float:
        """L of the minibatch losses."""
        return self.L if self.L_sample is None else self.L_sample

    @property
    def initial_gradients(self) -> float:
        """G_0, or its upper bound: |∇f(x^0)|² is at most 2LΔ."""
        return self.zeta**2 + 2 * self.L * self.delta if self.G0 is None else self.G0


def _number(name: str, value: Any, *, positive: bool, boundless: bool) -> float:
    if boundless and isinstance(value, numbers.Real) and value == math.inf:
        return math.inf
    try:
        return real(name, value, positive=positive)
    except UsageError as error:
        raise UsageError(f"{error}, or inf") if boundless else error from None


def constants_of(value: Any) -> Constants:
    """Return constants: as given, or those that `measure` found."""
    found = value.constants() if hasattr(value, "constants") else value
    if not isinstance(found, Constants):
        raise UsageError(f"constants is {shown(value)}, but must be kedge.theory.Constants or what measure returned")
    return found
