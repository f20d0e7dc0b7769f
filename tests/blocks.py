"""The blocks of code in the documents, and how the tests run them.

The Python blocks of a page run one after another in one namespace, the `kedge` commands of its console blocks in this
process, all of them in an empty directory (with docs/examples). A console block is a list of commands or, where they
start with ``$``, of commands with what they print: an error is then expected, and compared.

Commands that train run as they are printed, except that they play few rounds with one seed in one process: `CHEAPER`.
A block that cannot be run in seconds says so on the page, in the line after it: *Not run by the tests: reason.*
"""

import contextlib
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kedge.cli.program import execute

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
RUN = ("python", "console")
SHOWN = ("text", "toml", "ini", "yaml", "dockerfile", "sh")
"""Languages of blocks that are only shown: what a program prints, a file, and the commands of other programs."""

CHEAPER = {
    "run": ["--rounds", "3", "--workers", "1"],
    "compare": ["--rounds", "3", "--seeds", "1", "--jobs", "1"],
    "sweep": ["--rounds", "3", "--seeds", "1", "--jobs", "1"],
}
FENCE = re.compile(
    r"^```(?P<language>\w*)\n(?P<text>.*?)^```$(?:\n+\*Not run by the tests: (?P<reason>[^*]+)\.\*)?", re.M | re.S
)


@dataclass(frozen=True)
class Block:
    """A fenced block: where it stands, its language and text, and why it is not run, if it is not."""

    page: str
    line: int
    language: str
    text: str
    reason: str | None

    @property
    def first(self) -> str:
        """The first line, to recognise it by."""
        return self.text.partition("\n")[0].strip()


@dataclass(frozen=True)
class Command:
    """A command of a console block, and what the page says that it prints."""

    words: list[str]
    printed: list[str]
    exact: bool
    """Whether the page shows what it prints."""


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in their order."""
    text = page.read_text(encoding="utf-8")
    name = page.relative_to(ROOT).as_posix()
    return [
        Block(name, text.count("\n", 0, found.start()) + 1, found["language"], found["text"], found["reason"])
        for found in FENCE.finditer(text)
    ]


def commands(text: str) -> list[Command]:
    """Return the commands of a console block."""
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    prompt = any(line.startswith("$ ") for line in lines)
    found: list[Command] = []
    for line in lines:
        if prompt and not line.startswith("$ "):
            found[-1].printed.append(line)
        elif words := shlex.split(line.removeprefix("$ "), comments=True):
            found.append(Command(words, [], exact=prompt))
    return found


def cheaper(words: list[str]) -> list[str]:
    """Return the arguments of a `kedge` command with fewer rounds, seeds and processes."""
    arguments = words[1:]
    more = CHEAPER.get(arguments[0], []) if arguments else []
    if "--halving" in arguments:
        more = ["--rounds", "9", *more[2:]]
    if "--trials" in arguments:
        more = [*more, "--trials", "2"]
    if arguments[:1] == ["run"] and "--workers" not in arguments:
        more = more[:2]
    return arguments + more


def run_page(page: Path, place: Path) -> None:
    """Run the blocks of a page in a directory; an assertion names the block that fails."""
    shutil.copytree(ROOT / "docs" / "examples", place / "docs" / "examples")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with inside(place):
        for block in blocks(page):
            if block.language == "python" and not block.reason:
                code = compile("\n" * block.line + block.text, block.page, "exec")
                exec(code, namespace)
            elif block.language == "console" and not block.reason:
                for command in commands(block.text):
                    run_command(command, f"{block.page}:{block.line}")


def run_command(command: Command, where: str) -> None:
    """Run a `kedge` command; it must succeed, or fail with the sentence that the page shows."""
    assert command.words[0] == "kedge", f"{where}: the tests run only kedge, not {command.words[0]}"
    assert command.words[1] != "watch" or "--terminal" in command.words, f"{where}: a server does not end by itself"
    said: list[str] = []
    with heard(said):
        code = execute(cheaper(command.words) if not command.exact else command.words[1:])
    sentences = [line for line in command.printed if line.startswith("kedge: ")]
    assert code == (2 if sentences else 0), f"{where}: `{shlex.join(command.words)}` exits with {code}: {said}"
    for sentence in sentences:
        assert sentence in " ".join(" ".join(said).split()), f"{where}: `{shlex.join(command.words)}` says {said}"


@contextlib.contextmanager
def heard(said: list[str]) -> Iterator[None]:
    """Collect what is printed to standard error."""
    import io

    text = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(text):
        yield
    said += text.getvalue().splitlines()


@contextlib.contextmanager
def inside(place: Path) -> Iterator[None]:
    """Work in a directory."""
    before = Path.cwd()
    os.chdir(place)
    try:
        yield
    finally:
        os.chdir(before)
