"""The short form of `python -m tests.faults`: some kills, and every call of the system that can fail."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.broken import STATEFUL
from tests.kills import Kills


@pytest.mark.skipif(os.name != "posix", reason="there is no SIGKILL")
def test_no_fault_changes_the_result():
    command = [sys.executable, "-m", "tests.faults", "--short", "--kills", "3", "--signals", "1"]
    command += ["--algorithms", "scaffold-m,stem"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "| SIGKILL at a random moment" in done.stdout


def test_kills_are_spread_evenly_over_algorithms_and_moments():
    kills = Kills(Path("nowhere"), 1000, STATEFUL, signal.SIGKILL, set(), seed=0)
    assert sum(kills.quota.values()) == 1000
    assert max(kills.quota.values()) - min(kills.quota.values()) <= 1
    for name, quota in kills.quota.items():
        moments = sorted(kills._moment(name, turn)[0] for turn in range(quota))
        assert all(place / quota <= moment < (place + 1) / quota for place, moment in enumerate(moments))
