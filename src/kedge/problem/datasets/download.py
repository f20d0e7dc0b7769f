"""Download a file, check it, and let it appear under its name only when it is whole."""

import hashlib
import http.client
import os
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
from rich.progress import Progress as Bar

from kedge.errors import UsageError
from kedge.problem.datasets.base import Progress, Source

_BLOCK = 1 << 18


def obtain(source: Source, name: str, folder: Path, files: Sequence[str], fetch: Callable[[Progress], None]) -> None:
    """Call ``fetch`` to put ``files`` into ``folder``; if that may not or cannot be, say what to put where."""
    reason = "and download is off"
    if source.download:
        try:
            with _shown(source.progress) as progress:
                fetch(progress)
            return
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = f"and could not be downloaded ({' '.join(str(getattr(error, 'reason', error)).split())})"
    raise UsageError(
        f"{name} is not in {source.root} {reason}; put {', '.join(files)} into {folder}, "
        "or set --data-dir or KEDGE_DATA"
    )


@contextmanager
def downloaded(url: str, target: Path, progress: Progress) -> Iterator[Path]:
    """Yield a temporary file beside ``target`` with the content of ``url``; it is gone afterwards."""
    with urllib.request.urlopen(url, timeout=30) as response:
        length = response.headers.get("Content-Length")
        with _beside(target) as path:
            with path.open("xb") as file:
                _copy(response, file, target.name, int(length) if length else None, progress)
            yield path


def install(content: bytes, target: Path, checksum: str) -> None:
    """Write ``content`` to ``target`` in one step if it has the ``checksum``, "algorithm:hexadecimal digits"."""
    algorithm, expected = checksum.split(":")
    found = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
    if found != expected:
        raise ValueError(f"{target.name} has the {algorithm} checksum {found} and not {expected}")
    with _beside(target) as path:
        path.write_bytes(content)
        path.replace(target)


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    target.parent.mkdir(parents=True, exist_ok=True)
    path = target.with_name(f".{target.name}.{os.getpid()}.part")
    path.unlink(missing_ok=True)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _copy(response: BinaryIO, file: BinaryIO, name: str, total: int | None, progress: Progress) -> None:
    done = 0
    while block := response.read(_BLOCK):
        file.write(block)
        done += len(block)
        progress(name, done, total)


@contextmanager
def _shown(progress: Progress | None) -> Iterator[Progress]:
    """Yield the caller's ``progress``, or a bar on the standard error if that is a terminal."""
    if progress is not None:
        yield progress
        return
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bar(*columns, console=console, disable=not console.is_terminal) as bar:
        tasks = {}

        def show(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=total)
            bar.update(tasks[name], completed=done)

        yield show
