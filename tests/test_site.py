"""The documentation site: formulas, pages and navigation. `make site` builds it, `python -m tests.site` looks at it."""

import re
from pathlib import Path

import pytest
import yaml
from mkdocs.config.defaults import MkDocsConfig

import kedge
from docs.website import algorithm_pages, hook, notebooks, reference
from docs.website.formulas import in_words, is_formula, to_tex, typeset

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGE = (DOCS / "algorithms.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("written", "tex"),
    [
        ("x^{r+1} = mean_i x_i^{r,K}", r"x^{r+1} = \operatorname{mean}_i x_i^{r,K}"),
        ("(LΔσ/(S√K R))^{2/3}", r"(LΔσ/(S\sqrt{K} R))^{2/3}"),
        ("D / (√v^{r+1} + τ)", r"D / (\sqrt{v^{r+1}} + τ)"),
        ("β = min{c, max{1/R, ...}}", r"β = \min\lbrace c, \max\lbrace 1/R, \dots\rbrace \rbrace "),
        ("min{c, (NK/R)^{1/2}}", r"\min\lbrace c, (NK/R)^{1/2}\rbrace "),
        ("d_i^old", r"d_i^{\text{old}}"),
    ],
)
def test_formulas_become_tex(written, tex):
    assert to_tex(written) == tex


def test_words_between_formulas_stay_words():
    assert in_words("u_0 = v_r, then u_k = w_K from a client") == r"\(u_0 = v_r\), then \(u_k = w_K\) from a client"
    assert in_words("else each keeps its own; p is ``skip``") == r"else each keeps its own; \(p\) is `skip`"


def test_names_options_and_code_are_not_formulas():
    assert not any(map(is_formula, ["c_i", "server_lr", "0.1", "--eta", 'reference="current"', "FedAvgM.from_hat"]))
    page = "A `c_i` and x^r.\n\n```python\ny = x^r\n```\n\n[x](a_i^r.md) <!-- x^r -->\n"
    assert typeset(page) == page.replace("and x^r", r"and \(x^r\)")
    assert typeset("    g^{r+1} = x^r,   c^r = 0\n") == "\\[g^{r+1} = x^r, \\qquad c^r = 0\\]\n"


@pytest.mark.parametrize("name", kedge.ALGORITHMS)
def test_an_algorithm_has_a_page_with_its_pseudo_code_its_class_and_its_loop(name):
    page = algorithm_pages.pages(PAGE)[name]
    assert f"class {kedge.ALGORITHMS[name].__name__}(" in page
    assert page.count("```python") == 2
    steps = algorithm_pages.pseudo_code(name)
    for rule in re.findall(r"^    (?:local direction|server) +(.+)$", kedge.ALGORITHMS[name].__doc__, re.MULTILINE):
        goal = rule.partition(" = ")[0].split()[-1]
        assert to_tex(goal) in steps


def test_the_pseudo_code_of_scaffold_m_is_the_papers():
    steps = re.findall(r"--depth: (\d)[^>]*>(.*)</p>", algorithm_pages.pseudo_code("scaffold-m"))
    assert [(depth, step) for depth, step in steps if "β" in step or "g^{r+1} =" in step] == [
        ("3", r"\(g_i^{r,k} = β (∇F(x_i^{r,k}; ξ) - c_i^r + c^r) + (1-β) g^r\)"),
        ("1", r"\(g^{r+1} = \operatorname{mean}_i (x^r - x_i^{r,K}) / (ηK)\)"),
    ]


def test_the_reference_has_every_public_name_once():
    text = "".join(page for _, page in reference.pages().values())
    named = re.findall(r"^(?:::: kedge\.(?:.*\.)?|## `)(\w+)`?$", text, re.MULTILINE)
    assert sorted(named) == sorted(kedge.__all__)


def test_every_document_is_in_the_navigation():
    config = MkDocsConfig()
    config.load_dict(yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), yaml.SafeLoader))
    del config.nav[1]  # what it names has to go somewhere
    listed = set(re.findall(r"[\w/-]+\.md", str(hook.on_config(config).nav)))
    assert {file.relative_to(DOCS).as_posix() for file in DOCS.rglob("*.md")} <= listed


def test_nothing_that_the_site_loads_comes_from_elsewhere():
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "://" not in config
    assert "font: false" in config
    for file in [*DOCS.glob("assets/*.css"), *DOCS.glob("assets/*.js"), *DOCS.glob("assets/*/*.css")]:
        assert not re.search(r"(?:url\(|src=|import )['\"]?(?:https?:)?//", file.read_text(encoding="utf-8")), file


def test_what_is_vendored_has_its_licence():
    for folder in (file for file in (DOCS / "assets").iterdir() if file.is_dir()):
        assert "Permission is hereby granted" in (folder / "LICENSE").read_text(encoding="utf-8")


def test_a_notebook_becomes_a_page_with_what_it_printed():
    cells = [
        {"cell_type": "markdown", "source": ["# Title"]},
        {"cell_type": "code", "source": ["1 + 1"], "outputs": [
            {"output_type": "stream", "text": ["hello\n"]},
            {"output_type": "execute_result", "data": {"text/plain": ["2"]}},
            {"output_type": "display_data", "data": {"image/png": "aGk=", "text/plain": ["<Figure>"]}},
        ]},
    ]  # fmt: skip
    import json

    page, images = notebooks.page_of("name", json.dumps({"cells": cells}))
    assert page.startswith(
        "# Title\n\n```python\n1 + 1\n```\n\n```text\nhello\n```\n\n```text\n2\n```\n\n![Figure](name-1.png)"
    )
    assert images == {"name-1.png": b"hi"}


def test_a_picture_of_a_result_is_copied_as_it_is():
    picture = next((ROOT / "experiments" / "results").rglob("*.png")).relative_to(ROOT).as_posix()
    page = hook._relinked(f"[Figure](../{picture})", "docs/reproduce.md", "reproduce.md")
    assert page == f"[Figure](files/{picture})"
    assert hook._copies({"reproduce.md": page}) == {f"files/{picture}"}
    assert hook._copy(f"files/{picture}") == (ROOT / picture).read_bytes()
