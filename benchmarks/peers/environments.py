"""The virtual environments of the peers, made from their files of requirements."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

REQUIREMENTS = Path(__file__).parent / "requirements"
PEERS = sorted(file.stem for file in REQUIREMENTS.glob("*.txt"))
DEFAULT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kedge-peers"


def interpreter(folder: Path, peer: str) -> Path:
    """Return the python that runs a peer: its environment's, or for kedge this one."""
    if peer == "kedge":
        return Path(sys.executable)
    return folder / peer / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def is_ready(folder: Path, peer: str) -> bool:
    """Say whether a peer's environment was made from its requirements as they are now."""
    installed = folder / peer / "requirements.txt"
    wanted = REQUIREMENTS / f"{peer}.txt"
    return peer == "kedge" or (installed.exists() and installed.read_text() == wanted.read_text())


def make(folder: Path, peer: str) -> None:
    """Make a peer's environment; the mark that it is complete comes last."""
    wanted = REQUIREMENTS / f"{peer}.txt"
    if (folder / peer).exists() and not (folder / peer / "pyvenv.cfg").exists():
        raise RuntimeError(f"{folder / peer} is something else than a virtual environment")
    venv.create(folder / peer, with_pip=True, clear=True)
    pip = [str(interpreter(folder, peer)), "-m", "pip", "install", "--quiet", "--requirement", str(wanted)]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(reason(done.stderr))
    shutil.copy(wanted, folder / peer / "requirements.txt")


def reason(errors: str) -> str:
    """Return the one line of a program's errors that says most: the last that names an error, else the last."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    named = [line for line in lines if "Error" in line or "ERROR" in line]
    return (named or lines or ["no message"])[-1][:200]
