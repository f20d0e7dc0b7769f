"""The server's checkpoint: one file, replaced atomically after every round, before any client is told."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import safetensors
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from kedge.errors import UsageError
from kedge.files import make_directory, refuse_link
from kedge.flower.arrays import Spec
from kedge.flower.stream import write_tensors
from kedge.flower.wire import Tag
from kedge.round import Moment

FILE = "federation.safetensors"

FORMAT = 1
"""The format that is written; others are refused."""

_Count = Annotated[int, Field(ge=0, le=2**53)]


class Progress(BaseModel):
    """Where a federation is, apart from the vectors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format: Annotated[int, Field(ge=FORMAT, le=FORMAT)] = FORMAT
    identity: Annotated[str, Field(pattern="^[0-9a-f]{8}$")]  # tells this experiment from others of its name
    epoch: Annotated[int, Field(ge=1, le=999_999)]  # how often the server has been started
    generation: Annotated[int, Field(ge=1)]
    opened: bool
    round: _Count
    bytes_down: _Count
    bytes_up: _Count
    gradients: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    versions: dict[int, Tag]
    names: dict[Annotated[str, Field(max_length=100)], _Count]
    sizes: dict[int, _Count]


@dataclass(frozen=True)
class Checkpoint:
    """The file."""

    directory: Path

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.directory / FILE

    def save(self, standing: Progress, moment: Moment) -> None:
        """Replace the checkpoint."""
        make_directory(self.directory)
        write_tensors(self.path, _named(moment), standing.model_dump_json())

    def load(self, like: Moment) -> tuple[Progress, Moment] | None:
        """Return the checkpoint, whose vectors must have the form of ``like``; None if there is none."""
        refuse_link(self.path)
        if not self.path.exists():
            return None
        try:
            with safetensors.safe_open(self.path, "pt") as file:
                about = json.loads((file.metadata() or {})["kedge"])
                standing = Progress.model_validate_json(json.dumps(about))
                found: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, ValueError, KeyError, ValidationError, safetensors.SafetensorError) as error:
            raise UsageError(f"{self.path} cannot be read: {str(error).splitlines()[0][:200]}") from None
        if _forms(found) != _forms(_named(like)):
            raise UsageError(f"{self.path} holds the vectors of a different model or algorithm")
        state = type(like.state)(*(found[f"server.{name}"] for name in like.state._fields))
        counts = {name: getattr(standing, name) for name in ("bytes_down", "bytes_up", "gradients")}
        return standing, Moment(standing.round, state, found["buffers"], **counts)


def _named(moment: Moment) -> dict[str, Tensor]:
    return {f"server.{name}": value for name, value in moment.state._asdict().items()} | {"buffers": moment.buffers}


def _forms(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: Spec.of(value) for name, value in tensors.items()}
