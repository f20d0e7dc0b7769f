"""Claims against measurements: differences paired over the seeds, and what so few seeds can say.

Runs of one seed share partition, initial model, cohorts and minibatches, so two lines are compared seed by seed. With n
seeds the mean difference has n - 1 degrees of freedom. With three seeds a paired t-test at 5 % needs a mean of 4.3
standard errors, and a sign test cannot go below 25 %: three seeds that agree are a hint, not a proof. Comparisons are
not corrected for their number.
"""

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from kedge.reproduce.experiment import Claim, Metric
from kedge.reproduce.plan import PROTOCOLS
from kedge.reproduce.results import Measure

# Two-sided 5 % points of Student's t by degrees of freedom; beyond these, that of 10.
_T = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
_T_LARGE = 2.23

Word = Literal["clear", "leaning", "open", "reversed"]
Look = Callable[[str], list[Measure] | None]
"""The measures of another figure at the same scale; None if it was not run."""


@dataclass(frozen=True)
class Difference:
    """How much better one line is than another, over the seeds."""

    name: str
    metric: Metric
    values: list[float]  # a seed each; positive: better

    @property
    def mean(self) -> float:
        """The mean over the seeds; with a diverged run among those of a loss it is infinite, or not a number."""
        return math.nan if {math.inf, -math.inf} <= set(self.values) else statistics.fmean(self.values)

    @property
    def error(self) -> float:
        """The standard error of the mean; infinite for a single seed."""
        n = len(self.values)
        return statistics.stdev(self.values) / math.sqrt(n) if n > 1 and math.isfinite(self.mean) else math.inf

    @property
    def agree(self) -> int:
        """The seeds in which it is better."""
        return sum(value > 0 for value in self.values)

    @property
    def word(self) -> Word:
        """What the seeds say."""
        n = len(self.values)
        if self.agree < n:
            return "reversed" if all(value < 0 for value in self.values) else "open"
        return "clear" if self.mean > _T.get(n - 1, _T_LARGE) * self.error else "leaning"

    @property
    def amount(self) -> str:
        """The mean and its standard error, in the unit of the metric."""
        if not math.isfinite(self.mean):
            return "with diverged runs"
        factor, _ = UNITS[self.metric]
        digits = 2 if self.error in (0, math.inf) else max(0, 1 - math.floor(math.log10(factor * self.error)))
        spread = "" if math.isinf(self.error) else f" ± {factor * self.error:.{digits}f}"
        return f"{factor * self.mean:+.{digits}f}{spread}"

    def __str__(self) -> str:
        unit = f" {UNITS[self.metric][1]}" if math.isfinite(self.mean) else ""
        return f"{self.name}: {self.amount}{unit}, better in {self.agree} of {len(self.values)} seeds"


UNITS: dict[Metric, tuple[float, str]] = {
    "accuracy": (100, "points"),
    "area": (100, "points of the mean accuracy of a run"),
    "rounds": (1, "rounds saved"),
    "loss": (1, "of loss saved"),
}
"""What a difference in each metric is multiplied by, and what it then is."""


@dataclass(frozen=True)
class Finding:
    """A claim under one protocol."""

    claim: Claim
    protocol: str
    differences: list[Difference]
    missing: str = ""  # why there are none

    @property
    def holding(self) -> int:
        """How many of the differences are as claimed in every seed."""
        return sum(difference.word in ("clear", "leaning") for difference in self.differences)

    @property
    def verdict(self) -> str:
        """The differences in a word."""
        words = [difference.word for difference in self.differences]
        if not words:
            return self.missing
        if self.holding == len(words):
            return {len(words): "holds", 0: "holds in every seed, not significant"}.get(
                words.count("clear"), "holds in every seed"
            )
        if all(word == "reversed" for word in words):
            return "the opposite in every seed"
        return _counted(words)


def _counted(words: list[Word]) -> str:
    """Count the comparisons that are as claimed in every seed, the opposite in every seed, or neither."""
    counts = {
        "as claimed": sum(word in ("clear", "leaning") for word in words),
        "the opposite": words.count("reversed"),
        "open": words.count("open"),
    }
    said = [f"{count} {what}" for what, count in counts.items() if count or what == "as claimed"]
    return f"of {len(words)} comparisons {', '.join(said)}"


def findings(claims: Iterable[Claim], own: list[Measure], look: Look) -> list[Finding]:
    """Judge every claim under every protocol that was run."""
    protocols = dict.fromkeys(measure.protocol for measure in own)
    return [_finding(claim, protocol, own, look) for claim in claims for protocol in protocols]


def overall(found: Iterable[Finding]) -> str:
    """Say of a claim, judged under every protocol, whether it was reproduced."""
    judged = [finding for finding in found if finding.differences]
    if not judged:
        return "not judged"
    words = [difference.word for finding in judged for difference in finding.differences]
    whole = [finding.protocol for finding in judged if finding.holding == len(finding.differences)]
    if len(whole) == len(judged):
        return "reproduced" if "clear" in words else "in every seed, but not significant"
    if whole:
        return f"only with {PROTOCOLS[whole[0]]}"
    if any(finding.holding for finding in judged):
        return _counted(words)
    return "not reproduced" if "reversed" in words else "open: the seeds disagree"


def _finding(claim: Claim, protocol: str, own: list[Measure], look: Look) -> Finding:
    panels = list(dict.fromkeys(measure.panel for measure in own))
    wanted = [panel for panel in claim.panels or panels if panel in panels]
    reference, place = _reference(claim, own, look)
    if reference is None:
        return Finding(claim, protocol, [], f"needs the figure {place}")
    differences = []
    for panel in wanted:
        for better, worse in claim.pairs:
            here = _paired(own, protocol, panel, better, worse, claim.metric)
            name = f"{better} - {worse}, {panel}" if len(panels) > 1 else f"{better} - {worse}"
            if claim.more_than_in is not None:
                there = _paired(reference, protocol, place, better, worse, claim.metric)
                here = {seed: _less(here[seed], there[seed]) for seed in here if seed in there}
                name += f", less that in {claim.more_than_in}"
            if here:
                differences.append(Difference(name, claim.metric, list(here.values())))
    return Finding(claim, protocol, differences, "not at this scale")


def _reference(claim: Claim, own: list[Measure], look: Look) -> tuple[list[Measure] | None, str]:
    """Return where the advantage should be smaller: the measures and the panel, or None and the missing figure."""
    if claim.more_than_in is None:
        return own, ""
    figure, colon, panel = claim.more_than_in.partition(": ")
    if not colon:
        return own, claim.more_than_in
    found = look(figure)
    return found, panel if found is not None else figure


def _paired(
    rows: list[Measure], protocol: str, panel: str, better: str, worse: str, metric: Metric
) -> dict[int, float]:
    """Return, seed by seed, how much better one line is."""
    sign = -1.0 if metric == "loss" else 1.0

    def of(line: str) -> dict[int, float]:
        chosen = [row for row in rows if (row.panel, row.protocol, row.line) == (panel, protocol, line)]
        return {row.seed: getattr(row, metric) for row in chosen}

    ours, theirs = of(better), of(worse)
    return {seed: _less(ours[seed], theirs[seed]) * sign for seed in ours if seed in theirs}


def _less(a: float, b: float) -> float:
    """Subtract; two infinite losses do not differ."""
    return 0.0 if a == b else a - b
