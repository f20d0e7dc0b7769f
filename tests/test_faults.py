"""The short form of `python -m tests.faults`: some kills, and every call of the system that can fail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(os.name != "posix", reason="there is no SIGKILL")
def test_no_fault_changes_the_result():
    command = [sys.executable, "-m", "tests.faults", "--short", "--kills", "3", "--signals", "1"]
    command += ["--algorithms", "scaffold-m,stem"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "| SIGKILL at a random moment" in done.stdout
