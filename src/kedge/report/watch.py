"""A live page over runs: a server for this machine only, which reads one folder and never writes.

It has two addresses, the page and its data, and serves no file by its name. A request must name this server as its
host, so that no web page elsewhere can reach it by its own name, and must carry the token that only the address
printed by `kedge watch` contains, so that no other user of the machine can.
"""

import hashlib
import os
import secrets
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kedge.errors import UsageError
from kedge.report.contents import contents
from kedge.report.lines import lines_of
from kedge.report.page import escaped, page
from kedge.runs.reader import CONFIG, METRICS, SUMMARY, StoredRun, read_run, runs_below

LOOPBACK = "127.0.0.1"
PATIENCE = 10
"""Seconds after which a silent connection is closed."""

REST = 10.0
"""The most seconds between two looks at the runs; usually as long as the last look took."""

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Followed:
    """The runs below a folder, read again when their files change."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise UsageError(f"{folder} is not a folder")
        self.folder = folder
        self._known: dict[Path, tuple[Any, StoredRun]] = {}

    def runs(self) -> list[StoredRun]:
        """Return all runs as they are now."""
        found: dict[Path, tuple[Any, StoredRun]] = {}
        for path in runs_below(self.folder):
            now = tuple(_stamp(path / name) for name in (CONFIG, METRICS, SUMMARY))
            known = self._known.get(path)
            found[path] = known if known is not None and known[0] == now else (now, read_run(path))
        self._known = found
        return [run for _, run in found.values()]

    def state(self) -> str:
        """Return a text that changes whenever a run does, after `runs`."""
        stamps = [(os.fspath(path), stamp) for path, (stamp, _) in self._known.items()]
        return hashlib.sha256(repr(stamps).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.lstat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


class News:
    """What the page shows now; made again when a run changes, but not too often."""

    def __init__(self, folder: Path) -> None:
        self._followed = Followed(folder)
        self._lock = threading.Lock()
        self._state, self._data = "", contents([], _title(folder), "")
        self._next = 0.0

    def now(self) -> tuple[str, dict[str, Any]]:
        """Return the state and the data of the page."""
        with self._lock:
            began = time.monotonic()
            if began >= self._next:
                runs = self._followed.runs()
                if (state := self._followed.state()) != self._state:
                    self._data = contents(lines_of(runs), _title(self._followed.folder), "")
                    self._state = state
                ended = time.monotonic()
                self._next = ended + min(ended - began, REST)
            return self._state, self._data


def _title(folder: Path) -> str:
    return f"Runs in {os.fspath(folder)}"


class PageServer(ThreadingHTTPServer):
    """The server of a live page, on the loopback interface."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.news = News(folder)
        self.token = secrets.token_urlsafe(24)
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except OSError as error:
            raise UsageError(f"port is {port}, but it cannot be used: {error.strerror}") from error
        self.hosts = {f"{name}:{self.server_port}" for name in (LOOPBACK, "localhost")}

    @property
    def address(self) -> str:
        """The address of the page, with its token."""
        return f"http://{LOOPBACK}:{self.server_port}/?token={self.token}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing about a browser that has disconnected."""


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    server_version, sys_version = "kedge", ""
    protocol_version = "HTTP/1.1"
    timeout = PATIENCE

    def do_GET(self) -> None:
        """Answer the request, if it is allowed."""
        try:
            place = urlsplit(self.path)
            asked = parse_qs(place.query, max_num_fields=10)
        except ValueError:
            self._answer(HTTPStatus.BAD_REQUEST, "the address cannot be read")
            return
        if self.headers.get_all("Host", []) not in ([host] for host in self.server.hosts):
            self._answer(HTTPStatus.FORBIDDEN, "this server answers only to its own name")
        elif not secrets.compare_digest(asked.get("token", [""])[-1].encode(), self.server.token.encode()):
            self._answer(HTTPStatus.FORBIDDEN, "the token is wrong: use the address that kedge watch printed")
        else:
            pages: dict[str, Callable[[dict[str, list[str]]], None]] = {"/": self._page, "/data.json": self._data}
            pages.get(place.path, self._unknown)(asked)

    def _page(self, asked: dict[str, list[str]]) -> None:
        self._answer(HTTPStatus.OK, page(self.server.news.now()[1], live=True), "text/html; charset=utf-8")

    def _data(self, asked: dict[str, list[str]]) -> None:
        state, data = self.server.news.now()
        if asked.get("seen") == [state]:
            self._answer(HTTPStatus.NO_CONTENT, "")
        else:
            self._answer(HTTPStatus.OK, escaped(data), "application/json", {"X-Seen": state})

    def _unknown(self, asked: dict[str, list[str]]) -> None:
        self._answer(HTTPStatus.NOT_FOUND, "there is nothing here")

    def _answer(
        self, status: HTTPStatus, text: str, kind: str = "text/plain; charset=utf-8", more: dict[str, str] | None = None
    ) -> None:
        content = text.encode()
        about = {"Content-Type": kind, "Content-Length": str(len(content))} if content else {}
        self.send_response(status)
        for name, value in (about | HEADERS | (more or {})).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *values: Any) -> None:
        """Log nothing: a request contains the token."""
