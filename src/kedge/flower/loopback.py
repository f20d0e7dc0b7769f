"""Flower's own processes on this machine: a SuperLink and SuperNodes on free ports of the loopback interface.

They have their own FLWR_HOME, so the user's configuration of Flower is neither read nor changed; and whatever they
start ends with them, even what has left their process group.
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from kedge.errors import FailedRunError
from kedge.files import make_directory, write_atomically

NAME = "loopback"
"""What the SuperLink is called in its own configuration."""

START = 60.0
"""Seconds for a SuperLink to listen."""

GRACE = 3.0
"""Seconds between asking processes to end and ending them."""

TAIL = 2000
"""How much of a log a message shows."""


class Process(NamedTuple):
    """A process; its start tells it from a later one with the same number."""

    number: int
    start: str


def program_path() -> str:
    """Return a PATH on which Flower's programs are: beside this Python, although its environment may not be active."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def free_port() -> int:
    """Return a free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Loopback:
    """A SuperLink and SuperNodes; leaving the context ends everything that they started."""

    def __init__(self, work: Path, *, database: bool = False, tls: Path | None = None, warm: bool = True) -> None:
        self.work, self._database, self._tls, self._warm = work, database, tls, warm
        self.port = free_port()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._seen: set[Process] = set()
        home = work / "home"
        make_directory(home)
        secure = "insecure = true" if tls is None else f"root-certificates = {json.dumps(str(tls / 'ca.crt'))}"
        text = f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\naddress = "127.0.0.1:{self.port}"\n{secure}\n'
        write_atomically(home / "config.toml", text.encode())
        # One compute thread each: as many clients as this share the cores.
        self.env = os.environ | {
            "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
            "PATH": program_path(), "OMP_NUM_THREADS": "1",
        }  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    # ---- starting

    def superlink(self) -> None:
        """Start the SuperLink, and wait until it listens."""
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)]
        if self._tls is None:
            command.append("--insecure")
        else:
            files = {"ca-certfile": "ca.crt", "certfile": "server.pem", "keyfile": "server.key"}
            command += [part for name, file in files.items() for part in (f"--ssl-{name}", str(self._tls / file))]
            command.append("--enable-supernode-auth")
        self.start("superlink", command + (["--database", str(self.work / "superlink.db")] if self._database else []))
        end = time.monotonic() + START
        while time.monotonic() < end and self._running["superlink"].poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.1)
        raise FailedRunError(f"the SuperLink is not listening: {self.tail('superlink')}")

    def node(self, number: int, config: str = "", *, key: Path | None = None) -> None:
        """Start the SuperNode of a client."""
        state = json.dumps(str(self.work / f"state-{number}"))
        security = ["--insecure"] if self._tls is None else ["--root-certificates", str(self._tls / "ca.crt")]
        security += ["--auth-supernode-private-key", str(key)] if key is not None else []
        program = [sys.executable, "-m", "kedge", "flower", "node", "--"] if self._warm else ["flower-supernode"]
        self.start(
            f"node-{number}",
            [
                *program, *security, "--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port()),
                "--node-config", f"client={number} state-dir={state} {config}".strip(),
            ],
        )  # fmt: skip

    def start(self, name: str, command: Sequence[str]) -> None:
        """Start a process in its own session; its output goes to a log."""
        with self.log(name).open("ab") as out:
            self._running[name] = subprocess.Popen(
                command, env=self.env, cwd=self.work, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True, preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )  # fmt: skip

    def log(self, name: str) -> Path:
        """Return the log of a process."""
        return self.work / f"{name}.log"

    def tail(self, name: str) -> str:
        """Return the end of a log."""
        with suppress(OSError):
            return self.log(name).read_text(errors="replace")[-TAIL:].strip()
        return ""

    # ---- running

    def submit(self, app: Path, config: str = "", name: str = "run") -> None:
        """Start `flwr run`, which follows the run to its end."""
        command = ["flwr", "run", str(app), NAME, "--stream", *(["-c", config] if config else [])]
        self.start(name, command)

    def poll(self, name: str = "run") -> int | None:
        """Return the exit code of a process, None while it runs."""
        self._look()
        return self._running[name].poll()

    def ended(self) -> list[str]:
        """Return the processes that have ended."""
        return [name for name, process in self._running.items() if process.poll() is not None]

    def runs(self) -> list[dict[str, Any]]:
        """Return what Flower knows about its runs, oldest first: status, traffic, ..."""
        done = subprocess.run(
            ["flwr", "ls", NAME, "--format", "json"], env=self.env, capture_output=True, text=True, timeout=60,
            check=False, cwd=self.work,
        )  # fmt: skip
        try:
            found: list[dict[str, Any]] = json.loads(done.stdout)["runs"]
        except (ValueError, KeyError, TypeError):
            raise FailedRunError(f"flwr ls says nothing: {done.stdout[-TAIL:]} {done.stderr[-TAIL:]}") from None
        return sorted(found, key=lambda run: str(run["pending-at"]))

    # ---- ending

    def kill(self, name: str, *, whole: bool = True) -> None:
        """Kill a process, and with ``whole`` what it has started."""
        number = self._running[name].pid
        for process in [*(_below({number}) if whole else []), number]:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._running.pop(name).wait()

    def descendants(self, name: str) -> dict[int, str]:
        """Return what a process has started, with the command lines."""
        return {number: _command(number) for number in _below({self._running[name].pid})}

    def _look(self) -> None:
        """Note what our processes have started: it may leave their session, and be adopted when they die."""
        known = {process.number for process in self._seen if _start(process.number) == process.start}
        numbers = _below({process.pid for process in self._running.values() if process.poll() is None} | known)
        self._seen |= {Process(number, _start(number)) for number in numbers}

    def end(self) -> None:
        """End everything."""
        self._look()
        running = {name: process for name, process in self._running.items() if process.poll() is None}
        self._seen |= {Process(process.pid, _start(process.pid)) for process in running.values()}
        _signal(self._seen, signal.SIGTERM)
        end = time.monotonic() + GRACE
        while time.monotonic() < end and any(_start(p.number) == p.start and p.start for p in self._seen):
            for process in running.values():
                process.poll()  # buries it
            self._look()
            time.sleep(0.05)
        self._look()
        _signal(self._seen, signal.SIGKILL)
        for process in running.values():
            process.wait()


def _end_with_parent() -> None:
    """Have the system end this process when its parent dies, even by kill -9."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _signal(processes: Iterable[Process], number: int) -> None:
    for process in processes:
        if process.start and _start(process.number) == process.start:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process.number, number)


def _below(numbers: set[int]) -> set[int]:
    """Return the descendants of processes."""
    parents = _parents()
    found: set[int] = set()
    level = set(numbers)
    while level:
        level = {number for number, parent in parents.items() if parent in level} - found - numbers
        found |= level
    return found


def _stat(number: int) -> list[str]:
    """Return the fields of /proc/NUMBER/stat after the name; none if the process is gone or a zombie."""
    try:
        fields = Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return []
    return [] if fields[0] == "Z" else fields


def _start(number: int) -> str:
    if Path("/proc/self/stat").exists():
        fields = _stat(number)
        return fields[19] if fields else ""
    listed = subprocess.run(["ps", "-o", "lstart=", "-p", str(number)], capture_output=True, text=True, check=False)
    return listed.stdout.strip()


def _parents() -> dict[int, int]:
    if Path("/proc/self/stat").exists():
        numbers = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
        return {number: int(fields[1]) for number in numbers if (fields := _stat(number))}
    listed = subprocess.run(["ps", "-axo", "pid=,ppid="], capture_output=True, text=True, check=False).stdout
    return dict(tuple(map(int, line.split())) for line in listed.splitlines())  # type: ignore[misc]


def _command(number: int) -> str:
    try:
        return Path(f"/proc/{number}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
    except OSError:
        return ""
