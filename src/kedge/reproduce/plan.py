"""The runs of an experiment at a scale: every one a complete configuration with a name."""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kedge.algorithms import algorithm_class
from kedge.reproduce.experiment import Changes, Experiment
from kedge.runs.config import Config, check
from kedge.runs.settings import SETTINGS
from kedge.runs.toml import merged

FIRST_TUNING_SEED = 100
"""The grid search has its own seeds: other partitions, initial models, cohorts and minibatches."""


PROTOCOLS = {
    "tuned": "each at its own best point",
    "second": "each at its second-best point",
    "finer": "each at the best point of a finer grid",
    "equal": "one effective rate for all",
    "eta": "one eta for all",
}
"""How hyper-parameters are chosen: from a grid by held-out samples, in three ways, the last two of which show how much
the first depends on the grid; one η̂ = βη for all, as the paper did for ResNet-18; or one η, whatever beta is."""

SEARCHED = ("tuned", "second", "finer")
"""The protocols that choose from a grid."""


FAR = 1.2
"""Points whose values all differ by less than this factor are neighbours, too close to check each other."""


class Hyper(NamedTuple):
    """What the protocols choose."""

    eta: float
    beta: float | None  # None: the algorithm has no beta
    step: float | None = None  # γ / ηK; None: γ = ηK, plain averaging

    def near(self, other: "Hyper") -> bool:
        """Whether no value differs from the other's by as much as a factor of `FAR`."""
        pairs = [(a, b) for a, b in zip(self, other, strict=True) if a is not None and b is not None]
        return all(round(max(a / b, b / a), 6) < FAR for a, b in pairs)

    def __str__(self) -> str:
        return "-".join(f"{name}-{value:g}" for name, value in self._asdict().items() if value is not None)


class Case(NamedTuple):
    """One line in one panel under one protocol."""

    panel: str
    protocol: str  # one of PROTOCOLS
    line: str


class FinalRun(NamedTuple):
    """What one final run tries."""

    case: Case
    hyper: Hyper
    seed: int


Grids = Mapping[Case, list[Hyper]]
"""What the lines choose from."""


@dataclass(frozen=True)
class Plan:
    """An experiment at a scale."""

    experiment: Experiment
    scale: str
    device: str | None = None
    data_dir: str | None = None
    own: bool = False
    """Whether a user wrote it."""

    @property
    def size(self) -> Any:
        """The scale's settings."""
        return self.experiment.scales[self.scale]

    @property
    def seeds(self) -> list[int]:
        """The seeds of the final runs."""
        return list(range(self.size.seeds))

    @property
    def protocols(self) -> list[str]:
        """The protocols, in the order in which they are shown."""
        wanted = self.experiment.protocols if self.size.protocols is None else self.size.protocols
        return [name for name in PROTOCOLS if name in wanted]

    def cases(self) -> Iterator[Case]:
        """Everything that is drawn."""
        for panel, protocol in itertools.product(self.experiment.panels_at(self.scale), self.protocols):
            for line in self.experiment.all_lines():
                free = line in self.experiment.free_step
                if self._takes_part(panel, line) and (protocol in SEARCHED or not free):
                    yield Case(panel, protocol, line)

    def final(self, case: Case, hyper: Hyper, seed: int) -> Config:
        """Return the configuration of a final run."""
        raw = self._raw(case.panel, case.line, hyper, seed)
        rounds = check(raw).run.rounds
        return check(merged(raw, [("run.eval_every", max(1, rounds // self.size.points))]))

    def search(self, case: Case, hyper: Hyper, seed: int) -> Config:
        """Return the configuration of a run of the grid: shorter perhaps, and judged by held-out training samples."""
        raw = self._raw(case.panel, case.line, hyper, seed)
        rounds = max(1, round(check(raw).run.rounds * self.size.tuning.rounds))
        raw["data"].pop("test_samples", None)  # held-out samples are all looked at
        changes = {
            "run.rounds": rounds,
            "run.eval_every": max(1, rounds // self.size.tuning.points),
            "data.holdout": self.size.tuning.holdout,
        }
        return check(merged(raw, changes.items()))

    def grid(self, case: Case) -> list[Hyper]:
        """Return the pairs that a line chooses from."""
        tuned, fixed = self.experiment.tuned, self._beta(case)
        etas = self.size.eta or tuned.eta
        betas: Iterable[float | None] = [fixed]
        if fixed is None and "beta" in self.fields(case):
            betas = self.size.beta or tuned.beta
        steps: Iterable[float | None] = tuned.step if case.line in self.experiment.free_step else [None]
        return [Hyper(*point) for point in itertools.product(etas, betas, steps)]

    def common(self, case: Case) -> Hyper:
        """Return the point of a line when all lines have one rate.

        If that is the effective rate βη, η is η̂ / β for lines that multiply the gradient by β; if it is η itself, all
        lines have the η that those would have.
        """
        rule = self.experiment.equal
        assert rule is not None
        eta = self.size.equal_eta or rule.eta
        if case.protocol == "eta":
            return Hyper(_short(eta / rule.beta), rule.beta if "beta" in self.fields(case) else None)
        if "beta" not in self.fields(case):
            return Hyper(eta, None)
        fixed = self._beta(case)
        beta = rule.beta if fixed is None else fixed
        hat = self.settings(case.panel, case.line)["algorithm"]["name"] in rule.hat
        return Hyper(_short(eta / beta) if hat else eta, beta)

    @property
    def title(self) -> str:
        """What the figure shows; at the smoke scale it shows only that everything runs."""
        tried = self.scale == "smoke" and not self.own
        return f"{self.experiment.title}: tried on digits" if tried else self.experiment.title

    def value(self, panel: str, line: str, key: str) -> float:
        """Return a number of a panel's configuration; a cohort of all is the number of clients."""
        sections = self.settings(panel, line)
        value = _value(sections, key)
        return float(_value(sections, "data.clients") if value == "all" else value)

    def grids(self) -> Grids:
        """Return the grids that are searched."""
        searched = [case for case in self.cases() if case.protocol in SEARCHED and case == self.searched(case)]
        return {case: self.grid(case) for case in searched}

    def searched(self, case: Case) -> Case:
        """Return the case whose search a case relies on: the tuned one, of its own panel or of the one for all."""
        return case._replace(panel=self.size.tuning.panel or case.panel, protocol="tuned")

    def how(self, panel: str, protocol: str) -> str:
        """Say how the lines of a panel chose their points."""
        lender = self.size.tuning.lender(panel) if protocol in SEARCHED else ""
        return f"{PROTOCOLS[protocol]} with {lender}" if lender else PROTOCOLS[protocol]

    def tuning_jobs(self, grids: Grids) -> dict[str, Config]:
        """Return the runs of grids by name."""
        seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + self.size.tuning.seeds)
        return {
            name_of("grid", case, hyper, seed): self.search(case, hyper, seed)
            for (case, grid), seed in itertools.product(grids.items(), seeds)
            for hyper in grid
        }

    def final_jobs(self, chosen: dict[Case, Hyper]) -> dict[str, Config]:
        """Return the final runs by name; protocols that agree share their runs."""
        return {
            name_of("run", case, hyper, seed): self.final(case, hyper, seed)
            for case, hyper in chosen.items()
            for seed in self.seeds
        }

    def _takes_part(self, panel: str, line: str) -> bool:
        """Return whether the algorithm is defined for the panel's cohort."""
        sections = self.settings(panel, line)
        cohort, clients = _value(sections, "run.cohort"), _value(sections, "data.clients")
        return cohort in ("all", clients) or not algorithm_class(sections["algorithm"]["name"]).full_participation

    def _raw(self, panel: str, line: str, hyper: Hyper, seed: int) -> dict[str, Any]:
        sections = self.settings(panel, line)
        fields = self.fields(Case(panel, "", line))
        given: dict[str, Any] = {"eta": hyper.eta, "beta": hyper.beta}
        if panel in self.experiment.decayed:
            given["eta"] = (
                f"cosine({hyper.eta:g}, {_short(hyper.eta / 100):g}, rounds={_value(sections, 'run.rounds')})"
            )
        if hyper.step is not None:
            given["gamma"] = _short(hyper.step * hyper.eta * _value(sections, "run.local_steps"))
        given = {key: value for key, value in given.items() if value is not None}
        sections["algorithm"] = {
            key: value for key, value in (sections["algorithm"] | given).items() if key in {"name", "sha256", *fields}
        }
        more = {"run.seed": seed, "run.device": self.device, "data.data_dir": self.data_dir}
        return merged(sections, [(key, value) for key, value in more.items() if value is not None])

    def settings(self, panel: str, line: str) -> dict[str, Any]:
        """Return the configuration of a line in a panel, without its hyper-parameters from the grid."""
        layers: list[Changes] = [
            self.experiment.panels[panel], self.experiment.all_lines()[line], self.size.set,
            self.size.panels.get(panel, {}),
        ]  # fmt: skip
        base: dict[str, dict[str, Any]] = {section: {} for section in Config.sections} | self.experiment.base
        return merged(base, [item for layer in layers for item in layer.items()])

    def fields(self, case: Case) -> set[str]:
        """Return the hyper-parameters of a line's algorithm."""
        kind = algorithm_class(self.settings(case.panel, case.line)["algorithm"]["name"])
        return {field.name for field in dataclasses.fields(kind)}

    def _beta(self, case: Case) -> float | None:
        """Return the beta that the experiment fixes; None if it is free, or there is none."""
        fixed = self.settings(case.panel, case.line)["algorithm"].get("beta")
        return None if fixed is None or "beta" not in self.fields(case) else float(fixed)


def name_of(kind: str, case: Case, hyper: Hyper, seed: int) -> str:
    """Name a run's directory."""
    return "--".join([kind, slug(case.panel), slug(case.line), str(hyper), f"seed-{seed}"])


def slug(text: str) -> str:
    """Turn a label into a file name."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def _value(sections: Mapping[str, Any], key: str) -> Any:
    """Return a setting as it is set, or its default."""
    section, _, name = key.partition(".")
    return sections[section].get(name, SETTINGS[key].start)


def _short(value: float) -> float:
    return float(f"{value:.6g}")
