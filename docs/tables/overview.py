"""The figure at the top of docs/reproduce.md: what momentum saves in every panel that has been run.

    python -m docs.tables.overview

writes docs/images/reproduction, from experiments/results of the current directory.
"""

import math
from pathlib import Path

from docs.tables.reproduction import judged
from kedge.report.panels import draw_intervals
from kedge.reproduce.experiment import Claim, load, names

RESULTS, IMAGES = Path("experiments/results"), Path("docs/images")

PAIRS = [("fedavg-m", "fedavg"), ("scaffold-m", "scaffold")]


def main() -> None:
    """Draw it."""
    intervals, unchecked, papers = {}, set(), 0
    for experiment in sorted(map(load, names()), key=lambda experiment: experiment.beyond):
        pairs = [pair for pair in PAIRS if set(pair) <= set(experiment.all_lines())]
        if not pairs:
            continue
        claim = Claim(text="", pairs=pairs, metric="rounds")
        places = {panel: place for own in reversed(experiment.claims) for panel, place in own.where.items()}
        for _, finding in judged(experiment.model_copy(update={"claims": [claim], "judged": ["tuned"]}), RESULTS):
            row = {
                each.name.partition(" over ")[0]: tuple(map(math.exp, (each.interval[0], each.mean, each.interval[1])))
                for each in finding.differences
            }
            if row and not finding.borrowed:  # its lines were not tuned there
                data = experiment.title.partition(",")[0]
                heading = f"{places.get(finding.panel, experiment.name)}, {data}: {finding.panel}"
                intervals[heading] = row
                papers += not experiment.beyond
                unchecked |= {heading} if finding.unchecked else set()
    draw_intervals(
        intervals,
        IMAGES / "reproduction",
        "What momentum saves, each line tuned alike",
        "FedAvg-M against FedAvg, SCAFFOLD-M against SCAFFOLD; bars: 95 % intervals of the mean over the seeds. Above "
        "the line: panels of the paper. Open markers: not checked at other points of the grid. A run short of the "
        "target counts as all its rounds.",
        "times fewer rounds to the target (right of 1: momentum is faster)",
        hollow=unchecked,
        first=papers,
    )


if __name__ == "__main__":
    main()
