"""Checkpoints: the state of a run as safetensors files and a JSON manifest; docs/reliability.md describes the format.

A checkpoint of round r has up to three kinds of file: `rows-<r>-<n>.safetensors`, the rows of client state that changed
since the previous checkpoint; `round-<r>.safetensors`, everything else; and `round-<r>.json`, the manifest, which lists
its files, including those of earlier checkpoints, with their checksums. The manifest is written last: until then, the
previous checkpoint is the last one.
"""

import hashlib
import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from kedge.errors import RunWarning, UsageError
from kedge.files import make_directory, read, refuse_difference, refuse_link, remove, write_atomically
from kedge.simulator.store import Rows

FORMAT = 2
"""The format version that is written; newer ones are refused. Format 1 had a shorter fingerprint."""

MOST = 2**60
"""The largest count: adding to it cannot overflow 64 bits."""

COUNTS = ("round", "bytes_down", "bytes_up", "gradients")
"""The counters in a run's state."""

LARGEST = 1 << 28
"""The most bytes a manifest may have."""

_OURS = re.compile(r"(rows-[0-9]+-[0-9]+\.safetensors|round-[0-9]+\.(safetensors|json))(\.part)?")
_MANIFEST = re.compile(r"round-([0-9]{8,18})\.json")
_ROWS = r"rows-[0-9]{8,18}-[0-9]{4,18}\.safetensors"
_REST = r"round-[0-9]{8,18}\.safetensors"

_Count = Annotated[int, Field(ge=0, le=MOST)]
_Values = dict[str, str | int | float | None]


class File(BaseModel):
    """A file of a checkpoint; its name cannot leave the directory."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Annotated[str, Field(pattern=f"^({_ROWS}|{_REST})$")]
    bytes: _Count
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    rows: _Count  # of client state


class Manifest(BaseModel):
    """What a checkpoint says about itself."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format: Annotated[int, Field(ge=1)] = Field(default_factory=lambda: FORMAT)
    round: _Count
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]  # computed so far
    records: _Count  # rows of metrics so far
    fingerprint: _Values  # what determines the result
    written_with: _Values  # what determines its last bits
    whole: _Count  # rows when all of them were last written, not only the changed ones
    files: list[File]  # rows first, oldest first: a later row replaces an earlier one

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        *rows, rest = [file.name for file in self.files] or [""]
        if not re.fullmatch(_REST, rest) or not all(re.fullmatch(_ROWS, name) for name in rows):
            raise ValueError("its files do not make up a checkpoint")
        return self

    @property
    def name(self) -> str:
        """Its file name."""
        return f"round-{self.round:08d}.json"

    @property
    def rows(self) -> int:
        """How many rows its files hold, including those that later ones replace."""
        return sum(file.rows for file in self.files)

    def to_json(self) -> bytes:
        """Return the manifest's text, which ends with a checksum of the rest."""
        content = self.model_dump()
        return (json.dumps(content | {"sha256": _digest(content)}, indent=1) + "\n").encode()


@dataclass(frozen=True)
class Loaded:
    """A checkpoint as read from disk."""

    manifest: Manifest
    state: dict[str, Tensor]
    rows: Iterator[Rows]


@dataclass(frozen=True)
class Like:
    """The structure of a run's state, as a checkpoint holds it."""

    state: Mapping[str, Tensor]
    row: Rows  # of one client
    clients: int

    def state_problem(self, found: Mapping[str, Tensor]) -> str | None:
        """Say why these tensors cannot be the state; None if they can."""
        if (problem := _other_form(self.state, found, 0)) is not None:
            return problem
        wrong = next((name for name in COUNTS if name in found and not 0 <= found[name].item() <= MOST), None)
        return None if wrong is None else f"{wrong} is {found[wrong].item()}"

    def row_problem(self, found: Rows) -> str | None:
        """Say why these tensors cannot be rows of clients; None if they can."""
        if (problem := _other_form(self.row, found, 1)) is not None:
            return problem
        numbers = found["clients"]
        if any(len(tensor) != len(numbers) for tensor in found.values()):
            return "it does not have one row per client"
        outside = len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < self.clients
        return "it names a client that does not exist" if outside else None


def _other_form(like: Mapping[str, Tensor], found: Mapping[str, Tensor], rows: int) -> str | None:
    """Compare names, dtypes and shapes, ignoring the first ``rows`` dimensions of the shapes."""
    if like.keys() != found.keys():
        return f"it has no {min(like.keys() - found.keys(), default='tensors but its own')}"
    for name, tensor in like.items():
        other = found[name]
        if (tensor.dtype, tensor.ndim, tensor.shape[rows:]) != (other.dtype, other.ndim, other.shape[rows:]):
            return f"{name} has a different shape or dtype"
    return None


class _DamagedError(Exception):
    """Why a checkpoint cannot be used."""


class Checkpoints:
    """The last two checkpoints of a run, in their own directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last: Manifest | None = None

    @property
    def last(self) -> Manifest | None:
        """The checkpoint last saved or loaded."""
        return self._last

    def newest(self) -> int:
        """Return the round of the newest checkpoint, whole or not; -1 if there is none."""
        return max((_number(path) for path in self._manifests()), default=-1)

    def _manifests(self) -> list[Path]:
        return [path for path in self.path.glob("round-*.json") if _MANIFEST.fullmatch(path.name)]

    @property
    def wants_all(self) -> bool:
        """Whether the next one should hold every row: the files have over twice as many as the last full one."""
        return self._last is None or self._last.rows > 2 * self._last.whole

    def save(
        self,
        state: Mapping[str, Tensor],
        rows: Callable[[bool], Iterable[Rows]],
        *,
        seconds: float,
        records: int,
        fingerprint: Mapping[str, Any],
        written_with: Mapping[str, Any],
    ) -> None:
        """Add a checkpoint and remove all but the previous one.

        ``rows(changed)`` returns what changed since the last checkpoint or, if this one `wants_all`, every row.
        """
        before = self._last
        changed = not self.wants_all
        refuse_link(self.path)
        make_directory(self.path)
        round = int(state["round"])
        files = [file for file in before.files if file.rows] if before is not None and changed else []
        for number, some in enumerate(rows(changed)):
            files.append(self._write(f"rows-{round:08d}-{number:04d}.safetensors", some, len(some["clients"])))
        whole = before.whole if before is not None and changed else sum(file.rows for file in files)
        files.append(self._write(f"round-{round:08d}.safetensors", state, 0))
        manifest = Manifest(
            round=round, seconds=seconds, records=records, fingerprint=dict(fingerprint),
            written_with=dict(written_with), whole=whole, files=files,
        )  # fmt: skip
        write_atomically(self.path / manifest.name, manifest.to_json())
        self._last = manifest
        self._remove_all_but(manifest, before)

    def _write(self, name: str, tensors: Mapping[str, Tensor], rows: int) -> File:
        content = save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()})
        write_atomically(self.path / name, content, last=False)
        return File(name=name, bytes=len(content), sha256=hashlib.sha256(content).hexdigest(), rows=rows)

    def _remove_all_but(self, *manifests: Manifest | None) -> None:
        kept = {name for m in manifests if m is not None for name in (m.name, *(file.name for file in m.files))}
        for path in sorted(self.path.iterdir()):
            if _OURS.fullmatch(path.name) and path.name not in kept:
                remove(path)

    def load(self, fingerprint: Mapping[str, Any], records: int, like: Like | None = None) -> Loaded | None:
        """Return the last intact checkpoint, with a warning if it is not the newest; None if there is none.

        ``records`` is how many rows of metrics there are: resuming from a checkpoint that counts more would lose some.
        ``like`` is the structure of the run's state: a checkpoint with a different one is damaged. One of a different
        configuration or a newer format is an error.
        """
        refuse_link(self.path)
        problems: list[str] = []
        loaded = next(self._usable(fingerprint, records, like, problems), None)
        if problems:
            end = f"resumes from round {loaded.manifest.round}" if loaded else "starts again from round 0"
            warnings.warn(f"{'; '.join(problems)}: the run {end}", RunWarning, stacklevel=2)
        self._last = loaded.manifest if loaded else None
        return loaded

    def _usable(
        self, fingerprint: Mapping[str, Any], records: int, like: Like | None, problems: list[str]
    ) -> Iterator[Loaded]:
        for path in sorted(self._manifests(), key=_number, reverse=True):
            try:
                manifest = _read(path)
                refuse_difference(path, manifest.fingerprint, fingerprint, complete=manifest.format > 1)
                if manifest.records > records:
                    raise _DamagedError(f"{path} counts {manifest.records} rows of metrics, but there are {records}")
                *rows, rest = manifest.files
                for file in rows:
                    self._tensors(file, None if like is None else like.row_problem)
                state = self._tensors(rest, None if like is None else like.state_problem)
                if int(state.get("round", torch.tensor(-1))) != manifest.round:
                    raise _DamagedError(f"{self.path / rest.name} is damaged (it belongs to another round)")
            except _DamagedError as problem:
                problems.append(str(problem))
                continue
            yield Loaded(manifest, state, (self._tensors(file) for file in rows))

    def _tensors(self, file: File, problem: Callable[[Rows], str | None] | None = None) -> dict[str, Tensor]:
        try:
            tensors: dict[str, Tensor] = load(self._content(file))
        except UsageError:
            raise
        except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
            raise _DamagedError(f"{self.path / file.name} is damaged ({error})") from None
        if problem is not None and (text := problem(tensors)) is not None:
            raise _DamagedError(f"{self.path / file.name} is damaged ({text})")
        return tensors

    def _content(self, file: File) -> bytes:
        path = self.path / file.name
        if path.is_file() and (size := path.lstat().st_size) != file.bytes:
            raise _DamagedError(f"{path} is damaged (it has {size} bytes instead of {file.bytes})")
        content = _bytes(path, file.bytes)
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise _DamagedError(f"{path} is damaged (its checksum is wrong)")
        return content


def _number(path: Path) -> int:
    return int(path.name.removeprefix("round-").removesuffix(".json"))


def _bytes(path: Path, most: int) -> bytes:
    try:
        return read(path, most)
    except FileNotFoundError:
        raise _DamagedError(f"{path} is missing") from None


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read(path: Path) -> Manifest:
    try:
        content = json.loads(_bytes(path, LARGEST))
        whole = content.pop("sha256") == _digest(content)
    except UsageError:
        raise
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        whole = False
    if not whole:
        raise _DamagedError(f"{path} is damaged (its checksum is wrong)")
    version = content.get("format")
    if isinstance(version, int) and version > FORMAT:
        raise UsageError(f"{path} has format {version}, but this version of kedge reads formats up to {FORMAT}")
    try:
        manifest = Manifest.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))[:60]
        raise _DamagedError(f"{path} is damaged ({place} {first['msg']})") from None
    if manifest.round != _number(path):
        raise _DamagedError(f"{path} is damaged (it belongs to round {manifest.round})")
    return manifest
