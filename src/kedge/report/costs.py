"""What the algorithms cost and which hyper-parameters they take, in words."""

import dataclasses
import re
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from kedge.algorithm import Algorithm
from kedge.costs import Cost, ExchangeCost, Size, cost
from kedge.errors import UsageError

Kind = type[Algorithm[Any, Any]]

PARAMETERS, BYTES = 1_000_000, 4  # of the example model, and per number
SECTION = re.compile(r"### (?P<name>.+) \(`(?P<id>[^`]+)`\)\n")
SYMBOLS = re.compile(r"^\*\*Symbols\.\*\*.*?(?=\n\n)", re.MULTILINE | re.DOTALL)


class Figures(NamedTuple):
    """The costs of an algorithm, each in a word or two: per client of the cohort and round, with K local steps."""

    down: str  # vectors; in parentheses, what one client of the cohort adds
    up: str
    gradients: str
    client: str  # vectors of state
    server: str
    cohort: str


def figures(kind: Kind) -> Figures:
    """Return the costs of an algorithm with its default hyper-parameters."""
    few, many = _at_10_and_11(kind)
    one = [e for e in many.round if e.cohort == "first"]
    return Figures(
        down=_extra(many.down().vectors, sum(e.down.vectors for e in one)) + _with_all(kind, ", {} with all"),
        up=_extra(many.up().vectors, sum(e.up.vectors for e in one)),
        gradients=_gradients(few, many),
        client=str(many.client.vectors),
        server=str(many.server.vectors),
        cohort="all" if kind.full_participation else "any",
    )


def costs(kind: Kind) -> str:
    """Write the costs of an algorithm as sentences, with bytes for a model of a million float32 parameters."""
    few, many = _at_10_and_11(kind)
    ordinary, passes = _linear(few.gradients(), many.gradients()), many.full_passes()
    work = [_count(ordinary, "gradient")] if ordinary != "0" else []
    work += [_passes(passes)] if passes else []
    text = f"Per client and round: down {_sent(many.down())}, up {_sent(many.up())}; {' and '.join(work)}."
    for before, after in zip(few.round, many.round, strict=True):
        if after.cohort == "first":
            gradients = _count(_linear(before.gradients, after.gradients), "gradient")
            text += f" In addition, one client of the cohort: down {_sent(after.down)}, up {_sent(after.up)};"
            text += f" {gradients}."
    if many.opening:
        text += " Opening, once on all N clients:"
        text += "".join(f" down {_sent(e.down)}, up {_sent(e.up)}; {work}." for e, work in _opening(kind, many))
    text += _with_all(kind, " With all clients in every round, who keep the last message: {} of the vectors down.")
    return f"**Costs.** {text}"


def sections(page: str) -> dict[str, str]:
    """Return the sections of the page, with their headings, by the ids of the algorithms."""
    return {found["id"]: block for block in blocks(page) if (found := SECTION.match(block))}


def symbols(page: str) -> str:
    """Return the paragraph that explains the letters."""
    found = SYMBOLS.search(page)
    return found[0] if found else ""


def read_page() -> str:
    """Return the page of algorithms, from the installed package or the source tree."""
    installed = resources.files("kedge.report") / "algorithms.md"
    source = Path(__file__).parents[3] / "docs" / "algorithms.md"
    for place in (installed, source):
        if place.is_file():
            return place.read_text(encoding="utf-8")
    raise UsageError("the page of algorithms was not installed with this copy of kedge")


def _at_10_and_11(kind: Kind) -> tuple[Cost, Cost]:
    """Return the costs with K = 10 and K = 11 local steps, from which a formula in K can be read off."""
    algorithm = kind(eta=0.1)
    return cost(algorithm, PARAMETERS, local_steps=10), cost(algorithm, PARAMETERS, local_steps=11)


def _with_all(kind: Kind, words: str) -> str:
    """Say how many vectors go down when everyone takes part, if there are fewer."""
    algorithm = kind(eta=0.1)
    sampled, everyone = (cost(algorithm, everyone=all_of_them).down().vectors for all_of_them in (False, True))
    return words.format(everyone) if everyone < sampled else ""


def _opening(kind: Kind, default: Cost) -> list[tuple[ExchangeCost, str]]:
    """Return the exchanges of the opening with the gradients of each, a formula in B if there is one."""
    if "opening_batches" not in {field.name for field in dataclasses.fields(kind)}:
        return [(e, _passes(e.full_passes)) for e in default.opening]
    settings: list[dict[str, Any]] = [{"eta": 0.1, "opening_batches": batches} for batches in (10, 11)]
    few, many = (cost(kind(**setting), PARAMETERS).opening for setting in settings)
    return [(b, _count(_linear(a.gradients, b.gradients, "B"), "gradient")) for a, b in zip(few, many, strict=True)]


def _extra(vectors: int, one: int) -> str:
    return f"{vectors} (+{one})" if one else str(vectors)


def _gradients(few: Cost, many: Cost) -> str:
    """Write the number of gradients as a formula in K, from its values at K = 10 and 11."""
    ordinary = _linear(few.gradients(), many.gradients())
    at_10, at_11 = (sum(e.gradients for e in c.round if e.cohort == "first") for c in (few, many))
    one = _linear(at_10, at_11)
    passes = many.full_passes()
    terms = [ordinary] if ordinary != "0" else []
    terms += [f"{passes} full"] if passes else []
    return " + ".join(terms) + (f" (+{one})" if one != "0" else "")


def _linear(at_10: int, at_11: int, letter: str = "K") -> str:
    slope = at_11 - at_10
    fixed = at_10 - 10 * slope
    if not slope:
        return str(fixed)
    return f"{'' if slope == 1 else slope}{letter}" + (f"{fixed:+d}" if fixed else "")


def _sent(size: Size) -> str:
    """Write a message's size in vectors and, for the model of the examples, in megabytes."""
    numbers = size.numbers - size.vectors * PARAMETERS
    more = f" and {_count(str(numbers), 'number')}" if numbers else ""
    return f"{_count(str(size.vectors), 'vector')}{more} ({size.numbers * BYTES / 1e6:.3g} MB)"


def _count(number: str, noun: str) -> str:
    return f"{number} {noun}{'' if number == '1' else 's'}"


def _passes(number: int) -> str:
    return f"{number} full pass{'' if number == 1 else 'es'} over the local data"


def blocks(page: str) -> list[str]:
    """Cut the page before every heading of the second and third level."""
    return re.split(r"^(?=###? )", page, flags=re.MULTILINE)
