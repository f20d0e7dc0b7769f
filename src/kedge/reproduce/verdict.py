"""The verdict: what was run, what it came to, and what that says of the paper's claims; a page of Markdown."""

import statistics
from collections.abc import Iterable
from importlib.metadata import version

import torch

from kedge.reproduce.claims import Finding
from kedge.reproduce.plan import PROTOCOLS, Case, Grids, Hyper, Plan
from kedge.reproduce.results import Measure

READING = """\
Runs of one seed share partition, initial model, cohorts and minibatches, so lines are compared seed by seed: the mean
difference ± its standard error, and in how many seeds it is above zero. "Clear": it is so in all seeds, and a paired
t-test at 5 % agrees, which with three seeds asks for 4.3 standard errors. "Leaning": in all seeds, but not so far. A
sign test of three seeds cannot go below 25 %, so three that agree are a hint, not a proof. The comparisons are not
corrected for their number. Where the advantage in one panel is compared with that in another, the panels differ in
their cohorts and, where the scale is reduced, in their rounds."""


def write(
    plan: Plan,
    grids: Grids,
    chosen: dict[Case, Hyper],
    measured: list[Measure],
    findings: Iterable[Finding],
    command: str,
) -> str:
    """Write the page."""
    experiment = plan.experiment
    parts = [
        f"# {plan.title}",
        f"{experiment.figure[0].upper()}{experiment.figure[1:]}. It shows {experiment.shows}.",
        f"- Command: `{command}`\n- Versions: kedge {version('kedge')}, torch {torch.__version__}\n"
        f"- Scale: {plan.scale}. Reduced: {plan.size.reduced}.\n"
        f"- Not in the paper, and taken by us at full scale: {experiment.unstated or 'nothing'}.\n"
        "- `configs/` has the configuration of every line at its first seed; `kedge run FILE --seed N` repeats a run, "
        "to the bit.",
        "![curves](figure.png)",
    ]
    for panel in experiment.panels_at(plan.scale):
        for protocol in plan.protocols:
            rows = [row for row in measured if (row.panel, row.protocol) == (panel, protocol)]
            parts += [f"## {panel}, {PROTOCOLS[protocol]}", _table(rows), *_edges(grids, chosen, panel, protocol)]
    parts.append(
        "Accuracy and loss are means over the last fifth of the evaluations, then over the seeds, ± the standard "
        "deviation between seeds; best is the best evaluation, mean that of all evaluations. At equal gradients or "
        "bytes: the accuracy when the cheapest line has spent all of its own. A diverged run counts as 10 %.\n\n"
        "![equal budgets](budgets.png)"
    )
    parts += ["## Claims", *(_finding(finding) for finding in findings), READING]
    if plan.scale == "smoke":
        parts.append("**This is the smoke scale: it shows that everything runs, and is evidence of nothing.**")
    return "\n\n".join(parts) + "\n"


def _table(rows: list[Measure]) -> str:
    head = [
        "line",
        "eta",
        "beta",
        "accuracy, %",
        "best",
        "mean",
        "loss",
        "at equal gradients",
        "at equal bytes",
        "gradients",
        "MB",
    ]
    lines = [head, ["---"] * len(head)]
    for name in dict.fromkeys(row.line for row in rows):
        own = [row for row in rows if row.line == name]
        accuracies = [100 * row.accuracy for row in own]
        spread = f" ± {statistics.stdev(accuracies):.1f}" if len(own) > 1 else ""
        diverged = sum(row.diverged is not None for row in own)
        lines.append([
            name, f"{own[0].eta:g}", "-" if own[0].beta is None else f"{own[0].beta:g}",
            f"{statistics.fmean(accuracies):.1f}{spread}" + (f" ({diverged} diverged)" if diverged else ""),
            *(f"{100 * _mean(own, key):.1f}" for key in ("best", "speed")), f"{_mean(own, 'loss'):.3g}",
            *(f"{100 * _mean(own, key):.1f}" for key in ("at_gradients", "at_bytes")),
            f"{_mean(own, 'gradients'):.0f}", f"{_mean(own, 'megabytes'):.0f}",
        ])  # fmt: skip
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _mean(rows: list[Measure], key: str) -> float:
    return statistics.fmean(getattr(row, key) for row in rows)


def _edges(grids: Grids, chosen: dict[Case, Hyper], panel: str, protocol: str) -> list[str]:
    """Say which lines chose an end of the grid, beyond which something better may lie."""
    if protocol != "tuned":
        return []
    found = []
    for case, hyper in chosen.items():
        if case[:2] == (panel, protocol):
            for key in ("eta", "beta"):
                values = {getattr(pair, key) for pair in grids[case._replace(protocol="tuned")]} - {None}
                value = getattr(hyper, key)
                if len(values) > 1 and value in (min(values), max(values)):
                    found.append(f"{case.line} ({key} {value:g})")
    return [f"At an end of the grid, so perhaps better beyond it: {', '.join(found)}."] if found else []


def _finding(finding: Finding) -> str:
    head = f"**{finding.claim.text}** {PROTOCOLS[finding.protocol].capitalize()}: {finding.verdict}."
    return "\n".join([head, "", *(f"- {difference}: {difference.word}" for difference in finding.differences)]).strip()
