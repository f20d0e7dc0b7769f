"""The generated parts of pages on reproduction: what the figures cost, and each claim with what was measured.

    python -m kedge.reproduce.page README.md docs/reproduce.md

rewrites them in place from the experiments and from the results in experiments/results, where the command is given.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path

from kedge.reproduce.claims import UNITS, Finding, findings, overall
from kedge.reproduce.conduct import measures_of
from kedge.reproduce.estimate import cost_table, estimate
from kedge.reproduce.experiment import SCALES, Claim, Experiment, load, names
from kedge.reproduce.plan import Plan

SHOWN = ("paper", "overnight", "laptop")
"""The scales whose results count, the best first; smoke is evidence of nothing."""

PART = re.compile(r"(?<=<!-- generated: )(?P<name>\w+) -->\n.*?(?=<!-- end -->)", re.DOTALL)


def refreshed(page: str, results: Path) -> str:
    """Return the page with its generated parts made anew."""
    parts: dict[str, Callable[[], str]] = {
        "costs": costs,
        "claims": lambda: claims(results, beyond=False),
        "beyond": lambda: claims(results, beyond=True),
        "summary": lambda: summary(results),
    }
    return PART.sub(lambda found: f"{found['name']} -->\n\n{parts[found['name']]()}\n", page)


def costs() -> str:
    """Write the table of figures and what they take on two cores."""
    head = [["figure", "in the paper", "shows", *SCALES], ["---"] * 6]
    return _table([*head, *([f"`{name}`", *others] for name, *others in cost_table())])


def claims(results: Path, *, beyond: bool) -> str:
    """Write a row per claim, of the paper or beyond it, with the results that there are."""
    rows = [["claim", "figure", "measurement", "verdict", "command", "cost"], ["---"] * 6]
    for name in names():
        experiment = load(name)
        if experiment.beyond == beyond:
            rows += [_row(experiment, claim, results) for claim in experiment.claims]
    return _table(rows)


def summary(results: Path) -> str:
    """Write the paper's claims, each with a word on it."""
    rows = [["the paper says", "in", "here"], ["---"] * 3]
    for name in names():
        experiment = load(name)
        if not experiment.beyond:
            for claim in experiment.claims:
                scale, found = _judged(experiment, claim, results)
                figure = f"[{experiment.figure}](experiments/results/{name}/{scale}/verdict.md)"
                row = [claim.text, figure, overall(found)] if found else [claim.text, experiment.figure, "not run yet"]
                rows.append(row)
    return _table(rows)


def _row(experiment: Experiment, claim: Claim, results: Path) -> list[str]:
    scale, found = _judged(experiment, claim, results)
    command = f"`kedge reproduce {experiment.name} --scale {scale}`"
    cost = estimate(Plan(experiment, scale)).on(2)
    if not found:
        return [claim.text, experiment.figure, "not run yet", "not run yet", command, cost]
    folder = f"../experiments/results/{experiment.name}/{scale}"
    figure = f"{experiment.figure}: [drawn]({folder}/figure.png), [tables]({folder}/verdict.md)"
    said = "".join(f"<br>{finding.protocol}: {finding.verdict}" for finding in found)
    return [claim.text, figure, "<br>".join(map(_measured, found)), f"**{overall(found)}**{said}", command, cost]


def _judged(experiment: Experiment, claim: Claim, results: Path) -> tuple[str, list[Finding]]:
    """Return the best scale that was run, and what it says of a claim; nothing, if none was."""
    for scale in SHOWN:
        found = _findings(experiment, claim, results, scale)
        if found:
            return scale, found
    return "laptop", []


def _findings(experiment: Experiment, claim: Claim, results: Path, scale: str) -> list[Finding]:
    measured = measures_of(results, experiment.name, scale) or []
    return findings([claim], measured, lambda figure: measures_of(results, figure, scale))


def _measured(finding: Finding) -> str:
    if not finding.differences:
        return f"{finding.protocol}: {finding.missing}"
    said = "; ".join(f"{each.name}: {each.amount} ({each.word})" for each in finding.differences)
    return f"{finding.protocol}, {UNITS[finding.claim.metric][1]}: {said}"


def _table(rows: list[list[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main(paths: list[str]) -> None:
    """Rewrite the generated parts of these pages."""
    for path in map(Path, paths):
        page = refreshed(path.read_text(encoding="utf-8"), Path("experiments/results"))
        path.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
