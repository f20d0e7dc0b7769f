"""What can be known about an experiment before its first run: whether it can be run, and what guessing would reach."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from kedge.checks import is_finite
from kedge.errors import UsageError, shown, unknown
from kedge.own_code import PLACES
from kedge.problem import DATASETS, load_dataset
from kedge.reproduce.experiment import Experiment
from kedge.reproduce.plan import SEARCHED, Case, Plan, slug
from kedge.reproduce.results import Chances
from kedge.runs.batch import rehearse
from kedge.runs.config import Config
from kedge.runs.settings import SETTINGS
from kedge.samples import IGNORED
from kedge.simulator import Simulation

RUNS = 100_000
"""The most runs of an experiment."""

CHOSEN = {
    "algorithm.eta": "the grid chooses it",
    "run.seed": "a scale says how many seeds there are",
    "run.eval_every": "a scale says how many points a curve has",
}
"""Settings that an experiment makes itself."""


def code_of(experiment: Experiment, scale: str) -> list[Any]:
    """Return all values of an experiment that may name code."""
    size = experiment.scales[scale]
    layers = [*experiment.panels.values(), *experiment.all_lines().values(), size.set, *size.panels.values()]
    base = (experiment.base.get(section, {}).get(name) for section, name in (key.split(".") for key in PLACES))
    return [*base, *(layer.get(key) for layer in layers for key in PLACES)]


def check_plan(plan: Plan) -> None:
    """Refuse, in one sentence, a user's own experiment that cannot be run at its scale."""
    experiment, lines, panels = plan.experiment, plan.experiment.all_lines(), plan.experiment.panels_at(plan.scale)
    if not lines:
        raise UsageError(f"{experiment.name} compares nothing: it has neither algorithms nor lines")
    _check_slugs("line", [*(name.rpartition(":")[2] for name in experiment.algorithms), *experiment.lines])
    _check_slugs("panel", experiment.panels)
    if "tuned" not in plan.protocols:
        raise UsageError(f"protocols of {experiment.name} is {plan.protocols}, but tuned must be among them")
    if experiment.equal is None and {"equal", "eta"} & {*plan.protocols}:
        raise UsageError(f"{experiment.name} has a protocol with one rate for all, but no section equal")
    pairs = list(itertools.product(panels, lines))
    _check_size(plan, len(pairs))
    for panel, line in pairs:
        sections = plan.settings(panel, line)
        Config.read(sections)  # types and names, before anything computes with them
        if "name" not in sections["algorithm"]:
            raise UsageError(f"the line {line} of {experiment.name} names no algorithm: set algorithm.name")
        for key, why in CHOSEN.items():
            section, _, name = key.partition(".")
            if name in sections[section]:
                raise UsageError(f"{key} is set in {experiment.name}, but {why}")
        if not is_finite(beta := sections["algorithm"].get("beta", 1.0)):
            raise UsageError(f"algorithm.beta is {shown(beta)} in {experiment.name}, but must be a number there")
    _check_hyper(plan, pairs)
    _check_sweep(plan, pairs)
    _check_grids(plan)


def _check_size(plan: Plan, lines: int) -> None:
    """Refuse more runs than anybody can wait for, before they are listed."""
    tuned, size = plan.experiment.tuned, plan.size
    steps = tuned.step if plan.experiment.free_step else []
    points = len(size.eta or tuned.eta) * max(1, len(size.beta or tuned.beta)) * max(1, len(steps))
    count = lines * (points * size.tuning.seeds + len(plan.protocols) * size.seeds)
    if count > RUNS:
        raise UsageError(f"{plan.experiment.name} has up to {count} runs, but at most {RUNS} are possible")


def _check_slugs(kind: str, names: Iterable[str]) -> None:
    """Refuse names of which nothing would be left in a file's name, or the same as of another one."""
    count = Counter(slug(name) for name in names)
    for name, times in count.items():
        if not name or times > 1:
            which = f"{times} {kind}s" if times > 1 else f"a {kind}"
            raise UsageError(f"{which} would be {shown(name)} in the names of files, but each needs its own there")


def _check_hyper(plan: Plan, pairs: list[tuple[str, str]]) -> None:
    """Refuse a hyper-parameter that no line has: the others do without those that they do not know."""
    fields = {line: plan.fields(Case(panel, "", line)) for panel, line in pairs}
    known = {"name", "sha256"}.union(*fields.values())
    for panel, line in pairs:
        for key in plan.settings(panel, line)["algorithm"]:
            if key not in known:
                raise unknown(f"hyper-parameter of {plan.experiment.name}", key, known)
    tuned = plan.experiment.tuned
    for line, own in fields.items():
        fixed = all("beta" in plan.settings(panel, line)["algorithm"] for panel, other in pairs if other == line)
        if "beta" in own and not fixed and not (plan.size.beta or tuned.beta):
            raise UsageError(f"{line} has a beta, but tuned.beta of {plan.experiment.name} has no values")
        if line in plan.experiment.free_step and ("gamma" not in own or not tuned.step):
            why = "tuned.step has no values" if "gamma" in own else "it has no gamma"
            raise UsageError(f"{line} is in free_step of {plan.experiment.name}, but {why}")


def _check_sweep(plan: Plan, pairs: list[tuple[str, str]]) -> None:
    key = plan.experiment.sweep
    if key is None:
        return
    if key not in SETTINGS:
        raise unknown(f"sweep of {plan.experiment.name}", key, SETTINGS)
    for panel, line in pairs:
        try:
            good = plan.value(panel, line, key) > 0
        except (TypeError, ValueError):
            good = False
        if not good:
            raise UsageError(f"sweep of {plan.experiment.name} is {key}, but in {panel} that is no number above 0")


def _check_grids(plan: Plan) -> None:
    name, grids = plan.experiment.name, plan.grids()
    for case, grid in grids.items():
        if len({str(hyper) for hyper in grid}) < len(grid):
            raise UsageError(f"the grid of {case.line} in {name} has a point twice")
    for case in plan.cases():
        if case.protocol in SEARCHED and plan.searched(case) not in grids:
            raise UsageError(
                f"{case.line} is in the panel {case.panel} of {name}, but not in {plan.searched(case).panel}, "
                "whose grid is searched for all"
            )
    if not grids:
        raise UsageError(f"no line of {name} is defined for the cohorts of its panels")


def guessing(plan: Plan) -> Chances:
    """Return the accuracy of guessing in every panel; data that is missing or does not fit is reported at once."""
    if not plan.own:
        case = next(plan.cases())
        data = plan.final(case, plan.grid(case)[0], 0).data
        load_dataset(data.dataset, data.data_dir)
    declared = plan.experiment.chance
    found = {}
    for case, config in _firsts(plan):
        classes = DATASETS[config.data.dataset].classes if config.data.dataset in DATASETS else None
        if plan.own:
            run = rehearse(config)
            _check_accuracy(plan, case, run)
            classes = classes or _labels(run)
        found[case.panel] = 1 / max(2, classes or 0) if declared is None else declared
    return found


def _firsts(plan: Plan) -> Iterator[tuple[Case, Config]]:
    """Return a configuration of every line in every panel; of a user's own, first one that is held out from."""
    if plan.own:
        case = next(plan.cases())
        yield case, plan.search(case, plan.grid(case)[0], 0)
    for case in plan.cases():
        if case.protocol == "tuned":
            yield case, plan.final(case, plan.grid(case)[0], 0)


def _check_accuracy(plan: Plan, case: Case, run: Simulation) -> None:
    """Refuse a run that would have no accuracy on a test set, by which everything is measured."""
    name = plan.experiment.name
    if run.is_personal:
        raise UsageError(f"{case.line} of {name} has personal layers, but then no model is evaluated on the test set")
    if run.federation.test is None:
        raise UsageError(f"the data of {name} has no test set, but an experiment is judged by one; set data.holdout")
    if "accuracy" not in run.evaluate():
        raise UsageError(f"the data of {name} has no accuracy, but an experiment needs labels of classes")


def _labels(run: Simulation) -> int:
    labels = run.federation.labels
    return int(labels[labels != IGNORED].max()) + 1
