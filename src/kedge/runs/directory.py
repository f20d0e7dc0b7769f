"""A run's directory: plain files that anything can read, written so that a crash leaves them readable."""

import json
import os
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from kedge.errors import UsageError


class RunDirectory:
    """`config.toml`, `metrics.jsonl`, `model.safetensors` and `summary.json` of one run."""

    def __init__(self, path: str | os.PathLike[str], config: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        """Check that the directory can be made; nothing is written before `create`."""
        self.path = Path(path)
        self._config = config
        try:
            existing = next(p for p in [self.path, *self.path.absolute().parents] if p.exists())
        except OSError as error:
            raise UsageError(f"out is {str(self.path)[:60]}..., but it cannot be made: {error.strerror}") from error
        if not existing.is_dir():
            raise UsageError(f"out is {self.path}, but {existing} is not a directory")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise UsageError(f"out is {self.path}, but {existing} cannot be written")
        if existing == self.path and any(self.path.iterdir()):
            raise UsageError(f"out is {self.path}, but that directory is not empty; nothing was overwritten")

    def create(self) -> None:
        """Make the directory and write the complete configuration, if there is one."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if self._config is not None:
                write_atomically(self.path / "config.toml", to_toml(self._config).encode())
        except OSError as error:
            raise UsageError(f"out is {self.path}, but it cannot be written: {error.strerror}") from error

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Add a line for an evaluated round."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def write_model(self, state: Mapping[str, Tensor]) -> None:
        """Write the model's parameters and buffers."""
        tensors = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in state.items()}
        write_atomically(self.path / "model.safetensors", save(tensors))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write what the run came to."""
        write_atomically(self.path / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside and rename: whoever reads sees the old file or the new one, whole."""
    beside = path.with_name(path.name + ".part")
    beside.write_bytes(content)
    beside.replace(path)


def to_toml(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Write flat sections of strings, numbers, booleans and lists of them; None is left out."""
    lines = []
    for section, values in sections.items():
        lines += [f"[{section}]", *(f"{key} = {_toml(v)}" for key, v in values.items() if v is not None), ""]
    return "\n".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    # JSON's booleans, numbers and strings are TOML's, but for DEL, which TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def environment() -> dict[str, str]:
    """Return the versions that a result depends on."""
    return {"kedge": version("kedge"), "torch": torch.__version__}
