"""A run's directory: plain files that anything can read, written so that a crash leaves them readable."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from kedge.errors import UsageError
from kedge.files import PART, append, cut, flush, locked, make_directory, remove, write_atomically

Row = dict[str, float]


class RunDirectory:
    """`config.toml`, `metrics.jsonl`, `checkpoint/`, `model.safetensors` and `summary.json` of one run."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        resume: bool = False,
    ) -> None:
        """Check that the directory can be made or, to resume, holds a run; nothing is written before `opened`."""
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
        if existing == self.path:
            self._check_content(resume)

    def _check_content(self, resume: bool) -> None:
        holds = {p.name for p in self.path.iterdir()} - {self._configuration.name + PART}
        ours = holds & {self._configuration.name, self._metrics.name, self.checkpoints.name}
        if not holds or (ours and resume):
            return
        if not ours or self.summary() is not None:
            raise UsageError(f"out is {self.path}, but that directory is not empty; nothing was overwritten")
        way = f"`kedge resume {self.path}`" if self._configuration.name in ours else "simulate(..., resume=True)"
        raise UsageError(f"out is {self.path}, but that directory holds an unfinished run; {way} goes on with it")

    @property
    def checkpoints(self) -> Path:
        """Where the checkpoints are."""
        return self.path / "checkpoint"

    @property
    def _configuration(self) -> Path:
        return self.path / "config.toml"

    @property
    def _metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def _summary(self) -> Path:
        return self.path / "summary.json"

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Make the directory and hold it."""
        make_directory(self.path)
        with locked(self.path):
            yield

    def write_configuration(self) -> None:
        """Write the complete configuration, if there is one."""
        if self._config is not None:
            write_atomically(self._configuration, to_toml(self._config).encode())

    def metrics(self) -> list[Row]:
        """Return the rows so far. From the first line on that is not whole, as a crash may leave one, all is cut."""
        try:
            content = self._metrics.read_bytes()
        except FileNotFoundError:
            return []
        rows: list[Row] = []
        size = 0
        for line in content.splitlines(keepends=True):
            row = _row(line)
            if row is None or (rows and row["round"] <= rows[-1]["round"]):
                break
            rows.append(row)
            size += len(line)
        if size < len(content):
            cut(self._metrics, size)
        return rows

    def append_metrics(self, row: Row) -> None:
        """Add a line for an evaluated round."""
        append(self._metrics, (json.dumps(row) + "\n").encode())

    def flush_metrics(self) -> None:
        """Wait until the lines are on the disk."""
        if self._metrics.exists():
            flush(self._metrics)

    def write_model(self, state: Mapping[str, Tensor]) -> None:
        """Write the model's parameters and buffers."""
        tensors = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in state.items()}
        write_atomically(self.path / "model.safetensors", save(tensors))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write what the run came to: from now on it is finished."""
        write_atomically(self._summary, (json.dumps(summary, indent=2) + "\n").encode())

    def summary(self) -> dict[str, Any] | None:
        """Return what the run came to; None if it is not finished."""
        try:
            content = json.loads(self._summary.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise UsageError(f"{self._summary} cannot be read: {error}") from error
        if not isinstance(content, dict) or not {"round", "diverged_in_round"} & set(content):
            raise UsageError(f"{self._summary} cannot be read: it does not say how far the run came")
        return content

    def reopen(self) -> None:
        """Take a finished run as unfinished."""
        remove(self._summary)


def _row(line: bytes) -> Row | None:
    try:
        row = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("round"), int) and row["round"] > 0 else None


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
