"""`kedge flower node`: flower-supernode with a SuperExec that keeps torch imported, or Flower's own where it cannot."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType

from kedge.errors import UsageError
from kedge.flower.loopback import free_port, program_path
from kedge.flower.warm import TRIED, is_supported


def command_lines(arguments: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Return the command lines of the SuperNode and of its SuperExec, None if the SuperNode is to start its own."""
    if any(argument.split("=")[0] == "--isolation" for argument in arguments):
        raise UsageError("--isolation is given, but `kedge flower node` decides that itself")
    if not is_supported():
        return ["flower-supernode", *arguments], None
    given = list(arguments)
    port = _value(given, "--port")
    if port is None:
        port = str(free_port())
        given += ["--port", port]
    return (
        ["flower-supernode", *given, "--isolation", "process"],
        # The SuperNode and its SuperExec talk on the loopback interface, without certificates.
        [sys.executable, "-m", "kedge.flower.warm", "--insecure", "--runtime-api-address", f"127.0.0.1:{port}"],
    )


def _value(arguments: Sequence[str], option: str) -> str | None:
    for place, argument in enumerate(arguments):
        if argument == option and place + 1 < len(arguments):
            return arguments[place + 1]
        if argument.startswith(f"{option}="):
            return argument.partition("=")[2]
    return None


def run_node(arguments: Sequence[str], say: Callable[[str], object] = print) -> int:
    """Run both until one of them ends, then end the other; return the SuperNode's exit code."""
    node, executor = command_lines(arguments)
    if executor is None:
        say(f"this Flower is not one of {', '.join(f'{v}x' for v in TRIED)}: every message starts a process")
    path = program_path()
    program = shutil.which(node[0], path=path)
    if program is None:
        raise UsageError(f"there is no program {node[0]}, which Flower installs, beside this Python or on PATH")
    commands = [[program, *node[1:]], *([] if executor is None else [executor])]
    processes: list[subprocess.Popen[bytes]] = []

    def end(number: int, frame: FrameType | None) -> None:
        for process in processes:
            process.send_signal(number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        for command in commands:  # one by one: if the second cannot start, the first is ended
            started = subprocess.Popen(command, env=os.environ | {"PATH": path})
            processes.append(started)
        while all(process.poll() is None for process in processes):
            time.sleep(0.2)
    finally:
        for process in processes[::-1]:
            _ended(process)
        for number, handler in before.items():
            signal.signal(number, handler)
    code = processes[0].returncode
    return 128 - code if code < 0 else code


def _ended(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()
