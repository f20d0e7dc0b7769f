"""What `make dist` builds, installed where there is nothing else.

    make dist && python -m tests.release

builds an empty virtual environment outside the repository, installs the wheel there in the versions of constraints.txt,
compares algorithms for five rounds and prints the page of one of them; then it does the same with the sdist. It takes a
minute or two and needs a package index.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"


def try_release(place: Path) -> None:
    """Install the wheel and then the sdist, and use the command line with each."""
    subprocess.run([sys.executable, "-m", "venv", place / "empty"], check=True)
    programs = place / "empty" / "bin"
    pip = [programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    subprocess.run([*pip, "--constraint", ROOT / "constraints.txt", wheel], check=True)
    use(programs, place / "with-wheel")
    subprocess.run([*pip, "--no-deps", "--force-reinstall", sdist], check=True)
    use(programs, place / "with-sdist")


def use(programs: Path, place: Path) -> None:
    """Run what a user runs first, in a directory of its own."""
    place.mkdir()
    kedge = programs / "kedge"
    for command in (
        ["--version"],
        ["compare", "--rounds", "5", "--out", "demo"],
        ["algorithms", "--detail", "scaffold-m"],
    ):
        done = subprocess.run([kedge, *command], cwd=place, check=True, capture_output=True, text=True)
        print(f"$ kedge {' '.join(command)}\n{done.stdout[:700]}")
    if not (place / "demo" / "curves.png").stat().st_size:
        raise SystemExit("the comparison drew no figure")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        try_release(Path(temporary))
