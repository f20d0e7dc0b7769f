"""The general engine: any PyTorch module, with autograd."""

from collections.abc import Callable
from functools import partial

from kedge.client import Autograd, FlatModule
from kedge.round import Done, Work
from kedge.simulator.engines.base import Engine, Setup


class ModuleEngine:
    """Runs any module with autograd."""

    name = "module"

    def __init__(self, setup: Setup) -> None:
        flat = FlatModule(setup.model, setup.device)
        self._steps = setup.steps(flat, Autograd(flat, setup.loss))

    def group(self, batch_size: int | None) -> int:
        """Return how many clients a group may have."""
        return 1

    def run(self, work: Work) -> Done:
        """Run a client's local steps."""
        return self._steps.run(work)


def builder(setup: Setup) -> Callable[[], Engine]:
    """Return a builder of engines: they run whatever torch can differentiate."""
    return partial(ModuleEngine, setup)
