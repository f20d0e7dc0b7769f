"""Download a file, check it, and give it its name only when it is complete."""

import http.client
import os
import queue
import threading
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
from rich.progress import Progress as Bar

from kedge.errors import UsageError
from kedge.problem.datasets.base import Progress, Source

BLOCK = 1 << 18
SILENCE, TOTAL = 30.0, 3600.0
"""Seconds for which a server may be silent, and that a file may take in total."""


def obtain(source: Source, name: str, folder: Path, files: Sequence[str], fetch: Callable[[Progress], None]) -> None:
    """Call ``fetch`` to put ``files`` into ``folder``; if that is not allowed or fails, say what to put where."""
    reason = "and download is off"
    if source.download:
        try:
            with _shown(source.progress) as progress:
                fetch(progress)
            return
        except (OSError, EOFError, http.client.HTTPException, ValueError, zlib.error) as error:
            reason = f"and could not be downloaded ({' '.join(str(getattr(error, 'reason', error)).split())})"
    raise UsageError(
        f"{name} is not in {source.root} {reason}; put {', '.join(files)} into {folder}, "
        "or set --data-dir or KEDGE_DATA"
    )


@contextmanager
def downloaded(url: str, target: Path, most: int, progress: Progress) -> Iterator[Path]:
    """Yield a temporary file beside ``target`` with at most ``most`` bytes from ``url``; it is gone afterwards."""
    deadline = time.monotonic() + TOTAL
    with _opened(url, target.name, deadline) as response, _beside(target) as path:
        with path.open("xb") as file:
            for block in _blocks(response, target.name, most, deadline, progress):
                file.write(block)
        yield path


def _opened(url: str, name: str, deadline: float) -> Any:
    """Return the response, once its head is complete."""
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(urllib.request.urlopen(url, timeout=SILENCE))
        except Exception as error:  # raised again by whoever waits for it
            answers.put(error)

    # A head that arrives byte by byte never times out, so another thread waits for it.
    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
    except queue.Empty:
        raise _too_long(name) from None
    try:
        if isinstance(answer, Exception):
            raise answer
        return answer
    finally:
        del answer  # otherwise the error, and the socket in it, would stay alive in its own traceback


def _too_long(name: str) -> TimeoutError:
    return TimeoutError(f"{name} took longer than {TOTAL:g} seconds")


def _blocks(response: Any, name: str, most: int, deadline: float, progress: Progress) -> Iterator[bytes]:
    length = response.headers.get("Content-Length")
    total, done = int(length) if length else None, 0
    # read1 returns what has arrived: a block that arrives byte by byte cannot delay the time limit.
    while block := response.read1(BLOCK):
        done += len(block)
        if max(done, total or 0) > most:
            raise ValueError(f"{name} is larger than {most} bytes")
        if time.monotonic() > deadline:
            raise _too_long(name)
        yield block
        progress(name, done, total)
    if total is not None and done < total:
        raise OSError(f"{name} ended after {done} of {total} bytes")


def install(content: bytes, target: Path) -> None:
    """Write ``content`` to ``target`` in one step."""
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


@contextmanager
def _shown(progress: Progress | None) -> Iterator[Progress]:
    """Yield the caller's ``progress``, or a bar on standard error if that is a terminal."""
    if progress is not None:
        yield progress
        return
    console = Console(stderr=True)
    if not console.is_terminal:  # before rich 14.3 even a disabled bar ends with an empty line
        yield lambda name, done, total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bar(*columns, console=console) as bar:
        tasks = {}

        def show(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=total)
            bar.update(tasks[name], completed=done)

        yield show
