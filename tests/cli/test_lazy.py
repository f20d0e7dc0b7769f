"""Help, the version and a wrong option need no torch."""

import subprocess
import sys

import pytest

import kedge.algorithms
from kedge.problem import DATASETS, MODELS, PARTITIONS
from kedge.runs import settings
from kedge.simulator.engines import ENGINES

COMMANDS = [
    "run",
    "resume",
    "compare",
    "sweep",
    "algorithms",
    "partition",
    "diagnose",
    "reproduce",
    "report",
    "watch",
    "export",
    "export-model",
]
PROGRAM = """
import sys
from kedge.cli.program import execute
code = execute(sys.argv[1:])
heavy = {"torch", "numpy", "scipy", "sklearn", "matplotlib", "optuna"} & set(sys.modules)
assert not heavy, heavy
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["--version"], 0),
        ([], 0),
        *(([name, "--help"], 0) for name in COMMANDS),
        *((["flower", *name, "--help"], 0) for name in ([], ["new"], ["demo"], ["node"])),
        (["run", "--nonsense"], 2),
        (["sweep", "--rounds", "few"], 2),
        (["run", "--rounds", "-1"], 2),
        (["compare", "--cohort", "few"], 2),
        (["run", "--local-update", "Foo(1)"], 2),
        (["nonsense"], 2),
        (["theory", "verify", "--help"], 0),
        (["resume"], 2),
    ],
)
def test_what_computes_nothing_loads_no_torch(arguments, code):
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr


def test_completion_loads_no_torch():
    program = (
        "import sys, atexit; atexit.register(lambda: print('torch' in sys.modules)); from kedge.cli import main; main()"
    )
    asked = {"_KEDGE_COMPLETE": "complete_bash", "COMP_WORDS": "kedge re", "COMP_CWORD": "1"}
    command = [sys.executable, "-c", f"import os, sys; os.environ |= {asked!r}; sys.argv[0] = 'kedge'; {program}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["resume", "reproduce", "report", "False"], done.stderr


def test_the_help_names_what_there_is():
    assert settings.DATASETS.split(", ") == [*DATASETS]
    assert settings.MODELS.split(", ") == [*MODELS]
    assert settings.PARTITIONS.split(", ") == [*PARTITIONS]
    assert settings.ENGINES.split(", ") == [*ENGINES]


def test_public_names_are_found_when_asked_for():
    program = """
import sys, kedge
assert "torch" not in sys.modules
assert "ScaffoldM" in dir(kedge) and "__version__" in dir(kedge)
from kedge import *
from kedge import ScaffoldM, simulate, cost
import kedge.costs
assert callable(kedge.cost) and kedge.__version__ and simulate is kedge.simulate
assert not hasattr(kedge, "nonsense")
assert all(hasattr(kedge, name) for name in kedge.__all__)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert set(kedge.algorithms.__all__) <= set(kedge.__all__)
