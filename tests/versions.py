"""kedge with the lowest and with the newest versions of what it depends on.

    python -m tests.versions lowest
    python -m tests.versions newest

builds a virtual environment of its own, outside the repository, with exactly the lower bounds of pyproject.toml or with
the newest releases, and runs `SUITE` there. torch is the one of constraints.txt in both, so its own lower bound is not
tried. It takes a few minutes and needs a package index.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TOOLS = ("pytest", "hypothesis", "sympy")
EXTRAS = ("optuna", "pandas", "parquet", "tensorboard")
"""The extras that are tried too: small, and independent of everything else."""

DIRECT = [*PROJECT["dependencies"], *(each for extra in EXTRAS for each in PROJECT["optional-dependencies"][extra])]
CONSTRAINTS = (ROOT / "constraints.txt").read_text(encoding="utf-8")
PINNED = dict(re.findall(r"^([\w.-]+)==(\S+)$", CONSTRAINTS, re.MULTILINE))

SUITE = (
    "tests/test_exports.py", "tests/test_direction.py", "tests/test_keyed.py", "tests/test_reductions.py",
    "tests/test_contract.py", "tests/problem", "tests/runs/test_config.py", "tests/runs/test_reader.py",
    "tests/runs/test_resume.py", "tests/cli/test_cli.py", "tests/cli/test_surface.py", "tests/cli/test_sweep.py",
)  # fmt: skip


def requirements(which: str) -> list[str]:
    """Return what to install, besides kedge itself."""
    bounds = dict(map(_bound, DIRECT))
    del bounds["torch"]
    if which == "newest":
        return [f"torch=={PINNED['torch']}", *bounds, *TOOLS]
    lowest = [f"{name}=={bound}" for name, bound in bounds.items()]
    return [*lowest, *(f"{name}=={PINNED[name]}" for name in ("torch", *TOOLS))]


def _bound(requirement: str) -> tuple[str, str]:
    found = re.fullmatch(r"([\w.-]+)>=([\d.]+)", requirement)
    if not found:
        raise ValueError(f"{requirement!r} in pyproject.toml is not of the form name>=version")
    return found[1], found[2]


def try_versions(which: str, place: Path, suite: list[str]) -> int:
    """Build the environment and run the suite in it; return its exit code."""
    environment = place / which
    if not (environment / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "--editable", ROOT], check=True)
    subprocess.run([*pip, *requirements(which)], check=True)
    subprocess.run([python, "-m", "pip", "check"], check=True)
    listed = subprocess.run(
        [python, "-m", "pip", "list", "--format=freeze"], check=True, capture_output=True, text=True
    )
    names = {name.lower().replace("_", "-") for name, _ in map(_bound, PROJECT["dependencies"])}
    print(
        *[line for line in listed.stdout.splitlines() if line.partition("==")[0].lower().replace("_", "-") in names],
        sep="\n",
    )
    # An old release may warn that a newer one of something else deprecates what it calls.
    quiet = ["-W", "ignore::DeprecationWarning"] if which == "lowest" else []
    return subprocess.run(
        [python, "-m", "pytest", "-p", "no:cacheprovider", *quiet, *(suite or SUITE)], cwd=ROOT
    ).returncode


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=["lowest", "newest"])
    parser.add_argument("suite", nargs="*", help="tests to run instead of the usual ones")
    parser.add_argument("--place", type=Path, help="where to build the environment, to keep and reuse it")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(try_versions(chosen.which, chosen.place or Path(temporary), chosen.suite))
