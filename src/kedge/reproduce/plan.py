"""The runs of an experiment at a scale: every one a complete configuration with a name."""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kedge.algorithms import find_algorithm
from kedge.reproduce.experiment import Changes, Experiment
from kedge.runs.config import Config, check, merged

FIRST_TUNING_SEED = 100
"""The grid is searched on seeds of its own: other partitions, initial models, cohorts and minibatches."""


PROTOCOLS = {"tuned": "each at its own best rate", "equal": "one effective rate for all"}
"""How rates are chosen: from a grid by held-out samples, or one η̂ = βη, as the paper did for ResNet-18."""


class Hyper(NamedTuple):
    """What the protocols choose."""

    eta: float
    beta: float | None  # None: the algorithm has none

    def __str__(self) -> str:
        return f"eta-{self.eta:g}" + ("" if self.beta is None else f"-beta-{self.beta:g}")


class Case(NamedTuple):
    """One line in one panel under one protocol."""

    panel: str
    protocol: str  # "tuned" or "equal"
    line: str


Grids = Mapping[Case, list[Hyper]]
"""What the lines choose from."""


@dataclass(frozen=True)
class Plan:
    """An experiment at a scale."""

    experiment: Experiment
    scale: str
    device: str | None = None
    data_dir: str | None = None

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
        """How rates are chosen, in the order in which it is shown."""
        all_of_them = ["tuned"] if self.experiment.equal is None else ["tuned", "equal"]
        return [name for name in all_of_them if self.size.protocols is None or name in self.size.protocols]

    def cases(self) -> Iterator[Case]:
        """All that is drawn."""
        for panel, protocol in itertools.product(self.experiment.panels_at(self.scale), self.protocols):
            for line in self.experiment.all_lines():
                if self._takes_part(panel, line):
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
        changes = {
            "run.rounds": rounds,
            "run.eval_every": max(1, rounds // self.size.tuning.points),
            "data.test_samples": None,
        }
        return check(merged(raw, [*changes.items(), ("data.holdout", self.size.tuning.holdout)]))

    def grid(self, case: Case) -> list[Hyper]:
        """Return the pairs that a line chooses from."""
        tuned, fixed = self.experiment.tuned, self._beta(case)
        etas = self.size.eta or tuned.eta
        betas: Iterable[float | None] = [fixed]
        if fixed is None and "beta" in self._fields(case):
            betas = self.size.beta or tuned.beta
        return [Hyper(eta, beta) for eta, beta in itertools.product(etas, betas)]

    def equal(self, case: Case) -> Hyper:
        """Return the pair that gives a line the common rate: where βη is the effective rate, η is η̂ / β."""
        rule = self.experiment.equal
        assert rule is not None
        eta = self.size.equal_eta or rule.eta
        if "beta" not in self._fields(case):
            return Hyper(eta, None)
        fixed = self._beta(case)
        beta = rule.beta if fixed is None else fixed
        hat = self._settings(case.panel, case.line)["algorithm"]["name"] in rule.hat
        return Hyper(_short(eta / beta) if hat else eta, beta)

    @property
    def title(self) -> str:
        """What the figure shows; at the smoke scale it shows nothing but that everything runs."""
        return f"{self.experiment.title}: tried on digits" if self.scale == "smoke" else self.experiment.title

    def value(self, panel: str, line: str, key: str) -> float:
        """Return a number of a panel's configuration; a cohort of all is the number of clients."""
        sections = self._settings(panel, line)
        section, _, name = key.partition(".")
        value = sections[section][name]
        return float(sections["data"]["clients"] if value == "all" else value)

    def grids(self) -> Grids:
        """Return the grids that are searched."""
        return {
            case: self.grid(case) for case in self.cases() if case.protocol == "tuned" and case == self.searched(case)
        }

    def searched(self, case: Case) -> Case:
        """Return the case whose search a case relies on: its own, unless one panel is searched for all."""
        return case._replace(panel=self.size.tuning.panel or case.panel)

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
        """Say whether the algorithm is defined for the panel's cohort."""
        sections = self._settings(panel, line)
        cohort, clients = sections["run"].get("cohort"), sections["data"].get("clients")
        return cohort in ("all", clients) or not find_algorithm(sections["algorithm"]["name"]).full_participation

    def _raw(self, panel: str, line: str, hyper: Hyper, seed: int) -> dict[str, Any]:
        sections = self._settings(panel, line)
        fields = self._fields(Case(panel, "", line))
        given = {key: value for key, value in hyper._asdict().items() if value is not None}
        sections["algorithm"] = {
            key: value for key, value in (sections["algorithm"] | given).items() if key in {"name", *fields}
        }
        more = {"run.seed": seed, "run.device": self.device, "data.data_dir": self.data_dir}
        return merged(sections, [(key, value) for key, value in more.items() if value is not None])

    def _settings(self, panel: str, line: str) -> dict[str, Any]:
        layers: list[Changes] = [
            self.experiment.panels[panel], self.experiment.all_lines()[line], self.size.set,
            self.size.panels.get(panel, {}),
        ]  # fmt: skip
        return merged(self.experiment.base, [item for layer in layers for item in layer.items()])

    def _fields(self, case: Case) -> set[str]:
        kind = find_algorithm(self._settings(case.panel, case.line)["algorithm"]["name"])
        return {field.name for field in dataclasses.fields(kind)}

    def _beta(self, case: Case) -> float | None:
        """Return the beta that the experiment fixes; None if it is free, or there is none."""
        fixed = self._settings(case.panel, case.line)["algorithm"].get("beta")
        return None if fixed is None or "beta" not in self._fields(case) else float(fixed)


def beyond(best: Hyper, grid: list[Hyper]) -> list[Hyper]:
    """Return the best pair with the next rate outside the grid, in ratio, if its own is the first or the last one."""
    etas = sorted({pair.eta for pair in grid if pair.beta == best.beta})
    if len(etas) < 2 or best.eta not in (etas[0], etas[-1]):
        return []
    eta = etas[0] ** 2 / etas[1] if best.eta == etas[0] else etas[-1] ** 2 / etas[-2]
    return [best._replace(eta=float(f"{eta:.2g}"))]


def between(best: Hyper, grid: list[Hyper]) -> list[Hyper]:
    """Return the best pair of a grid with rates halfway, in ratio, to the next ones; at an end as far beyond it."""
    etas = sorted({pair.eta for pair in grid})
    place = etas.index(best.eta)
    below, above = etas[max(0, place - 1)], etas[min(place + 1, len(etas) - 1)]
    down, up = (math.sqrt(best.eta / below), math.sqrt(above / best.eta))
    rates = [best.eta / (down if down > 1 else up), best.eta * (up if up > 1 else down)]
    return [best._replace(eta=float(f"{eta:.2g}")) for eta in rates] if len(etas) > 1 else []


def name_of(kind: str, case: Case, hyper: Hyper, seed: int) -> str:
    """Name a run's directory."""
    return "--".join([kind, slug(case.panel), slug(case.line), str(hyper), f"seed-{seed}"])


def slug(text: str) -> str:
    """Write a label so that it can name a file."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def _short(value: float) -> float:
    return float(f"{value:.6g}")
