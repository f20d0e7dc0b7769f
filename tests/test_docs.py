"""The page of algorithms: every algorithm has a section with all its parts, and what is generated is current."""

import re
from pathlib import Path

import pytest

import kedge
from docs.tables import algorithms
from kedge.report import costs

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "algorithms.md"
PARTS = [
    "Local direction", "Server", "State", "Costs", "Rate", "Limit", "Hyper-parameters", "Citation", "Checked",
]  # fmt: skip


@pytest.fixture(scope="module")
def page():
    return PAGE.read_text(encoding="utf-8")


def test_the_generated_parts_are_current(page):
    assert algorithms.refreshed(page) == page, "run `make docs`"


def test_the_sections_are_those_of_the_built_in_algorithms_in_their_order(page):
    assert list(costs.sections(page)) == list(kedge.ALGORITHMS)


@pytest.mark.parametrize("name", kedge.ALGORITHMS)
def test_a_section_has_all_its_parts(page, name):
    section = costs.sections(page)[name]
    said = dict(re.findall(r"^\*\*([^*]+)\.\*\* (.+)$", section, re.MULTILINE))
    assert [part for part in said if part in PARTS] == PARTS
    assert re.search(r"\)\n\n[A-Z][^*]", section), "what it does comes first"
    assert re.match(r"S = N: .+; S < N: .+\.", said["Limit"])
    assert ("not defined" in said["Limit"]) == kedge.ALGORITHMS[name].full_participation


def test_refreshing_mends_every_generated_part_and_nothing_else(page):
    spoilt = re.sub(r"\*\*Costs\.\*\* .*", "**Costs.** Free.", page)
    spoilt = re.sub(r"\| `(eta|beta)` .*\n", "", spoilt)
    spoilt = re.sub(r"(?<=overview -->\n)(.*\n)+?(?=<!-- end)", "", spoilt)
    assert len(spoilt) < len(page)
    assert algorithms.refreshed(spoilt) == page


def test_the_page_is_rewritten_in_place(page, tmp_path):
    file = tmp_path / "page.md"
    file.write_text(page.replace("**Costs.** Per", "**Costs.** Once per"), encoding="utf-8")
    algorithms.main([str(file)])
    assert file.read_text(encoding="utf-8") == page


def test_an_algorithm_without_a_section_is_named(page):
    with pytest.raises(kedge.UsageError, match="does not say where stem ends"):
        algorithms.refreshed(page.replace("### STEM (`stem`)", "### STEM"))


def test_links_within_the_overview_lead_to_headings(page):
    headings = {algorithms._anchor(line) for line in page.splitlines() if line.startswith("#")}
    links = re.findall(r"\]\(#([^)]+)\)", page)
    assert len(links) == len(kedge.ALGORITHMS)
    assert set(links) <= headings


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fedavg", "down 1 vector (4 MB), up 1 vector (4 MB); K gradients."),
        ("fednova", "up 1 vector and 1 number (4 MB); K gradients."),
        ("ce-lsgd", "In addition, one client of the cohort: down 1 vector (4 MB), up 1 vector (4 MB); 2K-2 gradients."),
        ("scaffold-m", "Opening, once on all N clients: down 1 vector (4 MB), up 1 vector (4 MB); B gradients."),
        ("mimelite-mvr", "2K gradients and 2 full passes over the local data. Opening"),
        ("mimelite-mvr", "up 1 vector (4 MB); 1 full pass over the local data."),
    ],
)
def test_costs_in_words(name, words):
    assert words in costs.costs(kedge.ALGORITHMS[name])


def test_hyper_parameters_in_a_table():
    table = algorithms.hyper_parameters(kedge.ALGORITHMS["mime-mvr"])
    assert "| `eta` | required | above 0 | local learning rate |\n" in table
    assert "| `beta` | `0.1` | above 0, at most 1 | " in table
    assert "| `reference` | `prev` | `prev`, `current` | " in table


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")], ids=lambda p: p.name)
def test_every_relative_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target
