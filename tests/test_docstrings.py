"""`help` of an algorithm is enough to use it: formulas that agree with the page, and an example that runs."""

import dataclasses
import doctest
import pydoc
import re
from pathlib import Path

import pytest

import kedge
from kedge.report import costs

PAGE = (Path(__file__).parents[1] / "docs" / "algorithms.md").read_text(encoding="utf-8")
EVERY = pytest.mark.parametrize("name", kedge.ALGORITHMS)
STATEFUL = {name for name, kind in kedge.ALGORITHMS.items() if kedge.cost(kind(eta=0.1)).client.vectors}


def plain(text: str) -> str:
    return re.sub(r"\s+", " ", text)


@EVERY
def test_the_example_of_an_algorithm_runs(name):
    kind = kedge.ALGORITHMS[name]
    (example,) = doctest.DocTestFinder(recurse=False).find(kind, kind.__name__, globs={})
    assert f"kedge.{kind.__name__}(" in "".join(line.source for line in example.examples)
    outcome = doctest.DocTestRunner().run(example)
    assert outcome.failed == 0
    assert outcome.attempted >= 3


@EVERY
def test_help_says_what_it_is_whose_it_is_and_its_rules(name):
    first, *rest = kedge.ALGORITHMS[name].__doc__.splitlines()
    assert re.search(r"\(.*\b(19|20)\d\d\b.*\)\.$", first), "the first line ends with the source"
    labels = [line.split("  ")[2] for line in rest if re.match(r"    [a-z]", line)]
    rules = ["local direction", *(["client"] if name in STATEFUL else []), "server"]
    assert [label for label in labels if label in ("local direction", "client", "server")] == rules


@EVERY
def test_the_formulas_of_help_are_those_of_the_page(name):
    section = costs.sections(PAGE)[name]
    rules = re.search(r"\*\*Local direction\.\*\*.*?(?=\*\*State)", section, re.DOTALL)[0]
    formulas = [plain(code) for code in re.findall(r"`([^`]+)`", rules) if " = " in code]
    assert formulas
    said = plain(kedge.ALGORITHMS[name].__doc__)
    assert [formula for formula in formulas if formula not in said] == []


@EVERY
def test_help_explains_every_hyper_parameter(name):
    kind = kedge.ALGORITHMS[name]
    said = pydoc.plain(pydoc.render_doc(kind))
    for field in dataclasses.fields(kind):
        assert f"{field.name:<15}  {field.metadata['help']} (" in said


def test_help_tells_momentum_in_the_local_steps_from_that_of_the_server():
    assert "Flower" in kedge.FedAvgM.__doc__
    assert "ServerMomentum" in kedge.FedAvgM.__doc__
    assert "elsewhere called FedAvgM" in kedge.ServerMomentum.__doc__
