"""What a data set is: its facts, what its loader gets, and what that returns."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
from torch import Tensor

from kedge.problem.quadratic import Quadratics

Progress = Callable[[str, int, int | None], None]
"""Called with a file's name, the bytes received so far and, if the server says, the total."""


@dataclass(frozen=True, eq=False)
class DataSet:
    """Training and test samples as (features, labels); ``users`` names the user of each training sample."""

    name: str
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor] | None
    classes: int
    users: npt.NDArray[Any] | None = None


@dataclass(frozen=True)
class Source:
    """Where a loader finds files, whether it may download them, and the seed of what it draws."""

    root: Path
    download: bool
    seed: int
    progress: Progress | None
    named: bool = False  # whether the user has said where: then kedge looks nowhere else


@dataclass(frozen=True)
class Entry:
    """A data set by its facts, known before anything is loaded. Facts that depend on its options are None.

    Either ``load`` returns samples, which a partition divides between clients, or ``make`` returns a whole problem:
    clients, model and loss, from ``clients`` and ``seed``. Its other optional parameters are the data set's options.
    """

    load: Callable[..., DataSet] | None = None
    make: Callable[..., Quadratics] | None = None
    shape: tuple[int, ...] | None = None  # of a sample
    train: int | None = None  # samples
    test: int | None = None
    classes: int | None = None  # None: there are no labels, and no accuracy
    model: str = "mlp"  # the default
    partition: str = "dirichlet"  # the default
    differ_by: str = "partition"  # the setting that controls how the clients differ
    known: bool = True  # whether these are its facts; of a user's own data they are not

    @property
    def options(self) -> frozenset[str]:
        """The names of its own options."""
        function = self.load or self.make
        if function is None:
            return frozenset()
        parameters = inspect.signature(function).parameters.values()
        return frozenset(p.name for p in parameters if p.default is not p.empty) - {"clients", "seed"}
