"""What a loader is given and what it returns."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
from torch import Tensor

Progress = Callable[[str, int, int | None], None]
"""Called with a file's name, the bytes received so far and, if the server tells, the bytes in all."""


@dataclass(frozen=True, eq=False)
class DataSet:
    """Training and test samples as (features, labels); ``users`` names the user of each training sample."""

    name: str
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    classes: int
    users: npt.NDArray[Any] | None = None


@dataclass(frozen=True)
class Source:
    """Where a loader finds files, whether it may download them, and the seed of what it draws."""

    root: Path
    download: bool
    seed: int
    progress: Progress | None
