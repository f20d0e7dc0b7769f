"""Local Adam: the clients' solver, under an algorithm that only averages where they end."""

from dataclasses import dataclass

import kedge
from kedge.local_update import Memory, Step


@dataclass(frozen=True)
class LocalAdam(kedge.LocalUpdate):
    """Adam whose moments start from zero in every round."""

    solver = True  # x moves along something else than the direction

    decay: float = 0.9
    square_decay: float = 0.999

    def begin(self, x: kedge.Vector) -> Memory:
        """Return the moments before the first step."""
        return 0 * x, 0 * x

    def step(self, direction: kedge.Vector, memory: Memory, step: Step) -> tuple[kedge.Vector, Memory]:
        """Return what x moves along, and the new moments."""
        mean = self.decay * memory[0] + (1 - self.decay) * direction
        square = self.square_decay * memory[1] + (1 - self.square_decay) * direction**2
        scale = (square / (1 - self.square_decay ** (step.k + 1))).sqrt() + 1e-8
        return mean / (1 - self.decay ** (step.k + 1)) / scale, (mean, square)


if __name__ == "__main__":
    federation, model = kedge.load_federation("digits", clients=40), kedge.build_model("mlp", (64,), 10)
    result = kedge.simulate(model, federation, kedge.FedProx(eta=0.002, mu=0.1), rounds=30, local_update=LocalAdam())
    print(result.history[-1]["test_accuracy"])
