"""The two figures of docs/step-or-momentum.md, from the committed results of `step-mnist` and `step-mlp`.

python -m docs.tables.step_or_momentum

writes docs/images/step-or-momentum-lengths and -rounds, from experiments/results of the current directory.
"""

import csv
import math
import statistics
from collections import defaultdict
from pathlib import Path

from kedge.report.panels import Series, View, draw_rankings, draw_views
from kedge.reproduce.conduct import measures_of
from kedge.reproduce.experiment import load

RESULTS, IMAGES, SCALE = Path("experiments/results"), Path("docs/images"), "laptop"
FIGURES = ("step-mnist", "step-mlp")

COMPARED = {"fedavg": ("fedavg-m", "fedavg, free step"), "scaffold": ("scaffold-m", "scaffold, free step")}
"""What has plain steps, and what momentum and longer steps make of it."""

Errors = dict[float, dict[float, list[float]]]
"""Held-out errors, one per seed, by the length of the step and by eta."""


def main() -> None:
    """Write both figures."""
    ran = [name for name in FIGURES if (RESULTS / name / SCALE / "grid.csv").is_file()]
    rows = [[_lengths(name, plain) for plain in COMPARED] for name in ran]
    note = (
        "Each point at the best eta that was tried with it, by held-out samples; most were tried near the best point.\n"
        "Bands: smallest to largest of three seeds."
    )
    draw_views(rows, IMAGES / "step-or-momentum-lengths", "Longer steps, and momentum that allows them", note)
    rankings = {}
    for name in ran:
        tuned = [row for row in measures_of(RESULTS, name, SCALE) or [] if row.protocol == "tuned"]
        lines = list(dict.fromkeys(row.line for row in tuned))
        data = load(name).title.partition(",")[0]
        for title, key in (
            (f"{data}: rounds to {tuned[0].target:.1%}", "rounds_to"),
            (f"{data}: length of a step", "step_norm"),
        ):
            # A run that does not reach the target counts as all its rounds.
            values = {line: [(getattr(row, key), row.rounds) for row in tuned if row.line == line] for line in lines}
            rankings[title] = {
                line: [value if math.isfinite(value) else rounds for value, rounds in own]
                for line, own in values.items()
            }
    note = "Dots: seeds; strokes: their mean. Each line at the best point of its own grid."
    draw_rankings(
        rankings, IMAGES / "step-or-momentum-rounds", "Rounds to the target, and steps", note, "", rows=len(ran)
    )


def _lengths(name: str, plain: str) -> View:
    """Return the held-out error over the length of the step, γ / ηK or 1 / β, at the best eta of each length."""
    momentum, free = COMPARED[plain]
    found: dict[str, Errors] = {line: defaultdict(lambda: defaultdict(list)) for line in (plain, momentum, free)}
    with (RESULTS / name / SCALE / "grid.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["line"] in found:
                length = float(row["step"] or 1) / float(row["beta"] or 1)
                found[row["line"]][round(length, 3)][float(row["eta"])].append(1 - float(row["accuracy"]))
    series = []
    for line in (free, momentum):
        found[line][1.0] |= found[plain][1.0]  # of both, the step of length 1 is the plain one
        best = {length: min(rates.values(), key=statistics.fmean) for length, rates in sorted(found[line].items())}
        seeds = range(len(next(iter(best.values()))))
        series.append(Series(line, runs=[(list(best), [errors[seed] for errors in best.values()]) for seed in seeds]))
    data = load(name).title.partition(",")[0]
    return View(
        f"{data}: {plain}",
        "length of the step: γ / ηK, or 1 / β",
        f"held-out error, {data}",
        series,
        log_x=True,
        log_y=True,
    )


if __name__ == "__main__":
    main()
