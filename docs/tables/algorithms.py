"""The generated parts of docs/algorithms.md: the overview, and in every section the costs and the hyper-parameters.

    python -m docs.tables.algorithms docs/algorithms.md

rewrites them in place. Everything else on the page is written by hand, including the limits, which the overview
collects.
"""

import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

from kedge.algorithm import Algorithm, rule_of
from kedge.algorithms import ALGORITHMS, find_algorithm
from kedge.checks import limits
from kedge.errors import UsageError
from kedge.report.costs import SECTION, blocks, costs, figures, sections

COSTS = re.compile(r"^\*\*Costs\.\*\*.*$", re.MULTILINE)
HYPER = re.compile(r"^\| name \|.*\n(?:\|.*\n)*", re.MULTILINE)
OVERVIEW = re.compile(r"(?<=<!-- generated: overview -->\n).*?(?=<!-- end -->)", re.DOTALL)
LIMIT = re.compile(r"^\*\*Limit\.\*\* S = N: (?P<all>[^;.]+); S < N: (?P<few>[^;.]+)\.", re.MULTILINE)


def refreshed(page: str) -> str:
    """Return the page with its generated parts updated."""
    return OVERVIEW.sub(lambda _: overview(page), "".join(_refreshed(block) for block in blocks(page)))


def overview(page: str) -> str:
    """Write the table of all algorithms; their limits come from their sections."""
    head = ("id", "class", "down", "up", "gradients", "client", "server", "cohort", "limit, S = N", "limit, S < N")
    rows = [head, ("---",) * len(head)]
    found = sections(page)
    for name, kind in ALGORITHMS.items():
        title = found.get(name, "").partition("\n")[0]
        limit = LIMIT.search(found.get(name, ""))
        if not limit:
            raise UsageError(f"the page of algorithms does not say where {name} ends")
        rows.append(
            (f"[`{name}`](#{_anchor(title)})", f"`{kind.__name__}`", *figures(kind), limit["all"], limit["few"])
        )
    return "\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows) + "\n"


def hyper_parameters(kind: type[Algorithm[Any, Any]]) -> str:
    """Write the table of an algorithm's hyper-parameters."""
    rows = ["| name | default | range | meaning |", "|---|---|---|---|"]
    for field in dataclasses.fields(kind):
        default = "required" if field.default is dataclasses.MISSING else f"`{field.default}`"
        rows.append(f"| `{field.name}` | {default} | {_range(rule_of(field))} | {rule_of(field)['help']} |")
    return "\n".join(rows) + "\n"


def _range(rule: Any) -> str:
    if rule["choices"]:
        return ", ".join(f"`{choice}`" for choice in rule["choices"])
    return ", ".join(limits(rule))


def _refreshed(block: str) -> str:
    section = SECTION.match(block)
    if not section:
        return block
    kind = find_algorithm(section["id"])
    return HYPER.sub(lambda _: hyper_parameters(kind), COSTS.sub(lambda _: costs(kind), block))


def _anchor(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lstrip("# ").lower()).replace(" ", "-")


def main(paths: list[str]) -> None:
    """Rewrite the generated parts of these pages."""
    for path in map(Path, paths):
        path.write_text(refreshed(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
