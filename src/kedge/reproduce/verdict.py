"""The verdict: what was run, the results, and what they say about the claims; a page of Markdown."""

import math
import statistics
from collections.abc import Callable, Iterable

from kedge.reproduce.claims import Difference, JudgedClaim
from kedge.reproduce.plan import Case, Hyper, Plan
from kedge.reproduce.results import Chances, Measure
from kedge.reproduce.search import beyond
from kedge.reproduce.tried import Tried, elsewhere
from kedge.runs.directory import environment

NUMBERS = """\
Accuracy and loss are means over the last fifth of the evaluations, then over the seeds, ± the standard deviation
between seeds. *Mean* is the mean accuracy of a run, starting from guessing: the area under its curve. The target is the
accuracy at which the panel's weakest tuned line ends (of those that reach three quarters of the best), rounded down
to half a percent; rounds, gradients and MB *to* it are interpolated linearly between evaluations, and the mean is
over the runs that reach it. At equal gradients or bytes: the accuracy over the last fifth of what the cheapest line
spends. *Step* is the mean of |x^{r+1} - x^r|."""

READING = """\
Runs of one seed share partition, initial model, cohorts and minibatches, so lines are compared seed by seed. Brackets
are 95 % intervals of the mean difference (Student's t). p is that of a paired t-test, in comparisons that count after
Holm's correction for the whole figure. *As claimed* or *the opposite*: p is below 5 %, and stays so without
correction when either line takes its second-best point (the best that is at least 20 % away) and when both take the
best point of a finer grid. Everything else is *open*. A run that does not reach the target counts as all its rounds;
where that flatters the line that is ahead in more than a quarter of its runs, the comparison is *not measurable*, and
open."""

BEYOND_WORDS = {"reproduced": "holds", "not reproduced": "does not hold"}
"""A claim that the paper does not make cannot be reproduced."""


def write(
    plan: Plan,
    tried: Tried,
    chosen: dict[Case, Hyper],
    measured: list[Measure],
    findings: Iterable[JudgedClaim],
    command: str,
    chances: Chances,
) -> str:
    """Write the page."""
    experiment, tuning = plan.experiment, plan.size.tuning
    shows = f" It shows {experiment.shows}." if experiment.shows else ""
    unstated = f"- Unstated in the paper, and chosen here: {experiment.unstated or 'nothing'}.\n"
    parts = [
        f"# {plan.title}",
        f"{experiment.figure[0].upper()}{experiment.figure[1:]}.{shows}",
        f"- Command: `{command}`\n- Versions: {_versions()}\n"
        f"- Scale: {plan.scale}. Reduced: {plan.size.reduced}.\n{'' if plan.own else unstated}"
        f"- Search: {budget(plan, tried)}, on {tuning.seeds} seed{'s' * (tuning.seeds > 1)} of their own, "
        f"in {tuning.rounds:.0%} of the rounds; the best by held-out {experiment.tuned.judge}.\n"
        "- `configs/` has the configuration of every line at its first seed; `kedge run FILE --seed N` repeats a run, "
        "on the same kind of processor to the bit: `summary.csv` has a hash of every final model.",
        "![curves](figure.png)",
        "## Claims",
        *([f"**Not testable at this scale**: {plan.size.untestable}."] if plan.size.untestable else []),
        *(["The experiment makes none."] if not experiment.claims else []),
        *(_finding(finding, said_of(experiment.beyond)) for finding in findings),
        READING,
        *unchecked(plan),
    ]
    for panel in experiment.panels_at(plan.scale):
        for protocol in plan.protocols:
            rows = [row for row in measured if (row.panel, row.protocol) == (panel, protocol)]
            if rows:
                target = f"Target: {100 * rows[0].target:.1f} %."
                parts += [f"## {panel}, {plan.how(panel, protocol)}", _table(rows), target]
                parts += _choices(plan, tried, chosen, panel) if protocol == "tuned" else []
    parts += [f"{NUMBERS} A diverged run counts as {_guessing(chances)}.", "![equal budgets](budgets.png)"]
    if plan.scale == "smoke":
        parts.append("**This is the smoke scale: it shows that everything runs, and is evidence of nothing.**")
    return "\n\n".join(parts) + "\n"


def unchecked(plan: Plan) -> list[str]:
    """Say which of the checks were not run."""
    checks = {"second": "second-best points were", "finer": "finer grid was"}
    missing = [said for protocol, said in checks.items() if protocol not in plan.protocols]
    return [f"**At this scale no {said} run**: nothing here was checked in that way." for said in missing]


def _versions() -> str:
    here = environment()
    return f"kedge {here['kedge']}, torch {here['torch']}; processor: {here['processor']}"


def _guessing(chances: Chances) -> str:
    several = len(set(chances.values())) > 1
    said = [f"{100 * chance:.3g} %" + f" ({panel})" * several for panel, chance in chances.items()]
    return ", ".join(said if several else said[:1])


def budget(plan: Plan, tried: Tried) -> str:
    """Say how many points the lines tried."""
    counts = sorted({len(points) for points in tried.values()})
    several = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    return f"{several} points per line, a budget of {plan.size.tuning.budget} plus growth past an edge"


def said_of(beyond: bool) -> Callable[[str], str]:
    """Return the words for a verdict: on the paper's claims, or on those beyond it."""
    return (lambda word: BEYOND_WORDS.get(word, word)) if beyond else (lambda word: word)


def _table(rows: list[Measure]) -> str:
    head = [
        "line", "eta", "beta", "step/ηK", "accuracy, %", "mean", "loss", "rounds to target", "gradients to", "MB to",
        "at equal gradients", "at equal bytes", "step",
    ]  # fmt: skip
    lines = [head, ["---"] * len(head)]
    for name in dict.fromkeys(row.line for row in rows):
        own = [row for row in rows if row.line == name]
        accuracies = [100 * row.accuracy for row in own]
        spread = f" ± {statistics.stdev(accuracies):.1f}" if len(own) > 1 else ""
        diverged = sum(row.diverged is not None for row in own)
        lines.append([
            name, *("-" if value is None else f"{value:g}" for value in (own[0].eta, own[0].beta, own[0].step)),
            f"{statistics.fmean(accuracies):.1f}{spread}" + (f" ({diverged} diverged)" if diverged else ""),
            f"{100 * _mean(own, 'area'):.1f}", f"{_mean(own, 'loss'):.3g}",
            _reached(own), *(_short(_mean_of(own, key)) for key in ("gradients_to", "megabytes_to")),
            *(f"{100 * _mean(own, key):.1f}" for key in ("at_gradients", "at_bytes")),
            _short(_mean_of(own, "step_norm")),
        ])  # fmt: skip
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _mean(rows: list[Measure], key: str) -> float:
    return statistics.fmean(getattr(row, key) for row in rows)


def _mean_of(rows: list[Measure], key: str) -> float | None:
    """Return the mean over the runs that have a finite value."""
    values = [getattr(row, key) for row in rows]
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.fmean(finite) if finite else None


def _reached(rows: list[Measure]) -> str:
    count = sum(math.isfinite(row.rounds_to) for row in rows)
    mean = _short(_mean_of(rows, "rounds_to"))
    return mean if count == len(rows) else f"{mean} ({count} of {len(rows)} runs)"


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _choices(plan: Plan, tried: Tried, chosen: dict[Case, Hyper], panel: str) -> list[str]:
    """Say which lines still chose an end of the grid, and which choices one tuning seed turns."""
    own = {case: hyper for case, hyper in chosen.items() if case[:2] == (panel, "tuned") and case in tried}
    edges = [
        f"{case.line} ({_apart(point, hyper, shown=hyper)})"
        for case, hyper in own.items()
        for point in beyond(hyper, list(tried[case]))
    ]
    turned = [
        f"{case.line} ({_apart(point, hyper, shown=point)} without seed {seed})"
        for case, hyper in own.items()
        for seed, point in elsewhere(tried[case], hyper, plan.experiment.tuned.judge).items()
    ]
    said = [
        ("At an end of the grid, so there may be something better beyond it", edges),
        ("One tuning seed decides, and without it another point, at least 20 % away, would have been chosen", turned),
    ]
    return [f"{text}: {', '.join(lines)}." for text, lines in said if lines]


def _apart(one: Hyper, other: Hyper, *, shown: Hyper) -> str:
    """Name what two points differ in, with the values of the one that is shown."""
    names = [name for name in Hyper._fields if getattr(one, name) != getattr(other, name)]
    return ", ".join(f"{name} {getattr(shown, name):g}" for name in names)


def _finding(finding: JudgedClaim, said: Callable[[str], str]) -> str:
    place = f"{finding.where or finding.panel}"
    remark = f" But {finding.remark}." if finding.remark else ""
    head = f"**{finding.claim.text}** {place}: *{said(finding.verdict)}*.{remark}"
    lines = [f"- {difference}" for difference in finding.differences]
    lines += [f"- shown, not counted: {difference}" for difference in finding.shown]
    lines += [f"  - {name}: {each.amount}, p = {each.p:.2g}" for each in finding.differences
              for name, each in _changed(each).items()]  # fmt: skip
    return "\n".join([head, "", *lines]).strip()


def _changed(difference: Difference) -> dict[str, Difference]:
    return {f"{difference.name}, with {name}": difference.checks[name] for name in difference.flips}
