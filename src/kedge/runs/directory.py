"""The writer of a run's directory: plain files that a crash leaves readable. `reader` reads them."""

import functools
import hashlib
import json
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from kedge.errors import UsageError
from kedge.files import PART, append, claimed, cut, flush, refuse_difference, refuse_link, remove, write_atomically
from kedge.runs.reader import (
    CHECKPOINTS,
    CONFIG,
    FINGERPRINT,
    METRICS,
    MODEL,
    MODEL_HASH,
    SUMMARY,
    Row,
    read_fingerprint,
    read_rows,
)


class RunDirectory:
    """Writes `config.toml`, `fingerprint.json`, `metrics.jsonl`, `checkpoint/`, `model.safetensors`, `summary.json`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        resume: bool = False,
        new: bool = False,
        python: bool = False,
    ) -> None:
        """Check that the directory can be created or, to resume, holds a run; nothing is written before `opened`.

        ``new``: `make_new_directory` created it, and it is removed again if nothing is written to it. ``python``: no
        command asked for it.
        """
        self._python = python
        self.path = Path(path)
        self._config = config
        self._resume = resume
        self._new = new
        self._held = False
        check_place(self.path)
        if self.path.exists():
            self._check_content()

    def _check_content(self) -> None:
        holds = {p.name for p in self.path.iterdir()} - {CONFIG + PART, FINGERPRINT, FINGERPRINT + PART}
        ours = holds & {CONFIG, METRICS, CHECKPOINTS}
        if not holds or (ours and self._resume):
            return
        if not ours or SUMMARY in holds:
            raise UsageError(f"out is {self.path}, but that directory is not empty; nothing was overwritten")
        way = f"`kedge resume {self.path}`" if CONFIG in ours and not self._python else "simulate(..., resume=True)"
        raise UsageError(f"out is {self.path}, but that directory holds an unfinished run; continue it with {way}")

    @property
    def checkpoints(self) -> Path:
        """Where the checkpoints are."""
        return self.path / CHECKPOINTS

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Create the directory and lock it; calls may be nested."""
        if self._held:
            yield
            return
        with claimed(self.path, self._check_content, new=self._new):
            self._held = True
            try:
                for name in (CHECKPOINTS, METRICS, MODEL, SUMMARY):
                    refuse_link(self.path / name)
                yield
            finally:
                self._held = False

    def write_configuration(self) -> None:
        """Write the complete configuration, if there is one."""
        if self._config is not None:
            write_atomically(self.path / CONFIG, to_toml(self._config).encode())

    def has_fingerprint(self, fingerprint: Mapping[str, Any]) -> bool:
        """Whether what determines the result has been recorded; a different record is an error."""
        there = read_fingerprint(self.path)
        if there is not None:
            refuse_difference(self.path / FINGERPRINT, there, fingerprint)
        return there is not None

    def write_fingerprint(self, fingerprint: Mapping[str, Any]) -> None:
        """Write what determines the result, before anything is computed."""
        write_atomically(self.path / FINGERPRINT, (json.dumps(fingerprint, indent=1) + "\n").encode())

    def repaired_rows(self) -> list[Row]:
        """Return the rows so far, and cut the file after the last complete one: a crash may have torn a line."""
        found = read_rows(self.path)
        if found.rest:
            cut(self.path / METRICS, found.size)
        return found.rows

    def append_metrics(self, row: Row) -> None:
        """Add a line for an evaluated round."""
        append(self.path / METRICS, (json.dumps(row) + "\n").encode())

    def flush_metrics(self) -> None:
        """Wait until the lines are on disk."""
        if (self.path / METRICS).exists():
            flush(self.path / METRICS)

    def write_model(self, state: Mapping[str, Tensor]) -> dict[str, str]:
        """Write the model's parameters and buffers; return what the summary says about the file."""
        tensors = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in state.items()}
        content = save(tensors)
        write_atomically(self.path / MODEL, content)
        return {MODEL_HASH: hashlib.sha256(content).hexdigest()}

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the result of the run: from now on it is finished."""
        write_atomically(self.path / SUMMARY, (json.dumps(summary, indent=2) + "\n").encode())

    def reopen(self) -> None:
        """Mark a finished run as unfinished."""
        remove(self.path / SUMMARY)


def check_run(path: Path) -> None:
    """Refuse what cannot be the directory of a run."""
    if not path.exists():
        raise UsageError(f"{path} does not exist")
    if not path.is_dir():
        raise UsageError(f"{path} is a file, but must be a run's directory")


def check_place(path: Path) -> None:
    """Refuse a directory that cannot be created or written to."""
    try:
        existing = next(p for p in [path, *path.absolute().parents] if p.exists())
    except OSError as error:
        raise UsageError(f"out is {str(path)[:60]}..., but it cannot be created: {error.strerror}") from error
    if not existing.is_dir():
        raise UsageError(f"out is {path}, but {existing} is not a directory")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UsageError(f"out is {path}, but {existing} cannot be written")


def to_toml(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Write flat sections of strings, numbers, booleans and lists of them; None is left out."""
    lines = []
    for section, values in sections.items():
        lines += [f"[{section}]", *(f"{key} = {_toml(v)}" for key, v in values.items() if v is not None), ""]
    return "\n".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    # JSON's booleans, numbers and strings are TOML's, except for DEL, which TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def environment() -> dict[str, str]:
    """Return what the last bits of a result depend on besides its settings."""
    return {**versions(), "processor": processor()}


def versions() -> dict[str, str]:
    """Return the versions of the software."""
    return {"kedge": version("kedge"), "torch": torch.__version__}


@functools.cache
def processor() -> str:
    """Name the kind of processor, and the instructions that torch uses of it: another kind rounds differently."""
    name = platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    return f"{name[:60]}, {torch.backends.cpu.get_cpu_capability()}"
