"""Every block of code in the documents runs, or says why it does not."""

import nbformat
import pytest

from docs.website.execute import NOTEBOOKS, executed
from kedge.reproduce.experiment import read
from kedge.runs.config import check
from tests.blocks import PAGES, ROOT, RUN, SHOWN, blocks, commands, run_page

BLOCKS = [block for page in PAGES for block in blocks(page)]
NOT_RUN = {
    ("docs/step-or-momentum.md", "a figure takes minutes to days"),
    ("CONTRIBUTING.md", "it installs packages"),
    ("README.md", "it installs packages"),
    ("docs/distributed.md", "it needs two machines"),
    ("docs/distributed.md", "it needs a Slurm cluster"),
    ("docs/reports.md", "it serves a page until Ctrl-C"),
    ("docs/reproduce.md", "a figure takes minutes to days"),
    ("docs/reproduce.md", "the file is yours; a test runs the one above"),  # tests/reproduce/test_own.py
}
"""All the reasons on all the pages. Whoever adds one adds it here too, and explains why."""


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(b.language in RUN for b in blocks(page))], ids=lambda p: p.name
)
def test_the_blocks_of_a_page_run(page, tmp_path):
    run_page(page, tmp_path)


def test_a_block_that_is_not_run_says_why():
    assert {(block.page, block.reason) for block in BLOCKS if block.reason} == NOT_RUN
    assert [f"{b.page}:{b.line}" for b in BLOCKS if b.language == "sh" and not b.reason] == []


def test_every_block_names_its_language():
    assert [f"{b.page}:{b.line} {b.first}" for b in BLOCKS if b.language not in (*RUN, *SHOWN)] == []


def test_commands_are_in_blocks_that_are_run():
    indented = [
        f"{p.name}: {line}"
        for p in PAGES
        for line in p.read_text("utf-8").splitlines()
        if line.startswith("    kedge ")
    ]
    assert indented == []


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "toml"], ids=lambda b: f"{b.page}:{b.line}")
def test_a_configuration_on_a_page_is_one(block):
    import tomllib

    content = tomllib.loads(block.text)
    if "title" in content:  # an experiment, which names code: tests/reproduce/test_own.py runs it
        read("mine", block.text)
    else:
        check(content)


def test_commands_are_read_as_a_shell_reads_them():
    found = commands("kedge run --set a='b c' \\\n   --out x   # a comment\n\n# another\nkedge algorithms\n")
    assert [command.words for command in found] == [
        ["kedge", "run", "--set", "a=b c", "--out", "x"],
        ["kedge", "algorithms"],
    ]
    (first, second) = commands("$ kedge run\n$ kedge resume x\nkedge: no\n")
    assert (first.printed, second.printed, second.exact) == ([], ["kedge: no"], True)


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs_and_is_stored_with_what_it_prints(file):
    stored = nbformat.read(file, as_version=4)
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), "run `make docs`"
    executed(file)


def test_the_pages_are_all_there():
    assert ROOT / "docs" / "tutorial.md" in PAGES
