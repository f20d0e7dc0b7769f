"""An experiment: a small TOML file that says what is compared, on what, at which scale, and what is claimed.

A configuration is made in layers, each of which overrides the one before: the experiment's `base`, the panel, the line,
the scale, the scale's own changes of that panel. Keys are those of `kedge run`, as in "run.cohort".
"""

import tomllib
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from kedge.errors import UsageError, shown, unknown
from kedge.runs.own import short_name
from kedge.runs.toml import load_toml


def _dotted(sections: Any) -> Any:
    """Turn {"run": {"cohort": 5}}, as TOML reads run.cohort = 5, into {"run.cohort": 5}."""
    if not isinstance(sections, dict) or not all(isinstance(values, dict) for values in sections.values()):
        raise ValueError("settings must have the form section.name, as in run.cohort")
    return {f"{section}.{name}": value for section, values in sections.items() for name, value in values.items()}


Changes = Annotated[dict[str, Any], BeforeValidator(_dotted)]
"""Dotted keys of a configuration and their values."""

Text = Annotated[str, Field(max_length=1000, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
Label = Annotated[str, Field(max_length=80, pattern=r"^[A-Za-z0-9][^\x00-\x1f\x7f-\x9f|`]*$")]
"""The name of a panel or a line: it stands in tables and legends, and becomes part of file names."""

Rate = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Seeds = Annotated[int, Field(ge=1, le=100)]
Points = Annotated[int, Field(ge=1, le=10_000)]
Grid = Annotated[list[Rate], Field(max_length=30)]
Panels = Annotated[list[Label], Field(min_length=1, max_length=100)]

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$"
"""The name of an experiment: its results are in a directory of that name."""

SCALES = ("smoke", "laptop", "overnight", "paper")
"""Seconds on built-in data; a working day on two cores; a night on them, for what takes long; the paper's own size."""

BEYOND = "beyond the paper"
"""The figure of an experiment that the paper does not have."""

OWN = "own experiment"
"""The figure of a user's own experiment, unless its file says otherwise."""

Protocol = Literal["tuned", "second", "finer", "equal", "eta"]
"""How the hyper-parameters of a line are chosen; `kedge.reproduce.plan.PROTOCOLS` says what each is."""

Metric = Literal["accuracy", "area", "loss", "rounds"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Claim(_Part):
    """What is claimed, as comparisons of lines."""

    text: Text
    pairs: Annotated[  # better, worse
        list[Annotated[tuple[str, str], Field(strict=False)]], Field(min_length=1, max_length=1000)
    ]
    metric: Metric = "accuracy"
    panels: Panels | None = None  # None: all
    where: dict[str, Text] = {}  # the paper's name of a panel, as Figure 6(a)
    more_than_in: str | None = None  # a panel, or "figure: panel", in which the advantage is smaller


class Tuned(_Part):
    """The grid from which each line takes its own best."""

    eta: Annotated[Grid, Field(min_length=1)]
    beta: Grid = []  # for algorithms that have one, unless it is fixed
    largest_beta: Share | None = None  # the grid does not grow past it; None: up to 1
    step: Grid = []  # γ / ηK, for the lines of `free_step`; all others have γ = ηK
    judge: Literal["accuracy", "loss"] = "accuracy"  # what must be best on held-out samples


class Equal(_Part):
    """The rate of the protocols with one rate for all: `eta` is the η of the hat form, η̂ = βη."""

    eta: Rate
    beta: Share
    hat: list[str] = []  # algorithms whose gradient is multiplied by beta; they take eta / beta


class Tuning(_Part):
    """How every line searches its grid; `kedge.reproduce.search` has the rule."""

    seeds: Seeds = 3
    rounds: Share = 1.0  # of the final runs' rounds
    holdout: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] = 0.1
    budget: Annotated[int, Field(ge=0, le=1000)] = 8
    """Points that a line tries by refining around the best; growing past an edge may add a few."""
    extend: Annotated[int, Field(ge=0, le=10)] = 3  # how often the grid may grow past an edge
    panel: str | None = None  # the one panel that is searched, for all of them; None: each searches its own

    def lender(self, panel: str) -> str:
        """Return the other panel whose points a panel takes, if it does."""
        return "" if self.panel in (None, panel) else str(self.panel)

    points: Points = 15  # evaluations of a run


class Scale(_Part):
    """How large the experiment is, and what was reduced."""

    reduced: Text = "nothing"
    untestable: Text = ""  # why claims cannot be judged at this scale, whatever the results
    set: Changes = {}
    panels: dict[str, Changes] = {}
    only: Panels | None = None
    seeds: Seeds = 3
    points: Points = 25  # of a curve
    eta: Grid | None = None
    beta: Grid | None = None
    equal_eta: Rate | None = None
    protocols: list[Protocol] | None = None  # None: those of the experiment
    tuning: Tuning = Tuning()


class Experiment(_Part):
    """A figure of the paper, or one beyond it in the same form, or a user's own."""

    name: Annotated[str, Field(pattern=NAME)]
    title: Annotated[Text, Field(min_length=1)]
    figure: Annotated[Text, Field(min_length=1)] = OWN
    shows: Text = ""
    chance: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] | None = None
    """The accuracy of guessing, where every run starts and what a diverged one counts as; None: one over the labels."""
    unstated: Text = ""  # what the paper does not say; the configurations have our choice
    base: dict[str, dict[str, Any]]
    algorithms: Annotated[list[str], Field(max_length=50)] = []
    panels: Annotated[dict[Label, Changes], Field(min_length=1, max_length=100)]
    lines: Annotated[dict[Label, Changes], Field(max_length=50)] = {}
    free_step: list[str] = []  # lines that also choose γ / ηK from the grid
    decayed: list[str] = []  # panels in which eta decays over the run, by a cosine, to a hundredth
    protocols: list[Protocol] = ["tuned", "second", "finer"]
    judged: list[Protocol] = ["tuned"]  # those that the paper used; the others are shown but do not count
    sweep: str | None = None  # a key: its values, one per panel, are the x axis
    loss: bool = False  # draw the test loss as well
    tuned: Tuned
    equal: Equal | None = None
    scales: Annotated[dict[Annotated[str, Field(pattern=f"^({'|'.join(SCALES)})$")], Scale], Field(min_length=1)]
    claims: Annotated[list[Claim], Field(max_length=1000)] = []

    @property
    def beyond(self) -> bool:
        """Whether the paper does not have it."""
        return self.figure in (BEYOND, OWN)

    def needs(self) -> set[str]:
        """Return the other figures that its claims are about."""
        places = [(claim.more_than_in or "").partition(": ") for claim in self.claims]
        return {figure for figure, colon, _ in places if colon}

    def all_lines(self) -> dict[str, Changes]:
        """Return what is compared: the algorithms by their ids or their classes' names, then the other lines."""
        return {short_name(name): {"algorithm.name": name} for name in self.algorithms} | self.lines

    def panels_at(self, scale: str) -> dict[str, Changes]:
        """Return the panels that are drawn at a scale."""
        only = self.scales[scale].only
        return {name: changes for name, changes in self.panels.items() if only is None or name in only}


def load(name: str) -> Experiment:
    """Load an experiment by its name."""
    files = _files()
    if name not in files:
        raise unknown("figure", name, [*files, "all"])
    return read(name, files[name].read_text(encoding="utf-8"))


def read(name: str, text: str) -> Experiment:
    """Read an experiment from its TOML text."""
    try:
        return _validated(name, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"the experiment {name} is not TOML: {error}") from error


def read_own(path: Path) -> Experiment:
    """Read a user's own experiment; its name is that of the file, unless the file says otherwise."""
    experiment = _validated(path.stem, load_toml(path))
    if experiment.name in [*names(), "all"]:
        raise UsageError(f"the experiment {path} is called {experiment.name}, but kedge's own figures use that name")
    return experiment


def _validated(name: str, content: Mapping[str, Any]) -> Experiment:
    try:
        experiment = Experiment.model_validate({"name": name, **content})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        place = place if place.isprintable() and len(place) <= 60 else shown(place)
        raise UsageError(f"{place} of the experiment {shown(name)[1:-1]} is wrong: {first['msg']}") from None
    _check_names(experiment)
    return experiment


def names() -> list[str]:
    """Return the names of all experiments."""
    return list(_files())


def _check_names(experiment: Experiment) -> None:
    lines, panels = experiment.all_lines(), experiment.panels
    used = [name for claim in experiment.claims for name in [*(claim.panels or []), *claim.where]]
    used += [place for claim in experiment.claims if (place := claim.more_than_in) and ": " not in place]
    used += experiment.decayed
    for scale in experiment.scales.values():
        used += [*scale.panels, *(scale.only or []), *filter(None, [scale.tuning.panel])]
    for name in experiment.needs():
        if name not in names():
            raise unknown(f"figure in a claim of {experiment.name}", name, names())
    for name in used:
        if name not in panels:
            raise unknown(f"panel of {experiment.name}", name, panels)
    for name in [
        *experiment.free_step,
        *(name for claim in experiment.claims for pair in claim.pairs for name in pair),
    ]:
        if name not in lines:
            raise unknown(f"line of {experiment.name}", name, lines)


def _files() -> dict[str, Traversable]:
    """Return the files of the experiments by name."""
    found = [file for file in (resources.files("kedge.reproduce") / "experiments").iterdir() if file.is_file()]
    return {file.name.removesuffix(".toml"): file for file in sorted(found, key=lambda file: file.name)}
