"""One process of `kedge run --workers`: `python rank.py SOCKET ARGUMENTS` is `kedge ARGUMENTS` under a launcher.

The launcher holds the other end of the socket. It hears from this process every few seconds, and when it ends, so does
this process. This runs as a file, because importing kedge takes seconds, during which this process would be unwatched.
"""

import ctypes
import os
import runpy
import select
import signal
import socket
import sys
import threading

BEAT = 1.0
"""Seconds between two heartbeats."""


def end_with_parent() -> None:
    """Have the system end this process when its parent ends, even while it is stopped and no thread can; on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def attend(launcher: socket.socket) -> None:
    """Send heartbeats until the launcher has ended, then end."""
    try:
        while True:
            heard, _, _ = select.select([launcher], [], [], BEAT)
            if heard and not launcher.recv(1):
                break
            launcher.send(b".")
    except OSError:
        pass
    os._exit(1)


if __name__ == "__main__":
    end_with_parent()
    launcher = socket.socket(fileno=int(sys.argv.pop(1)))
    launcher.set_inheritable(False)
    os.environ["KEDGE_LAUNCHER"] = str(launcher.fileno())
    threading.Thread(target=attend, args=(launcher,), daemon=True).start()
    runpy.run_module("kedge", run_name="__main__", alter_sys=True)
