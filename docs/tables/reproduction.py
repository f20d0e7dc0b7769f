"""The generated parts of pages on reproduction: what the figures cost, and each claim with what was measured.

    python -m docs.tables.reproduction README.md docs/reproduce.md

rewrites them in place from the experiments and from the results in experiments/results of the current directory.
"""

import math
import re
import sys
from collections.abc import Callable
from pathlib import Path

from kedge.reproduce.claims import NOT_TESTABLE, Difference, JudgedClaim, findings
from kedge.reproduce.conduct import measures_of, others_at
from kedge.reproduce.estimate import cost_table
from kedge.reproduce.experiment import SCALES, Experiment, load, names
from kedge.reproduce.verdict import said_of

SHOWN = ("paper", "overnight", "laptop")
"""The scales whose results count, best first; smoke is evidence of nothing."""

PART = re.compile(r"(?<=<!-- generated: )(?P<name>\w+) -->\n.*?(?=<!-- end -->)", re.DOTALL)


def refreshed(page: str, results: Path) -> str:
    """Return the page with its generated parts updated."""
    parts: dict[str, Callable[[], str]] = {
        "costs": costs,
        "claims": lambda: claims(results, beyond=False),
        "beyond": lambda: claims(results, beyond=True),
        "summary": lambda: summary(results),
        "unstated": unstated,
    }
    return PART.sub(lambda found: f"{found['name']} -->\n\n{parts[found['name']]()}\n", page)


def costs() -> str:
    """Write the table of figures and what they take on two cores."""
    head = ["figure", "in the paper", "shows", *SCALES]
    return _table([head, ["---"] * len(head), *([f"`{name}`", *others] for name, *others in cost_table())])


def claims(results: Path, *, beyond: bool) -> str:
    """Write one row per claim and panel, of the paper or beyond it, with the results so far."""
    rows = [["figure", "claim", "panel", "measured", "verdict", "scale"], ["---"] * 6]
    for experiment in map(load, names()):
        if experiment.beyond == beyond:
            rows += [_row(experiment, scale, finding) for scale, finding in judged(experiment, results)]
    return _table(rows)


def summary(results: Path) -> str:
    """Write one row per claim of the paper: in which panels it holds, in which not, and what is not known yet."""
    rows = [["the paper says", "here"], ["---"] * 2]
    for experiment in map(load, names()):
        if not experiment.beyond:
            found = judged(experiment, results)
            for claim in experiment.claims:
                told: dict[str, list[str]] = {}
                for _, finding in found:
                    if finding.claim is claim:
                        remark = f" (but {finding.remark})" if finding.remark else ""
                        told.setdefault(verdict_of(experiment, finding), []).append(
                            (finding.where or experiment.figure) + remark
                        )
                said = "; ".join(f"**{word}** in {', '.join(places)}" for word, places in told.items())
                rows.append([claim.text, said])
    return _table(rows)


def unstated() -> str:
    """Write what the paper does not state, figure by figure."""
    rows = [["figure", "not stated in the paper, and chosen here"], ["---"] * 2]
    return _table([*rows, *([e.figure, e.unstated] for e in map(load, names()) if not e.beyond)])


def judged(experiment: Experiment, results: Path) -> list[tuple[str, JudgedClaim]]:
    """Return what is said about every claim in every panel, at the best scale at which that was run, or else laptop."""
    scales = [scale for scale in SHOWN if scale in experiment.scales]
    columns = []
    for scale in scales:
        measured = measures_of(results, experiment.name, scale) or []
        found = findings(experiment, scale, measured, others_at(results, scale))
        columns.append([(scale, each) for each in found])
    return [next((each for each in row if each[1].differences), row[-1]) for row in zip(*columns, strict=True)]


def verdict_of(experiment: Experiment, finding: JudgedClaim) -> str:
    """Return the verdict on a claim; where only a larger scale can test it, with the state of that."""
    word = said_of(experiment.beyond)(finding.verdict)
    return f"{word}, not run yet at `overnight`" if word == NOT_TESTABLE and "overnight" in experiment.scales else word


def _row(experiment: Experiment, scale: str, finding: JudgedClaim) -> list[str]:
    folder = f"../experiments/results/{experiment.name}/{scale}"
    ran = bool(finding.differences)
    where = finding.where or experiment.figure
    said = [_measured(each) for each in finding.differences]
    said += [f"not counted: {_measured(each)}" for each in finding.shown]
    why = experiment.scales[scale].untestable
    return [
        f"[{where}]({folder}/figure.png)" if ran else where,
        finding.claim.text,
        finding.panel,
        "<br>".join(said) if ran else (why or "-"),
        f"**{verdict_of(experiment, finding)}**" + (f", but {finding.remark}" if finding.remark else ""),
        f"[{scale}]({folder}/verdict.md)" if ran else scale,
    ]


def _measured(each: Difference) -> str:
    if math.isnan(each.adjusted):
        return f"{each.name}: {each.amount} {each.unit}"
    flips = f", not with {' or '.join(each.flips)}" if each.flips else ""
    return f"{each.name}: {each.amount} {each.unit}, p = {each.adjusted:.2g} ({each.word}{flips})"


def _table(rows: list[list[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main(paths: list[str]) -> None:
    """Rewrite the generated parts of these pages."""
    for path in map(Path, paths):
        page = refreshed(path.read_text(encoding="utf-8"), Path("experiments/results"))
        path.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
