"""The short form of `python -m tests.fuzz`."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "targets", ["toml,set,options,grid,sweep,study,idx,cifar,npz,run", "config,manifest,state,metrics,summary"]
)
def test_no_input_is_a_traceback_a_hang_or_a_file_elsewhere(targets):
    command = [sys.executable, "-m", "tests.fuzz", "--inputs", "250", "--seconds", "8", "--only", targets]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " inputs, 0 failures" in done.stdout
