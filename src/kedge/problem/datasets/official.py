"""The official files of known data sets: read within bounds, checked once by SHA-256, and then remembered."""

import gzip
import hashlib
import os
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from kedge.errors import UsageError

PACKED = b"\x1f\x8b"
"""The first bytes of a gzip file."""

_LONGEST, _MOST_FILES = 1 << 20, 1000

OVERHEAD = 1 << 16
"""Bytes that gzip may add to content that does not compress."""


@dataclass(frozen=True)
class Official:
    """What is known about a file: the size limit and the SHA-256 of its unpacked content; None: anything goes."""

    most: int
    dataset: str = ""
    sha256: str | None = None


ANY = Official(most=200_000_000)
"""A file whose format is known, but nothing else."""


class _Seen(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    size: int
    mtime_ns: int
    ctime_ns: int
    sha256: str


class _Memory(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    files: dict[str, _Seen]


def read_file(path: Path, official: Official = ANY) -> bytes:
    """Return the content of ``path``, unpacked, or refuse it if it is not the ``official`` one."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            # Python allocates as much as it is asked to read.
            content = unpacked(file.read(min(found.st_size, official.most + OVERHEAD)), official.most)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path} cannot be read: {' '.join(str(error).split())}") from None
    seen = _Seen(
        size=found.st_size, mtime_ns=found.st_mtime_ns, ctime_ns=found.st_ctime_ns, sha256=official.sha256 or ""
    )
    place = str(path.absolute())
    if official.sha256 is None or len(content) > official.most or _recall().files.get(place) != seen:
        if reason := mismatch(content, official):
            raise UsageError(f"{path} {reason}{_advice(official)}")
        if official.sha256 is not None:
            _remember(place, seen)
    return content


def unpacked(content: bytes, most: int) -> bytes:
    """Return ``content`` as gzip unpacks it, if it is packed, but no more than ``most`` + 1 bytes of it."""
    if not content.startswith(PACKED):
        return content
    unpacker = zlib.decompressobj(wbits=31)
    plain = unpacker.decompress(content, most + 1)
    if len(plain) <= most and not unpacker.eof:
        raise EOFError("the packed content is cut off")
    if unpacker.unused_data:
        raise gzip.BadGzipFile("something follows the packed content")
    return plain


def mismatch(content: bytes, official: Official) -> str | None:
    """Say how ``content`` differs from the ``official`` file, or return None if it does not."""
    if len(content) > official.most:
        return f"holds more than {official.most} bytes"
    if official.sha256 is None:
        return None
    found = hashlib.sha256(content).hexdigest()
    return None if found == official.sha256 else f"has the SHA-256 {found} and not {official.sha256}"


def _advice(official: Official) -> str:
    if official.sha256 is None:
        return ""
    return (
        f", so it is not the official file of {official.dataset}; put that in its place, "
        "or make a kedge.Federation from your own data"
    )


def _memory() -> Path | None:
    """Return the file that records earlier checks; None: this user has no place for it."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "kedge" / "verified.json"
    except RuntimeError:  # neither HOME nor an entry in the table of users
        return None


def _recall() -> _Memory:
    path = _memory()
    try:
        if path is not None:
            with path.open("rb") as file:
                return _Memory.model_validate_json(file.read(_LONGEST))
    except (OSError, ValidationError):
        pass  # checking again takes a moment, and replaces it
    return _Memory(files={})


def _remember(place: str, seen: _Seen) -> None:
    path = _memory()
    if path is None:
        return
    others = [(name, old) for name, old in _recall().files.items() if name != place]
    try:
        memory = _Memory(files=dict([*others[1 - _MOST_FILES :], (place, seen)])).model_dump_json()
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".verified") as folder:
            new = Path(folder) / path.name
            new.write_text(memory, encoding="utf-8")
            new.replace(path)
    except (OSError, ValueError):  # no place for it, or a name that is not text: it is checked again next time
        return
