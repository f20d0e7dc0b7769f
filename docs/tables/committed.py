"""The verdicts and figures of committed results, made again from their tables.

    python -m docs.tables.committed

rewrites verdict.md and the figures beside every summary.csv in experiments/results of the current directory: no run is
needed when only the wording or the drawing has changed.
"""

import re
from pathlib import Path

from kedge.problem import DATASETS
from kedge.reproduce import verdict
from kedge.reproduce.claims import findings
from kedge.reproduce.conduct import measures_of, others_at
from kedge.reproduce.drawing import draw
from kedge.reproduce.experiment import load
from kedge.reproduce.plan import Hyper, Plan
from kedge.reproduce.results import read_curves, read_measures
from kedge.reproduce.tried import GRID, read_tried

RESULTS = Path("experiments/results")

MADE = re.compile(r"^- Command: `(?P<command>.*)`\n(?P<versions>- Versions: .*)$", re.MULTILINE)
"""What only the page itself says: how and with what its tables were made."""


def main() -> None:
    """Rewrite all of them."""
    for summary in sorted(RESULTS.glob("*/*/summary.csv")):
        text = rewritten(summary.parent)
        summary.with_name("verdict.md").write_text(text, encoding="utf-8")
        redraw(summary.parent)


def redraw(folder: Path) -> None:
    """Draw the figures of a folder from its tables."""
    measured = read_measures(folder / "summary.csv")
    plan = Plan(load(folder.parent.name), folder.name)
    draw(plan, read_curves(folder / "curves.csv", measured), measured, folder)


def rewritten(folder: Path) -> str:
    """Return the verdict that the tables in a folder give."""
    made = MADE.search((folder / "verdict.md").read_text(encoding="utf-8"))
    results, plan = folder.parents[1], Plan(load(folder.parent.name), folder.name)
    measured = measures_of(results, plan.experiment.name, plan.scale)
    assert made is not None
    assert measured is not None
    chosen = {row.case: Hyper(row.eta, row.beta, row.step) for row in measured}
    found = findings(plan.experiment, plan.scale, measured, others_at(results, plan.scale))
    labels = DATASETS[plan.experiment.base["data"]["dataset"]].classes
    assert labels is not None
    chances = dict.fromkeys(plan.experiment.panels_at(plan.scale), 1 / labels)
    text = verdict.write(plan, read_tried(folder / GRID), chosen, measured, found, made["command"], chances)
    return MADE.sub(lambda _: made[0], text, count=1)


if __name__ == "__main__":
    main()
