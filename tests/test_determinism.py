"""The short form of `python -m tests.determinism`."""

import subprocess
import sys
from pathlib import Path


def test_threads_openmp_and_ranks_change_no_bit_of_random_models():
    command = [sys.executable, "-m", "tests.determinism", "--models", "4", "--threads", "1,3"]
    command += ["--openmp", "2", "--ranks", "1,2"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("| 32 | 0 |") == 2
