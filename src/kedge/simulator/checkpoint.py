"""Checkpoints: the state of a run as safetensors files and a JSON manifest; docs/reliability.md is the format.

A checkpoint of round r is up to three kinds of files: `rows-<r>-<n>.safetensors`, the rows of client state that changed
since the checkpoint before; `round-<r>.safetensors`, everything else; and `round-<r>.json`, the manifest, which lists
its files, those of earlier checkpoints included, with their checksums. The manifest is written last: until it is there,
the checkpoint before is the last one.
"""

import hashlib
import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from kedge.errors import RunWarning, UsageError
from kedge.files import make_directory, remove, write_atomically
from kedge.simulator.store import Rows

FORMAT = 1
"""The version of the format that is written; a newer one is refused."""

_OURS = re.compile(r"(rows-\d+-\d+\.safetensors|round-\d+\.(safetensors|json))(\.part)?")
_MANIFEST = re.compile(r"round-(\d+)\.json")


@dataclass(frozen=True)
class File:
    """A file of a checkpoint."""

    name: str
    bytes: int
    sha256: str
    rows: int  # of client state


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint says of itself."""

    round: int
    seconds: float  # computed so far
    records: int  # rows of metrics so far
    fingerprint: dict[str, Any]  # what determines the result
    written_with: dict[str, Any]  # what determines its last bits
    whole: int  # rows when all of them were last written, not only the changed ones
    files: tuple[File, ...]  # rows first, oldest first: a later row replaces an earlier one

    @property
    def name(self) -> str:
        """Its file name."""
        return f"round-{self.round:08d}.json"

    @property
    def rows(self) -> int:
        """How many rows its files hold, those that later ones replace included."""
        return sum(file.rows for file in self.files)

    def to_json(self) -> bytes:
        """Return the manifest's text, which ends with a checksum of the rest."""
        content = {"format": FORMAT} | asdict(self)
        return (json.dumps(content | {"sha256": _digest(content)}, indent=1) + "\n").encode()


@dataclass(frozen=True)
class Loaded:
    """A checkpoint that was read."""

    manifest: Manifest
    state: dict[str, Tensor]
    rows: Iterator[Rows]


class _DamagedError(Exception):
    """Why a checkpoint cannot be used."""


class Checkpoints:
    """The last two checkpoints of a run, in a directory of their own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last: Manifest | None = None

    @property
    def last(self) -> Manifest | None:
        """The checkpoint that was last saved or loaded."""
        return self._last

    def newest(self) -> int:
        """Return the round of the newest checkpoint, whole or not; -1 if there is none."""
        return max((_number(path) for path in self._manifests()), default=-1)

    def _manifests(self) -> list[Path]:
        return [path for path in self.path.glob("round-*.json") if _MANIFEST.fullmatch(path.name)]

    @property
    def wants_all(self) -> bool:
        """Whether the next one should hold every row: the files have more than twice as many as when it last did."""
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
        """Add a checkpoint and remove all but the one before it.

        ``rows(changed)`` returns what changed since the last checkpoint or, if it `wants_all`, every row there is.
        """
        before = self._last
        changed = not self.wants_all
        make_directory(self.path)
        round = int(state["round"])
        files = [file for file in before.files if file.rows] if before is not None and changed else []
        for number, some in enumerate(rows(changed)):
            files.append(self._write(f"rows-{round:08d}-{number:04d}.safetensors", some, len(some["clients"])))
        whole = before.whole if before is not None and changed else sum(file.rows for file in files)
        files.append(self._write(f"round-{round:08d}.safetensors", state, 0))
        manifest = Manifest(round, seconds, records, dict(fingerprint), dict(written_with), whole, tuple(files))
        write_atomically(self.path / manifest.name, manifest.to_json())
        self._last = manifest
        self._remove_all_but(manifest, before)

    def _write(self, name: str, tensors: Mapping[str, Tensor], rows: int) -> File:
        content = save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()})
        write_atomically(self.path / name, content, last=False)
        return File(name, len(content), hashlib.sha256(content).hexdigest(), rows)

    def _remove_all_but(self, *manifests: Manifest | None) -> None:
        kept = {name for m in manifests if m is not None for name in (m.name, *(file.name for file in m.files))}
        for path in sorted(self.path.iterdir()):
            if _OURS.fullmatch(path.name) and path.name not in kept:
                remove(path)

    def load(self, fingerprint: Mapping[str, Any], records: int) -> Loaded | None:
        """Return the last checkpoint that is whole, with a warning if it is not the newest; None if there is none.

        ``records`` is how many rows of metrics there are: a checkpoint that counts more would lose some. One of
        another configuration or a newer format is an error.
        """
        problems: list[str] = []
        loaded = next(self._usable(fingerprint, records, problems), None)
        if problems:
            end = f"goes on from round {loaded.manifest.round}" if loaded else "starts again from round 0"
            warnings.warn(f"{'; '.join(problems)}: the run {end}", RunWarning, stacklevel=2)
        self._last = loaded.manifest if loaded else None
        return loaded

    def _usable(self, fingerprint: Mapping[str, Any], records: int, problems: list[str]) -> Iterator[Loaded]:
        for path in sorted(self._manifests(), key=_number, reverse=True):
            try:
                manifest = _read(path)
                _check_configuration(path, manifest, fingerprint)
                if manifest.records > records:
                    raise _DamagedError(f"{path} counts {manifest.records} rows of metrics, but {records} are there")
                for file in manifest.files:
                    self._content(file)
            except _DamagedError as problem:
                problems.append(str(problem))
                continue
            *rows, rest = manifest.files
            yield Loaded(manifest, load(self._content(rest)), (load(self._content(file)) for file in rows))

    def _content(self, file: File) -> bytes:
        path = self.path / file.name
        content = _bytes(path)
        if len(content) != file.bytes:
            raise _DamagedError(f"{path} is damaged (it has {len(content)} bytes instead of {file.bytes})")
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise _DamagedError(f"{path} is damaged (its checksum is wrong)")
        return content


def _number(path: Path) -> int:
    return int(path.name.removeprefix("round-").removesuffix(".json"))


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise _DamagedError(f"{path} is missing") from None
    except OSError as error:
        raise _DamagedError(f"{path} cannot be read ({error.strerror})") from None


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read(path: Path) -> Manifest:
    try:
        content = json.loads(_bytes(path))
        whole = content.pop("sha256") == _digest(content)
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        whole = False
    if not whole:
        raise _DamagedError(f"{path} is damaged (its checksum is wrong)")
    if (version := content.pop("format")) > FORMAT:
        raise UsageError(f"{path} has format {version}, but this version of kedge reads formats up to {FORMAT}")
    return Manifest(**content | {"files": tuple(File(**file) for file in content["files"])})


def _check_configuration(path: Path, manifest: Manifest, fingerprint: Mapping[str, Any]) -> None:
    there, here = manifest.fingerprint, json.loads(json.dumps(fingerprint))
    for key in [*here, *there]:
        if there.get(key) != here.get(key):
            raise UsageError(
                f"{path} is of another configuration: {key} is {there.get(key)!r} there, but {here.get(key)!r} here"
            )
