"""Claims against measurements: differences paired over the seeds, corrected for their number, and robust to the grid.

Runs of one seed share partition, initial model, cohorts and minibatches, so two lines are compared seed by seed. A
comparison is conclusive if a paired t-test is significant at 5 %, after Holm's correction for all comparisons that
count in the figure, and if that survives other choices from the grid: the second-best point of either line, and the
best point of a finer grid. Otherwise it is open.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
from scipy import stats

from kedge.reproduce.experiment import Claim, Experiment, Metric
from kedge.reproduce.results import Measure

Word = Literal["as claimed", "the opposite", "open"]
Look = Callable[[str], list[Measure] | None]
"""The measures of another figure, at the same scale if it has that; None if it was not run."""

LEVEL = 0.05

UNITS: dict[Metric, tuple[float, str]] = {
    "accuracy": (100, "points of accuracy at the end"),
    "area": (100, "points of the mean accuracy of a run"),
    "loss": (1, "of loss saved at the end"),
    "rounds": (1, "times fewer rounds to the target"),
}
"""What a difference in each metric is multiplied by, and what it then is; for rounds it is the log of a ratio."""

MORE = {"rounds": 'times the speed-up, in rounds to the target, in "{place}"'}
"""What a difference between two panels is, if it is not the unit and "more than in"."""

MISSED = 0.25
"""The share of runs that may miss the target and flatter a conclusion on rounds; above it, the conclusion is open."""

PLAIN = {"fedavg-m": "fedavg", "fedavg-m-vr": "fedavg", "scaffold-m": "scaffold", "scaffold-m-vr": "scaffold"}
"""What the paper's algorithms are at beta = 1."""

NOT_RUN, NOT_TESTABLE = "not run", "not testable at this scale"


@dataclass(frozen=True)
class Difference:
    """How much better one line is than another, over the seeds."""

    name: str
    metric: Metric
    values: list[float]  # one per seed; positive: better
    adjusted: float = math.nan  # the p-value after Holm's correction; NaN if it does not count
    checks: Mapping[str, "Difference"] = field(default_factory=dict)  # the same from other points of the grids
    more_than_in: str | None = None  # a panel, if the values are how much more the line is ahead than it is there
    missed: tuple[int, int] = (0, 0)  # runs short of the target, whose true values would lower and raise the mean

    @property
    def mean(self) -> float:
        """The mean over the seeds; if runs diverged, that of a loss is infinite or not a number."""
        return math.nan if {math.inf, -math.inf} <= set(self.values) else statistics.fmean(self.values)

    @property
    def agree(self) -> int:
        """The seeds in which it is better."""
        return sum(value > 0 for value in self.values)

    @cached_property
    def p(self) -> float:
        """The p-value of a paired t-test; of a sign test if runs diverged, and 1 for a single seed."""
        values = self.values
        if not all(map(math.isfinite, values)):
            decided = [value for value in values if value]
            return float(stats.binomtest(self.agree, len(decided)).pvalue) if decided else 1.0
        if len(values) < 2 or not any(values):
            return 1.0
        if statistics.pstdev(values) <= 1e-12 * abs(self.mean):
            return 0.0  # all seeds agree to the last digit, and a t-test would divide by zero
        return float(stats.ttest_1samp(values, 0).pvalue)

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the mean, by Student's t."""
        if len(self.values) < 2 or not math.isfinite(self.mean):
            return -math.inf, math.inf
        error = statistics.stdev(self.values) / math.sqrt(len(self.values))
        reach = float(stats.t.ppf(1 - LEVEL / 2, len(self.values) - 1)) * error
        return self.mean - reach, self.mean + reach

    def says(self, p: float) -> Word:
        """Interpret a p-value."""
        if not p < LEVEL or not self.mean:
            return "open"
        ahead = 2 * self.agree > len(self.values) if math.isnan(self.mean) else self.mean > 0
        return "as claimed" if ahead else "the opposite"

    @property
    def flips(self) -> list[str]:
        """The checks that disagree."""
        said = self.says(self.adjusted)
        return [] if said == "open" else [name for name, check in self.checks.items() if check.says(check.p) != said]

    @property
    def runs(self) -> int:
        """How many runs are compared."""
        return (2 if self.more_than_in is None else 4) * len(self.values)

    @property
    def measurable(self) -> bool:
        """Whether few of the runs that miss the target, and count as all their rounds, flatter the line ahead."""
        return self.missed[0 if self.mean > 0 else 1] <= MISSED * self.runs / 2

    @property
    def word(self) -> Word:
        """The conclusion, unless another choice from the grid changes it or too few runs reached the target."""
        return "open" if self.flips or not self.measurable else self.says(self.adjusted)

    @property
    def unit(self) -> str:
        """What the amount is an amount of."""
        unit = UNITS[self.metric][1]
        if self.more_than_in is not None:
            unit = MORE.get(self.metric, unit + ', more than in "{place}"').format(place=self.more_than_in)
        short = sum(self.missed)
        return unit + f" ({short} of {self.runs} runs did not reach it)" * bool(short)

    @property
    def amount(self) -> str:
        """The mean and its interval in the unit of the metric."""
        if not math.isfinite(self.mean):
            return f"with diverged runs, better in {self.agree} of {len(self.values)} seeds"
        factor, _ = UNITS[self.metric]
        low, high = self.interval
        if self.metric == "rounds":
            shown = [f"{math.exp(value):.2f}" for value in (self.mean, low, high)]
            text = shown[0] if math.isinf(low) else f"{shown[0]} [{shown[1]}, {shown[2]}]"
            return text if self.measurable else f"not measurable: {text}"
        width = factor * (high - low)
        digits = 2 if width == 0 or math.isinf(width) else min(6, max(0, 1 - math.floor(math.log10(width))))
        texts = [f"{factor * value:+.{digits}f}" for value in (self.mean, low, high)]
        return texts[0] if math.isinf(width) else f"{texts[0]} [{texts[1]}, {texts[2]}]"

    def __str__(self) -> str:
        p = self.p if math.isnan(self.adjusted) else self.adjusted
        told = "" if math.isnan(self.adjusted) else f": {self.word}"
        if self.flips:
            told += f", as it does not survive {' and '.join(self.flips)}"
        return f"{self.name}: {self.amount} {self.unit}, p = {p:.2g}{told}"


@dataclass(frozen=True)
class JudgedClaim:
    """A claim in one panel."""

    claim: Claim
    panel: str
    differences: list[Difference]  # those that count
    shown: list[Difference] = field(default_factory=list)  # the others: protocols that the paper did not use
    missing: str = ""  # why there are none
    plain: str = ""  # which lines chose beta = 1, so that what is ahead is not the momentum
    borrowed: str = ""  # the panel whose points the lines took, if they did not search their own grids
    unchecked: bool = False  # whether no other points of the grids were run

    @property
    def where(self) -> str:
        """The paper's name of the panel."""
        return self.claim.where.get(self.panel, "")

    @property
    def remark(self) -> str:
        """What a reader of the verdict must know."""
        said = [self.plain]
        if self.borrowed:
            said.append(f'its lines took the points of "{self.borrowed}"')
        elif self.unchecked and any(difference.word != "open" for difference in self.differences):
            said.append("it was not checked at other points of the grid")
        return "; ".join(filter(None, said))

    @property
    def verdict(self) -> str:
        """The differences that count, summed up in a word; open where the lines did not search their own grids."""
        words = [difference.word for difference in self.differences]
        if self.missing or not words:
            return self.missing or NOT_RUN
        if self.borrowed:
            return "open"
        if set(words) == {"as claimed"}:
            return "reproduced"
        if "as claimed" in words:
            reverse = self._said("the opposite")
            return f"partly: {self._said('as claimed')}" + (f"; the opposite: {reverse}" if reverse else "")
        return "not reproduced" if "the opposite" in words else "open"

    def _said(self, word: Word) -> str:
        """Name the comparisons with this conclusion."""
        return ", ".join(each.name for each in self.differences if each.word == word)


def findings(experiment: Experiment, scale: str, own: list[Measure], look: Look) -> list[JudgedClaim]:
    """Judge every claim in every panel, including those that were not run at the scale."""
    found = [
        _finding(experiment, scale, claim, panel, own, look)
        for claim in experiment.claims
        for panel in claim.panels or experiment.panels
    ]
    return _corrected(found)


def holm(values: list[float]) -> list[float]:
    """Correct p-values for their number."""
    order = np.argsort(values, kind="stable")
    scaled = [min(1.0, values[place] * (len(values) - rank)) for rank, place in enumerate(order)]
    corrected = list(itertools.accumulate(scaled, max))
    return [corrected[rank] for rank in np.argsort(order, kind="stable")]


def _corrected(found: list[JudgedClaim]) -> list[JudgedClaim]:
    """Correct the p-values of all comparisons that count in a figure; one that two claims share is counted twice."""
    corrected = iter(holm([each.p for finding in found for each in finding.differences]))
    return [
        replace(finding, differences=[replace(each, adjusted=next(corrected)) for each in finding.differences])
        for finding in found
    ]


def _finding(
    experiment: Experiment, scale: str, claim: Claim, panel: str, own: list[Measure], look: Look
) -> JudgedClaim:
    size = experiment.scales[scale]
    if size.untestable:
        return JudgedClaim(claim, panel, [], missing=NOT_TESTABLE)
    panels = {row.panel for row in own}
    reference, place = _reference(claim, own, look)
    if panel not in panels:
        return JudgedClaim(claim, panel, [], missing=NOT_RUN)
    if reference is None or place not in {row.panel for row in reference} | {""}:
        return JudgedClaim(claim, panel, [], missing=f"{NOT_RUN}: needs {claim.more_than_in}")

    def compared(better: str, worse: str, ours: str, theirs: str) -> Difference | None:
        lines = (better, ours), (worse, theirs)
        here, missed = _paired(own, panel, *lines, claim.metric), _missed(own, panel, *lines)
        if claim.more_than_in is not None:
            there, (first, second) = _paired(reference, place, *lines, claim.metric), _missed(reference, place, *lines)
            here = {seed: _less(here[seed], there[seed]) for seed in here if seed in there}
            missed = missed[0] + second, missed[1] + first
        if not here:
            return None
        missed = missed if claim.metric == "rounds" else (0, 0)
        name, values = f"{better} over {worse}", list(here.values())
        return Difference(name, claim.metric, values, more_than_in=claim.more_than_in, missed=missed)

    counted, shown = [], []
    for protocol in dict.fromkeys(row.protocol for row in own if row.panel == panel):
        for better, worse in claim.pairs:
            difference = compared(better, worse, protocol, protocol)
            if difference is None:
                continue
            if protocol != "tuned":
                difference = replace(difference, name=f"{difference.name} ({protocol})")
            if protocol not in experiment.judged:
                shown += [difference] if protocol not in ("second", "finer") else []
                continue
            if protocol == "tuned":
                tried = {
                    f"the second-best point of {better}": compared(better, worse, "second", "tuned"),
                    f"the second-best point of {worse}": compared(better, worse, "tuned", "second"),
                    "the finer grid": compared(better, worse, "finer", "finer"),
                }
                difference = replace(difference, checks={name: each for name, each in tried.items() if each})
            counted.append(difference)
    return JudgedClaim(
        claim, panel, counted, shown, plain=_plain(claim, panel, own), borrowed=size.tuning.lender(panel),
        unchecked="tuned" in experiment.judged and not any(row.protocol in ("second", "finer") for row in own),
    )  # fmt: skip


def _plain(claim: Claim, panel: str, own: list[Measure]) -> str:
    """Say which better lines chose beta = 1."""
    ahead = dict.fromkeys(better for better, _ in claim.pairs if better in PLAIN)
    chosen = {row.line: row.beta for row in own if (row.panel, row.protocol) == (panel, "tuned")}
    plain = [f"{line} is {PLAIN[line]}" for line in ahead if chosen.get(line) == 1]
    return f"at the chosen beta = 1, {' and '.join(plain)}" if plain else ""


def _reference(claim: Claim, own: list[Measure], look: Look) -> tuple[list[Measure] | None, str]:
    """Return where the advantage should be smaller: the measures and the panel, or None and the missing figure."""
    if claim.more_than_in is None:
        return own, ""
    figure, colon, panel = claim.more_than_in.partition(": ")
    return (look(figure), panel) if colon else (own, claim.more_than_in)


def _paired(
    rows: list[Measure] | None, panel: str, better: tuple[str, str], worse: tuple[str, str], metric: Metric
) -> dict[int, float]:
    """Return, seed by seed, how much better one line is; each with the protocol that chose its point."""

    def of(line: str, protocol: str) -> dict[int, float]:
        chosen = [row for row in rows or [] if (row.panel, row.protocol, row.line) == (panel, protocol, line)]
        return {row.seed: _goodness(row, metric) for row in chosen}

    ours, theirs = of(*better), of(*worse)
    return {seed: _less(ours[seed], theirs[seed]) for seed in ours if seed in theirs}


def _missed(rows: list[Measure] | None, panel: str, better: tuple[str, str], worse: tuple[str, str]) -> tuple[int, int]:
    """Count the runs of either line that did not reach the target."""
    short = [(row.line, row.protocol) for row in rows or [] if row.panel == panel and math.isinf(row.rounds_to)]
    return short.count(better), short.count(worse)


def _goodness(row: Measure, metric: Metric) -> float:
    """Return a number for a run, larger if it is better."""
    if metric == "loss":
        return -row.loss
    if metric == "rounds":  # a target that is not reached takes at least this many
        return -math.log(row.rounds_to if math.isfinite(row.rounds_to) else max(1, row.rounds))
    return float(getattr(row, metric))


def _less(a: float, b: float) -> float:
    """Subtract; two infinite losses do not differ."""
    return 0.0 if a == b else a - b
