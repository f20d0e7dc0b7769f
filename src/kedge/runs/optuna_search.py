"""Points that optuna proposes, kept in its own database in the sweep's directory. Optuna is an extra."""

import importlib.util
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kedge.errors import UsageError
from kedge.runs.grid import Axis, Choices, Point, label

FILE = "optuna.db"


def require_optuna() -> None:
    """Say what to do if it is missing."""
    if importlib.util.find_spec("optuna") is None:
        raise UsageError("--search optuna needs optuna, which is not installed; run `pip install 'kedge[optuna]'`")


class Study:
    """What was tried, how it went, and what to try next."""

    def __init__(self, path: Path, axes: Mapping[str, Axis], maximize: bool, seed: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._axes = axes
        self._worst = -math.inf if maximize else math.inf
        storage = optuna.storages.RDBStorage(f"sqlite:///{path.absolute() / FILE}")
        self._study = optuna.create_study(
            storage=storage, study_name="kedge", direction="maximize" if maximize else "minimize", load_if_exists=True
        )
        # The first proposals are random: a resumed search must not repeat them.
        self._study.sampler = optuna.samplers.TPESampler(seed=seed + len(self._study.get_trials(deepcopy=False)))
        self._distributions = {key: _distribution(axis) for key, axis in axes.items()}

    def trials(self) -> dict[int, Point]:
        """Return all that was proposed so far, by number."""
        return {trial.number: self._point(trial.params) for trial in self._study.get_trials(deepcopy=False)}

    def ask(self, count: int) -> dict[int, Point]:
        """Return new proposals."""
        asked = (self._study.ask(self._distributions) for _ in range(count))
        return {trial.number: self._point(trial.params) for trial in asked}

    def tell(self, number: int, value: float | None) -> None:
        """Report the result of a proposal, once; None is a run that diverged, and counts as worst."""
        self._study.tell(number, self._worst if value is None else value, skip_if_finished=True)

    def _point(self, params: Mapping[str, Any]) -> Point:
        return {key: _meant(axis, params[key]) for key, axis in self._axes.items()}


def _distribution(axis: Axis) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(axis, Choices):
        return CategoricalDistribution([label(value) for value in axis.values])
    if axis.whole:
        return IntDistribution(int(axis.low), int(axis.high), axis.log)
    return FloatDistribution(axis.low, axis.high, axis.log)


def _meant(axis: Axis, value: Any) -> Any:
    return next(v for v in axis.values if label(v) == value) if isinstance(axis, Choices) else value
