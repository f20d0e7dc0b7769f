"""Quadratic clients with a known optimum, smoothness, noise and heterogeneity.

Client i has f_i(x) = 1/2 (x - b_i)' A_i (x - b_i), and its sample j adds the linear term <xi_ij, x>. Quadratics
that differ in A_i and b_i are the standard worst case of client drift: Karimireddy et al., "SCAFFOLD: Stochastic
Controlled Averaging for Federated Learning" (ICML 2020), and Woodworth et al., "Minibatch vs Local SGD for
Heterogeneous Distributed Learning" (NeurIPS 2020).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from kedge.checks import affordable, real, whole, whole_seed
from kedge.errors import shown, unknown
from kedge.problem.federation import Federation

SAMPLES = 64
"""Of every client, by default."""


class QuadraticModel(nn.Module):
    """The point ``x``; its output for samples [client index, xi] is F(x; xi), one value per sample."""

    def __init__(self, hessians: Tensor, centers: Tensor, start: Tensor) -> None:
        super().__init__()
        self.x = nn.Parameter(start.clone())
        # Not buffers: buffers are part of the state that clients send and a server averages.
        self.hessians = hessians
        self.centers = centers

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.hessians, self.centers = fn(self.hessians), fn(self.centers)
        return self

    def forward(self, features: Tensor) -> Tensor:
        """Return F(x; xi) of each row of ``features``."""
        client = features[:, 0].long()
        offset = self.x - self.centers[client]
        values = torch.einsum("bi,bij,bj->b", offset, self.hessians[client], offset) / 2
        return values + features[:, 1:] @ self.x


def mean_output(output: Tensor, targets: Tensor) -> Tensor:
    """The loss of a model whose output is already the loss of each sample."""
    return output.mean()


@dataclass(frozen=True, eq=False)
class Quadratics:
    """A quadratic problem: f is the plain mean of the f_i, and all clients have equally many samples.

    ``optimum`` minimises f, ``smoothness`` is the largest eigenvalue of any A_i, ``sigma`` the root mean square
    of the noise of a sample's gradient, and ``zeta`` that of the gradients of the f_i at the optimum.
    """

    federation: Federation
    model: QuadraticModel
    loss: Callable[[Tensor, Tensor], Tensor]
    hessians: Tensor
    centers: Tensor
    optimum: Tensor
    smoothness: float
    sigma: float
    zeta: float

    def __repr__(self) -> str:
        facts = f"smoothness {self.smoothness:.4g}, sigma {self.sigma:.4g}, zeta {self.zeta:.4g}"
        return f"Quadratics({len(self.federation)} clients, {len(self.optimum)} parameters, {facts})"


def _rotations(count: int, dim: int, rng: torch.Generator) -> Tensor:
    rotations: Tensor = torch.linalg.qr(torch.randn(count, dim, dim, generator=rng, dtype=torch.float64)).Q
    return rotations


def _symmetric(rotations: Tensor, spectra: Tensor) -> Tensor:
    return rotations @ (spectra.unsqueeze(-1) * rotations.mT)


def _uniform(low: float, high: float, count: int, dim: int, rng: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(count, dim, generator=rng, dtype=torch.float64)


def _shared(clients: int, dim: int, rng: torch.Generator) -> Tensor:
    spectrum = torch.linspace(0.1, 1.0, dim, dtype=torch.float64)
    return _symmetric(_rotations(1, dim, rng), spectrum).expand(clients, dim, dim).clone()


def _mild(clients: int, dim: int, rng: torch.Generator) -> Tensor:
    # By Weyl's inequality the sum of the two has its spectrum in [0.3, 1].
    common = _symmetric(_rotations(1, dim, rng), _uniform(0.4, 0.9, 1, dim, rng))
    return common + _symmetric(_rotations(clients, dim, rng), _uniform(-0.1, 0.1, clients, dim, rng))


def _large(clients: int, dim: int, rng: torch.Generator) -> Tensor:
    spectra = _uniform(math.log(0.02), 0.0, clients, dim, rng).exp()
    return _symmetric(_rotations(clients, dim, rng), spectra)


# The Hessians, and the root mean square distance of the centers from their common mean.
_HETEROGENEITY: dict[str, tuple[Callable[[int, int, torch.Generator], Tensor], float]] = {
    "shared": (_shared, 1.0),
    "mild": (_mild, 1.0),
    "large": (_large, 30.0),
}


def quadratics(
    clients: int = 10,
    dim: int = 20,
    *,
    heterogeneity: str = "mild",
    sigma: float = 0.0,
    samples: int = SAMPLES,
    seed: int = 0,
) -> Quadratics:
    """Make a quadratic problem in float64 whose model starts at the origin.

    ``heterogeneity``: "shared" (one Hessian with spectrum in [0.1, 1], centers spread by 1), "mild" (Hessians
    with spectra in [0.3, 1] near a common one, centers spread by 1) or "large" (independent Hessians with
    spectra in [0.02, 1], centers spread by 30). Within each client the noise vectors of the ``samples`` have
    mean 0 and mean squared norm ``sigma**2``, exactly.
    """
    if heterogeneity not in _HETEROGENEITY:
        raise unknown("heterogeneity", heterogeneity, _HETEROGENEITY)
    clients, dim = whole("clients", clients, 1), whole("dim", dim, 1)
    sigma = real("sigma", sigma, positive=False)
    samples = whole("samples (two at least, if sigma is not 0)", samples, 2 if sigma else 1)
    # At its peak: three times the Hessians (themselves, a rotation and a product), and the noise with its copy.
    numbers = clients * dim * (3 * dim + 2 * samples)
    affordable(f"quadratics of {shown(clients)} clients and dim {shown(dim)}", 8 * numbers)
    rng = torch.Generator().manual_seed(whole_seed(seed))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    make_hessians, spread = _HETEROGENEITY[heterogeneity]
    hessians = make_hessians(clients, dim, rng)
    # The common term moves the optimum away from the start at the origin.
    centers = spread * (normal(clients, dim) + normal(dim)) / math.sqrt(dim)
    optimum = torch.linalg.solve(hessians.sum(0), (hessians @ centers.unsqueeze(-1)).sum(0)).squeeze(-1)
    gradients = (hessians @ (optimum - centers).unsqueeze(-1)).squeeze(-1)

    noise = torch.zeros(clients, samples, dim, dtype=torch.float64)
    if sigma:
        noise = normal(clients, samples, dim)
        noise -= noise.mean(1, keepdim=True)
        noise *= sigma / noise.square().sum(-1, keepdim=True).mean(1, keepdim=True).sqrt()
    federation = _federation(noise)
    if samples == SAMPLES:
        federation.origin = {
            "dataset": "quadratics", "clients": clients, "dim": dim, "heterogeneity": heterogeneity, "sigma": sigma,
            "seed": seed,
        }  # fmt: skip
    return Quadratics(
        federation=federation,
        model=QuadraticModel(hessians, centers, torch.zeros(dim, dtype=torch.float64)),
        loss=mean_output,
        hessians=hessians,
        centers=centers,
        optimum=optimum,
        smoothness=float(torch.linalg.eigvalsh(hessians).max()),
        sigma=sigma,
        zeta=float(gradients.square().sum(-1).mean().sqrt()),
    )


def _federation(noise: Tensor) -> Federation:
    """One sample per noise vector; the test set is one noiseless sample per client, so its loss is f(x)."""
    clients, samples, dim = noise.shape
    names = torch.arange(clients, dtype=torch.float64)
    named = torch.cat([names.repeat_interleave(samples).unsqueeze(1), noise.flatten(0, 1)], dim=1)
    still = torch.cat([names.unsqueeze(1), torch.zeros(clients, dim, dtype=torch.float64)], dim=1)
    return Federation.from_indices(
        named,
        torch.zeros(len(named), dtype=torch.float64),
        torch.arange(len(named)).view(clients, samples),
        test=(still, torch.zeros(clients, dtype=torch.float64)),
    )
