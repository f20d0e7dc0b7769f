"""FedSAM (Qu et al. 2022), and MoFedSAM: sharpness-aware gradients in every local step.

SAM needs the gradient at a second point that depends on the first gradient. An affine direction cannot say that; a
local update that changes the gradient can, and then composes with every algorithm.
"""

from collections.abc import Callable
from dataclasses import dataclass

import kedge


@dataclass(frozen=True)
class Sharp(kedge.LocalUpdate):
    """The gradient at x + rho g / |g|."""

    rho: float

    def gradient(self, x: kedge.Vector, at: Callable[[kedge.Vector], kedge.Vector]) -> kedge.Vector:
        """Climb, then take the gradient of the same minibatch there."""
        gradient = at(x)
        return at(x + gradient * (self.rho / kedge.norms(gradient).clamp(min=1e-12)))


if __name__ == "__main__":
    federation = kedge.load_federation("digits", clients=40, partition="dirichlet", alpha=0.1)
    model = kedge.build_model("mlp", (64,), 10)
    for algorithm in (kedge.FedAvg(eta=0.1), kedge.FedAvgM(eta=0.5, beta=0.2)):
        result = kedge.simulate(model, federation, algorithm, rounds=30, batch_size=16, local_update=Sharp(0.05))
        print(algorithm, result.history[-1]["test_accuracy"])
