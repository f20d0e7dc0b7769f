"""Problems whose constants are known: quadratics of any heterogeneity, and robust regression, which is not convex."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from kedge.theory.constants import Constants

DIM = 10


class World(ABC):
    """Clients with exact gradients, and the constants of their losses."""

    sigma: float
    """Root mean square of the noise that is added to a gradient."""
    start: Tensor
    """x^0."""

    @property
    @abstractmethod
    def clients(self) -> int:
        """N."""

    @property
    @abstractmethod
    def smoothness(self) -> float:
        """L."""

    @property
    @abstractmethod
    def gap(self) -> float:
        """Δ, or an upper bound."""

    @abstractmethod
    def gradients(self, points: Tensor, rows: Tensor) -> Tensor:
        """∇f_i of the clients ``rows`` (S, P) at ``points`` (S, P, d), for P replicas at once."""

    def mean_gradient(self, x: Tensor) -> Tensor:
        """∇f at x (P, d)."""
        rows = torch.arange(self.clients).unsqueeze(1).expand(-1, len(x))
        return self.gradients(x.expand(self.clients, *x.shape), rows).mean(0)

    def constants(self, cohort: int | None, local_steps: int) -> Constants:
        """Return the constants, as the theorems take them."""
        rows = torch.arange(self.clients).unsqueeze(1)
        own = self.gradients(self.start.expand(self.clients, 1, -1), rows)
        return Constants(
            L=self.smoothness, delta=self.gap, sigma=self.sigma, G0=float(own.square().sum(-1).mean()),
            clients=self.clients, cohort=cohort, local_steps=local_steps,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Quadratic(World):
    """∇f_i(x) = a_i (x - x*) - ζ v_i, elementwise; the v_i have mean 0, so f does not depend on ζ."""

    curvatures: Tensor
    directions: Tensor
    zeta: float
    sigma: float
    start: Tensor

    @property
    def clients(self) -> int:
        """N."""
        return len(self.curvatures)

    @property
    def smoothness(self) -> float:
        """L."""
        return float(self.curvatures.max())

    @property
    def gap(self) -> float:
        """Δ, exactly: x* is 0."""
        return float((self.curvatures.mean(0) * self.start.square()).sum() / 2)

    def gradients(self, points: Tensor, rows: Tensor) -> Tensor:
        """∇f_i."""
        return self.curvatures[rows] * points - self.zeta * self.directions[rows]


def quadratic(
    clients: int = 10, *, zeta: float = 1.0, sigma: float = 0.0, alike: bool = False, seed: int = 0, low: float = 0.05
) -> Quadratic:
    """Make clients with curvatures in [low, 1], all ``alike`` or not, and a start at distance 1 from the optimum."""
    rng = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=rng, dtype=torch.float64)

    curvatures = torch.exp(math.log(low) * draw(clients, DIM))
    curvatures[0, 0] = 1.0  # L is exactly 1
    if alike:
        curvatures = torch.exp(math.log(low) * torch.linspace(0, 1, DIM, dtype=torch.float64)).expand(clients, DIM)
    directions = draw(clients, DIM) - 0.5
    directions -= directions.mean(0)
    size = directions.square().sum(1).mean().sqrt()
    directions = directions / size if clients > 1 else directions
    start = draw(DIM) + 0.5
    return Quadratic(curvatures.clone(), directions, zeta, sigma, start / start.norm())


@dataclass(frozen=True, eq=False)
class Robust(World):
    """Robust regression: f_i(x) = mean_j ρ(a_ij x - b_ij) with ρ(t) = t²/(1 + t²), which is not convex."""

    features: Tensor
    targets: Tensor
    sigma: float
    start: Tensor

    @property
    def clients(self) -> int:
        """N."""
        return len(self.targets)

    @property
    def smoothness(self) -> float:
        """L: |ρ''| is at most 2."""
        gram = self.features.mT @ self.features / self.features.shape[1]
        return float(2 * torch.linalg.eigvalsh(gram).max())

    @property
    def gap(self) -> float:
        """At least Δ: ρ is never negative."""
        rest = (self.features @ self.start - self.targets).square()
        return float((rest / (1 + rest)).mean())

    def gradients(self, points: Tensor, rows: Tensor) -> Tensor:
        """∇f_i."""
        features = self.features[rows]
        rest = torch.einsum("spnd,spd->spn", features, points) - self.targets[rows]
        return torch.einsum("spnd,spn->spd", features, 2 * rest / (1 + rest.square()).square()) / features.shape[2]


def robust(clients: int = 10, *, sigma: float = 0.0, seed: int = 0, samples: int = 12) -> Robust:
    """Make clients whose true parameters differ and whose targets have outliers."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    features = normal(clients, samples, DIM) / math.sqrt(DIM)
    truth = normal(1, DIM) + normal(clients, DIM)
    targets = torch.einsum("nsd,nd->ns", features, truth.expand(clients, DIM)) + 0.1 * normal(clients, samples)
    targets[:, 0] += 5.0
    return Robust(features, targets, sigma, torch.zeros(DIM, dtype=torch.float64))
