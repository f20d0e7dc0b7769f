"""Files that survive a crash whole: written under another name, flushed to disk, renamed. A failure names its file.

Nothing is read or written through a symbolic link: a directory from somebody else may contain links to files elsewhere.
What the user names on the command line may be a link; anything found inside may not.
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
except ImportError:  # on Windows, where nothing is locked
    fcntl = None  # type: ignore[assignment]

from kedge.checks import memory
from kedge.errors import UsageError

PART = ".part"
"""The suffix of a file that is not complete yet."""


class InUseError(UsageError):
    """A directory that another process has locked."""


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
    return UsageError(f"{path} is a symbolic link, and kedge follows no links inside a run directory")


@contextmanager
def _opened(path: Path, flags: int, mode: int = 0o666) -> Iterator[int]:
    file = os.open(path, flags | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0), mode)
    try:
        yield file
    finally:
        os.close(file)


def read(path: Path, most: int | None = None) -> bytes:
    """Return the content of a regular file of at most ``most`` bytes; a missing file raises `FileNotFoundError`.

    Without a given limit, a file must fit into memory: one with a hole may claim any size.
    """
    most = memory() if most is None else most
    try:
        # Without O_NONBLOCK, opening a pipe would wait.
        with _opened(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)) as file:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                raise UsageError(f"{path} cannot be read: it is not a regular file")
            if found.st_size > most:
                raise UsageError(f"{path} cannot be read: it has {found.st_size} bytes, but at most {most} are allowed")
            with os.fdopen(file, "rb", closefd=False) as stream:
                return stream.read()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(error.errno, error.strerror, str(path)) from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _linked(path) from None
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None


def refuse_link(path: Path) -> None:
    """Refuse a symbolic link."""
    if path.is_symlink():
        raise _linked(path)


def _write(file: int, content: bytes | memoryview) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]


def write_atomically(
    path: Path, content: bytes | Iterable[memoryview], *, last: bool = True, mode: int = 0o666
) -> None:
    """Write to another name and rename: a reader, even after a power cut, sees the whole old file or the whole new one.

    Content in parts is written part by part. Of several files in one directory, only the ``last`` flushes the
    directory, and with it the names of all. The umask takes permissions away from ``mode``.
    """
    beside = path.with_name(path.name + PART)
    with _naming(path):
        refuse_link(beside)
        refuse_link(path)
        try:
            with suppress(FileNotFoundError):  # left by a process that was killed
                os.unlink(beside)
            with _opened(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode) as file:
                for part in [content] if isinstance(content, bytes) else content:
                    _write(file, part)
                os.fsync(file)
            os.replace(beside, path)
        except OSError:
            with suppress(OSError):
                os.unlink(beside)
            raise
        if last:
            _flush_directory(path.parent)


def write_csv(path: Path, rows: Iterable[Mapping[str, Any]], *, digits: int | None = None) -> None:
    """Write a table whose rows may have different columns; ``digits`` limits the digits of every float."""
    rows = list(rows)
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        shown = {name: f"{v:.{digits}g}" if digits and isinstance(v, float) else v for name, v in row.items()}
        writer.writerow(shown)
    write_atomically(path, file.getvalue().encode())


def _flush_directory(path: Path) -> None:
    """Make renames durable on systems that can flush directories."""
    if hasattr(os, "O_DIRECTORY"):
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)  # may be a link, if the user has named it
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def append(path: Path, content: bytes) -> None:
    """Append to a file."""
    with _naming(path), _opened(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as file:
        _write(file, content)


def flush(path: Path) -> None:
    """Wait until everything appended is on disk."""
    with _naming(path), _opened(path, os.O_WRONLY) as file:
        os.fsync(file)


def cut(path: Path, size: int) -> None:
    """Cut a file to its first ``size`` bytes."""
    with _naming(path), _opened(path, os.O_WRONLY) as file:
        os.ftruncate(file, size)
        os.fsync(file)


def make_directory(path: Path) -> None:
    """Create a directory and its parents, unless they exist."""
    with _naming(path):
        os.makedirs(path, exist_ok=True)


def remove(path: Path) -> None:
    """Remove a file, if it exists."""
    with _naming(path), suppress(FileNotFoundError):
        os.unlink(path)


def make_new_directory(parent: Path, stem: str) -> Path:
    """Create the first of ``parent/stem-1``, ``parent/stem-2``, ... that does not exist; no two calls get the same."""
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
    """Create a directory unless it exists, lock it for this process, and ``check`` its content under the lock.

    If it ends up empty, what was created here is removed; ``new``: the directory comes from `make_new_directory`.
    """
    made = [path, path.parent] if new else [place for place in (path, *path.parents) if not place.exists()]
    while True:
        make_directory(path)
        with locked(path) as same:
            if not same():  # its creator had nothing to write and removed it
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
    """Lock a directory for this process; the lock ends with the process, however that ends.

    Yields a function that says whether this path is still the locked directory.
    """
    with _naming(path):
        directory = os.open(path, os.O_RDONLY) if fcntl is not None else None
    try:
        if directory is not None:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(directory)
        raise InUseError(f"{path} is in use: another process is writing to it") from None
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


METRIC = "metric "
"""How the keys of a fingerprint begin that are compared only if both sides have them: a run may get other metrics."""


def refuse_difference(path: Path, there: Mapping[str, Any], here: Mapping[str, Any], *, complete: bool = True) -> None:
    """Refuse a different configuration, naming the first difference; without ``complete``, compare only common keys."""
    for key in [*here, *there]:
        whole = complete and not key.startswith(METRIC)
        if there.get(key) != here.get(key) and (whole or (key in there and key in here)):
            raise UsageError(
                f"{path} has a different configuration: {key} is {there.get(key)!r} there, but {here.get(key)!r} here"
            )
