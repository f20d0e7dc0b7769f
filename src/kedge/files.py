"""Files that a crash leaves whole: written beside, flushed to the disk, renamed. A failure names its file.

Nothing is read or written through a symbolic link: a directory that was received from somebody may hold links to files
elsewhere. What the user names on the command line may be a link; what is found inside may not.
"""

import csv
import errno
import io
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
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
        if error.errno == errno.ELOOP:
            raise _linked(path) from None
        raise WriteError(error.errno, error.strerror or str(error), str(path)) from error


def _linked(path: Path) -> UsageError:
    return UsageError(f"{path} is a symbolic link, and kedge follows none inside a directory of runs")


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    file = os.open(path, flags | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0), 0o666)
    try:
        yield file
    finally:
        os.close(file)


def read(path: Path, most: int | None = None) -> bytes:
    """Return the content of a regular file of at most so many bytes; one that is missing is a `FileNotFoundError`."""
    try:
        # A pipe would be waited for, if it were not for O_NONBLOCK.
        with _opened(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)) as file:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                raise UsageError(f"{path} cannot be read: it is not a regular file")
            if most is not None and found.st_size > most:
                raise UsageError(f"{path} cannot be read: it has {found.st_size} bytes, and {most} are the most")
            with os.fdopen(file, "rb", closefd=False) as stream:
                return stream.read()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(error.errno, error.strerror, str(path)) from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _linked(path) from None
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None


def refuse_link(path: Path) -> None:
    """Refuse a symbolic link; what is not there is none."""
    if path.is_symlink():
        raise _linked(path)


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
        refuse_link(beside)
        refuse_link(path)
        try:
            with suppress(FileNotFoundError):  # of a process that was killed
                os.unlink(beside)
            with _opened(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
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
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)  # which may be a link, if the user has named it
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


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
    with _naming(path), _opened(path, os.O_WRONLY) as file:
        os.ftruncate(file, size)
        os.fsync(file)


def make_directory(path: Path) -> None:
    """Make a directory and those above it, unless they exist."""
    with _naming(path):
        os.makedirs(path, exist_ok=True)


def remove(path: Path) -> None:
    """Remove a file, if it is there."""
    with _naming(path), suppress(FileNotFoundError):
        os.unlink(path)


def make_new_directory(parent: Path, stem: str) -> Path:
    """Make the first of ``parent/stem-1``, ``parent/stem-2``, ... that does not exist; no two calls get the same."""
    make_directory(parent)
    number = 1
    while True:
        path = parent / f"{stem}-{number}"
        with _naming(path), suppress(FileExistsError):
            os.mkdir(path)
            return path
        number += 1


@contextmanager
def claimed(path: Path, check: Callable[[], None] = lambda: None, *, new: bool = False) -> Iterator[None]:
    """Make a directory unless it exists, hold it for this process alone, and ``check`` under the lock what it holds.

    If it is empty in the end, what was made for it is removed again; ``new``: it comes from `make_new_directory`.
    """
    made = [path, path.parent] if new else [place for place in (path, *path.parents) if not place.exists()]
    while True:
        make_directory(path)
        with locked(path) as same:
            if not same():  # its maker had nothing to write, and has removed it
                continue
            try:
                check()
                yield
            finally:
                with suppress(OSError):  # it is not empty
                    for place in made:
                        os.rmdir(place)
            return


@contextmanager
def locked(path: Path) -> Iterator[Callable[[], bool]]:
    """Hold a directory for this process alone; the lock dies with the process, however that ends.

    Yields a function that says whether the directory of this name is still the one that is held.
    """
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

    def same() -> bool:
        try:
            return directory is None or os.path.samestat(os.fstat(directory), os.stat(path))
        except OSError:
            return False

    try:
        yield same
    finally:
        if directory is not None:
            os.close(directory)
