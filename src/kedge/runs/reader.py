"""Read runs: pure functions that write nothing, lock nothing, and work while a run is in progress.

A directory may come from somebody else: a schema checks whatever its files hold, and what does not fit is reported in
one sentence, never executed and never guessed.
"""

import json
import os
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from kedge.errors import UsageError, shown
from kedge.files import read

CONFIG, FINGERPRINT, METRICS = "config.toml", "fingerprint.json", "metrics.jsonl"
SUMMARY, MODEL, CHECKPOINTS = "summary.json", "model.safetensors", "checkpoint"

MODEL_HASH = "model_sha256"
"""What a summary calls the SHA-256 of the model's file."""

DIGITS = 19
"""The most digits of a whole number."""

LARGEST = 1 << 24
"""The most bytes of a small file: all but the metrics and the tensors."""

LARGEST_METRICS = 1 << 30
"""The most bytes of the metrics: some millions of rows."""

Row = dict[str, float]

_Count = Annotated[int, Field(ge=1, le=2**53)]
_Number = Annotated[int | float, Field(ge=0, allow_inf_nan=False)]
_Text = Annotated[str, Field(max_length=10_000)]
_Line = Annotated[str, Field(max_length=200, pattern=r"^[ -~]*$")]


class _Row(BaseModel):
    """A line of `metrics.jsonl`; any other column must be a number too."""

    model_config = ConfigDict(extra="allow", strict=True)
    __pydantic_extra__: dict[str, int | float]

    round: _Count
    bytes_down: _Number
    bytes_up: _Number
    gradients: _Number
    seconds: _Number


class _End(BaseModel):
    """What `summary.json` says about every run."""

    model_config = ConfigDict(extra="allow", strict=True)

    algorithm: _Text
    engine: _Line
    versions: dict[_Text, _Text]


class _Finished(_End):
    round: _Count
    bytes_down: _Number
    bytes_up: _Number
    gradients: _Number
    seconds: _Number
    test_loss: int | float | None = None
    test_accuracy: int | float | None = None


class _Diverged(_End):
    diverged_in_round: _Count


_FINGERPRINT = TypeAdapter(dict[str, str | int | float | None], config=ConfigDict(strict=True))


@dataclass(frozen=True)
class StoredRun:
    """A run: what its directory says about it, while it is in progress and after it has ended."""

    path: Path
    config: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The sections of `config.toml`. In that of a run made in Python, the section python lists what is missing."""
    rows: list[Row] = field(default_factory=list)
    """One row per evaluated round."""
    summary: dict[str, Any] | None = None
    """The result of the run; None while it is in progress, or if it was interrupted."""
    problems: tuple[str, ...] = ()
    """What is missing or damaged, in one sentence each."""
    error: str | None = None
    """Why it failed, in one sentence; only the batch that ran it knows."""

    @property
    def finished(self) -> bool:
        """Whether it has played all its rounds."""
        return self.summary is not None and self.diverged is None

    @property
    def diverged(self) -> int | None:
        """The round in which it diverged."""
        return None if self.summary is None else self.summary.get("diverged_in_round")

    @property
    def last(self) -> Row | None:
        """The last row of a finished run; None if it diverged, failed or has not ended."""
        return self.rows[-1] if self.finished and self.error is None and self.rows else None

    @property
    def round(self) -> int:
        """How many rounds it has played, as far as is known."""
        return self.diverged or int(self.rows[-1]["round"] if self.rows else 0)

    @property
    def seed(self) -> int:
        """The seed of its configuration."""
        return int(self.config["run"]["seed"])


def read_run(path: str | os.PathLike[str]) -> StoredRun:
    """Read the run in a directory: its configuration, its rows of metrics, and its result.

    Nothing is written, locked or repaired, and the run may be in progress. A torn last line of metrics is not an error:
    the row is being written. What is damaged is left out and named in `problems`.
    """
    path = Path(path)
    if not is_run(path):
        raise UsageError(f"{path} is not a run directory: it has neither {CONFIG} nor {METRICS}")
    problems: list[str] = []

    def kept(reading: Any, otherwise: Any) -> Any:
        try:
            return reading(path)
        except UsageError as problem:
            problems.append(str(problem))
            return otherwise

    config = kept(read_config, None)
    rows: Rows = kept(read_rows, Rows([], 0, 0, None))
    summary = kept(read_summary, None)
    problems += [rows.problem] if rows.problem else []
    run = StoredRun(path, config or {}, rows.rows, summary)
    if run.finished and not (path / MODEL).exists():
        problems.append(f"{path / MODEL} is missing")
    return StoredRun(path, config or {}, rows.rows, summary, tuple(problems))


def read_runs(folder: str | os.PathLike[str]) -> list[StoredRun]:
    """Read all runs in a folder and below it, in the order of their paths; links are not followed."""
    if not Path(folder).is_dir():
        raise UsageError(f"{folder} is not a folder")
    return [read_run(path) for path in runs_below(Path(folder))]


def is_run(path: Path) -> bool:
    """Whether a directory holds a run."""
    return any(os.path.lexists(path / name) for name in (CONFIG, FINGERPRINT, METRICS))


def runs_below(folder: Path) -> Iterator[Path]:
    """Find the runs in a folder and below it, in the order of their paths; links are not followed."""
    for name, folders, _ in os.walk(folder):
        if is_run(Path(name)):
            folders.clear()
            yield Path(name)
        folders.sort()


def read_config(path: Path) -> dict[str, dict[str, Any]] | None:
    """Return the sections of a run's configuration; None if there is none."""
    sections = read_toml(path / CONFIG)
    for name, section in (sections or {}).items():
        if not isinstance(section, dict):
            raise UsageError(f"{path / CONFIG} cannot be read: {name} is {shown(section)}, but must be a section")
    return sections


def read_toml(file: Path) -> dict[str, Any] | None:
    """Return what a TOML file holds; None if it is not there."""
    try:
        return tomllib.loads(read(file, LARGEST).decode())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise _unreadable(file, error) from None


class Rows(NamedTuple):
    """The readable part of the metrics."""

    rows: list[Row]
    size: int  # bytes of the lines that are whole
    rest: int  # bytes after them
    problem: str | None  # also None if the last line is torn, as it is while being written


def read_rows(path: Path) -> Rows:
    """Return the rows up to the first line that is not a row."""
    file = path / METRICS
    try:
        content = read(file, LARGEST_METRICS)
    except FileNotFoundError:
        return Rows([], 0, 0, None)
    rows: list[Row] = []
    size, problem = 0, None
    for line in content.splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break
        row = _row(line)
        if row is None or (rows and row["round"] <= rows[-1]["round"]):
            problem = f"{file} is damaged: line {len(rows) + 1} is not a row of metrics"
            break
        rows.append(row)
        size += len(line)
    return Rows(rows, size, len(content) - size, problem)


def _whole(digits: str) -> int:
    """Read a whole number; a run writes none with more than 64 bits."""
    if len(digits) > DIGITS:
        raise ValueError("a number in it has too many digits")
    return int(digits)


def _row(line: bytes) -> Row | None:
    try:
        row: Row = json.loads(line, parse_int=_whole)
        _Row.model_validate(row)
    except (ValueError, RecursionError):  # pydantic's is a ValueError
        return None
    return row


def read_summary(path: Path) -> dict[str, Any] | None:
    """Return the result of a run; None if it has not ended."""
    content = _json(path / SUMMARY)
    if content is None:
        return None
    kind = _Diverged if isinstance(content, dict) and "diverged_in_round" in content else _Finished
    try:
        kind.model_validate(content)
    except ValidationError as error:
        raise UsageError(f"{path / SUMMARY} cannot be read: {_first(error)}") from None
    summary: dict[str, Any] = content
    return summary


def read_fingerprint(path: Path) -> dict[str, Any] | None:
    """Return what determines the result of a run; None if it was not recorded."""
    content = _json(path / FINGERPRINT)
    if content is None:
        return None
    try:
        return dict(_FINGERPRINT.validate_python(content))
    except ValidationError as error:
        raise UsageError(f"{path / FINGERPRINT} cannot be read: {_first(error)}") from None


def _json(file: Path) -> Any:
    try:
        content = json.loads(read(file, LARGEST), parse_int=_whole)
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise _unreadable(file, error) from None
    if content is None:
        raise UsageError(f"{file} cannot be read: it is empty")
    return content


def _unreadable(file: Path, error: Exception) -> UsageError:
    return error if isinstance(error, UsageError) else UsageError(f"{file} cannot be read: {error}")


def _first(error: ValidationError) -> str:
    """Return the first problem."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])[:60]
    message = f"{first['msg'][0].lower()}{first['msg'][1:]}"
    return f"{place}: {message}" if place else message
