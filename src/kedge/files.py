"""Files that a crash leaves whole: written beside, flushed to the disk, renamed. A failure names its file."""

import csv
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # not on Windows, where nothing is locked
    fcntl = None  # type: ignore[assignment]

from kedge.errors import UsageError

PART = ".part"
"""The ending of a file that is not whole yet."""


class WriteError(OSError):
    """A file that could not be written; the message names it and the reason."""

    def __str__(self) -> str:
        return f"{self.filename} cannot be written: {self.strerror}"


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WriteError(error.errno, error.strerror or str(error), str(path)) from error


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    file = os.open(path, flags | getattr(os, "O_BINARY", 0), 0o666)
    try:
        yield file
    finally:
        os.close(file)


def _write(file: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]


def write_atomically(path: Path, content: bytes, *, last: bool = True) -> None:
    """Write beside and rename: whoever reads, even after a power cut, sees the old file or the new one, whole.

    Unless it is the ``last`` of several in one directory, its name waits for the last to be flushed to the disk.
    """
    beside = path.with_name(path.name + PART)
    with _naming(path):
        try:
            with _opened(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
                _write(file, content)
                os.fsync(file)
            os.replace(beside, path)
        except OSError:
            with suppress(OSError):
                os.unlink(beside)
            raise
        if last:
            _flush_directory(path.parent)


def write_csv(path: Path, rows: Iterable[Mapping[str, Any]], *, digits: int | None = None) -> None:
    """Write a table whose rows may differ in their columns; with ``digits``, that many of every float."""
    rows = list(rows)
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        shown = {name: f"{v:.{digits}g}" if digits and isinstance(v, float) else v for name, v in row.items()}
        writer.writerow(shown)
    write_atomically(path, file.getvalue().encode())


def _flush_directory(path: Path) -> None:
    """Make renames durable, where directories can be flushed."""
    if hasattr(os, "O_DIRECTORY"):
        with _opened(path, os.O_RDONLY | os.O_DIRECTORY) as directory:
            os.fsync(directory)


def append(path: Path, content: bytes) -> None:
    """Add to a file's end."""
    with _naming(path), _opened(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as file:
        _write(file, content)


def flush(path: Path) -> None:
    """Wait until what was appended is on the disk."""
    with _naming(path), _opened(path, os.O_WRONLY) as file:
        os.fsync(file)


def cut(path: Path, size: int) -> None:
    """Keep a file's first bytes."""
    with _naming(path):
        os.truncate(path, size)
    flush(path)


def make_directory(path: Path) -> None:
    """Make a directory and those above it, unless they exist."""
    with _naming(path):
        os.makedirs(path, exist_ok=True)


def remove(path: Path) -> None:
    """Remove a file, if it is there."""
    with _naming(path), suppress(FileNotFoundError):
        os.unlink(path)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a directory for this process alone; the lock dies with the process, however that ends."""
    with _naming(path):
        directory = os.open(path, os.O_RDONLY) if fcntl is not None else None
    try:
        if directory is not None:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(directory)
        raise UsageError(f"{path} is in use: another process is writing to it") from None
    except OSError:  # a file system without locks
        pass
    try:
        yield
    finally:
        if directory is not None:
            os.close(directory)
