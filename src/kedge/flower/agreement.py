"""What a run config says. Server and clients read the same one.

It has the sections of a configuration (`data.clients`, `algorithm.eta`, `run.rounds`, ...) and one more, `flower`.
Flower's values are text and numbers: "" stands for a setting that is not given.
"""

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kedge.algorithms import make_algorithm
from kedge.checks import whole
from kedge.errors import UsageError, shown, unknown
from kedge.own_code import CodePlace
from kedge.round import AnyAlgorithm
from kedge.runs.settings import DataSettings, ModelSettings, SimulationSettings
from kedge.schedules import Schedule
from kedge.settings import Section, Settings, setting
from kedge.transforms import Privacy

OWN = "own"
"""What a configuration calls data that only the clients have."""


def _experiment(name: str, value: Any) -> None:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", value):
        raise UsageError(f"{name} is {shown(value)}, but must be 1 to 64 letters, digits, - or _")


def _set(default: Any, meaning: str, **rule: Any) -> Any:
    """Declare a setting without an option of the command line: the run config has it."""
    return setting(default, meaning, option="", **rule)


class FlowerSettings(Section):
    """How a federation is run by Flower."""

    panel = "Flower"

    experiment: str = _set("default", "Names the clients' state on their disks.", check=_experiment)
    out: str = _set("runs/flower", "The run directory, on the server; a run that is already there resumes.")
    generation: int = _set(
        1, "A higher number than before restarts the experiment from the current model, with fresh state everywhere.",
        at_least=1,
    )  # fmt: skip
    min_clients: int | None = _set(
        None, "How many clients must be connected before the first round.", at_least=1, default_text="all"
    )
    wait: float = _set(300.0, "Seconds to wait for them, and for clients that a round needs.", above=0)
    min_replies: int = _set(
        1, "Replies that an exchange needs; with fewer, the round is played again from its start.", at_least=1
    )
    deadline: float = _set(600.0, "Seconds to wait for the replies of an exchange; later ones are dropped.", above=0)
    attempts: int = _set(5, "How often a round is tried before the run fails; it can be continued.", at_least=1)
    oversample: int = _set(
        0, "Clients to ask in addition to the cohort; the first replies count, the others are dropped.", at_least=0
    )
    sampling: Literal["all", "present"] = _set(
        "all", "From whom cohorts are drawn: all clients, or those connected when the round begins."
    )
    z_score: float | None = _set(
        None, "Drop a reply whose norm is this many robust deviations above the median of the exchange.", above=0
    )
    state_dir: str | None = _set(
        None,
        "Where nodes of Flower's own simulation keep their state; real nodes have a state-dir in their node config.",
    )
    eval_clients: bool = _set(False, "Let the cohort evaluate the model it receives on its own test data.")


@dataclass(frozen=True)
class Agreement:
    """What both ends know of a run."""

    clients: int
    algorithm: AnyAlgorithm
    settings: Settings
    run: SimulationSettings
    flower: FlowerSettings
    sections: Mapping[str, Mapping[str, Any]]
    """As `config.toml` has them."""

    @property
    def rules(self) -> str:
        """What both ends must share, in one text."""
        return json.dumps(self.fingerprint())

    def check(self, rules: str) -> None:
        """Refuse the rules of a server that differ from these, naming the first difference."""
        try:
            theirs = json.loads(rules)
        except (ValueError, RecursionError):
            theirs = None
        if not isinstance(theirs, dict):
            raise UsageError(f"the server's rules are {shown(rules)}, but must be settings")
        for key, here in self.fingerprint().items():
            if theirs.get(key) != here:
                there = shown(theirs.get(key))
                raise UsageError(f"the server has a different {key}: it is {there} there, but {shown(here)} here")

    def fingerprint(self) -> dict[str, str | int | float | None]:
        """What determines the result."""
        values: dict[str, Any] = {"runs": "flower", "clients": self.clients, "algorithm": repr(self.algorithm)}
        return values | {f"run.{name}": value for name, value in self.settings.written().items()}

    @classmethod
    def read(cls, config: Mapping[str, Any], algorithm: AnyAlgorithm | None = None) -> "Agreement":
        """Check a run config; an ``algorithm`` given in Python replaces the one that it names."""
        raw = _sections(config)
        if "clients" not in raw["data"]:
            raise UsageError("the run config has no data.clients, the number of clients")
        clients = whole("data.clients", raw["data"]["clients"], 1)
        run, flower = _read(SimulationSettings, "run", raw["run"]), _read(FlowerSettings, "flower", raw["flower"])
        hyper = dict(raw["algorithm"])
        name = hyper.pop("name", "scaffold-m")
        if CodePlace.parse(str(name)) is not None:
            raise UsageError(f"algorithm.name is {shown(name)}, but your own algorithm is given to the apps in Python")
        if algorithm is None:
            algorithm = make_algorithm(str(name), {"eta": 0.1} | hyper)
        else:
            name = type(algorithm).__name__
        settings = run.part(Settings)
        _check(algorithm, settings, clients, flower)
        own = {"eval_every": run.eval_every or 1, "engine": "module"}
        sections = {
            "data": {"dataset": OWN} | raw["data"],
            "model": raw["model"],
            "algorithm": {"name": name} | _hyper(algorithm),
            "run": run.written() | own,
        }
        return cls(clients, algorithm, settings, run, flower, sections)


_KNOWN: Mapping[str, type[Section]] = {
    "data": DataSettings, "model": ModelSettings, "run": SimulationSettings, "flower": FlowerSettings,
}  # fmt: skip


def _sections(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    sections: dict[str, dict[str, Any]] = {"data": {}, "model": {}, "algorithm": {}, "run": {}, "flower": {}}
    for key, value in config.items():
        section, dot, name = key.partition(".")
        if dot and section in sections and value != "":
            sections[section][name] = value
    for section, kind in _KNOWN.items():
        for name in sections[section]:
            if name not in kind.declared:
                raise unknown(f"key of {section}", name, kind.declared)
    if isinstance(widths := sections["model"].get("widths"), str):  # Flower's values are no lists
        parts = [part.strip() for part in widths.split(",") if part.strip()]
        if not all(part.isdecimal() for part in parts):
            raise UsageError(f"model.widths is {shown(widths)}, but must be whole numbers with commas, as in 200,100")
        sections["model"]["widths"] = [int(part) for part in parts]
    return sections


def _hyper(algorithm: AnyAlgorithm) -> dict[str, Any]:
    values = {field.name: getattr(algorithm, field.name) for field in dataclasses.fields(algorithm)}
    return {name: str(value) if isinstance(value, Schedule) else value for name, value in values.items()}


def _read(kind: type[Section], name: str, values: Mapping[str, Any]) -> Any:
    try:
        return kind.read(values)
    except UsageError as error:
        raise UsageError(f"{name}.{error}") from None


def _check(algorithm: AnyAlgorithm, settings: Settings, clients: int, flower: FlowerSettings) -> None:
    cohort, name = settings.cohort or clients, type(algorithm).__name__
    if cohort > clients:
        raise UsageError(f"run.cohort is {cohort}, but there are {clients} clients")
    if settings.lost_replies:
        raise UsageError("run.lost_replies is set, but a real federation loses replies on its own")
    if flower.min_replies > cohort:
        raise UsageError(f"flower.min_replies is {flower.min_replies}, but run.cohort is {cohort}")
    if (flower.min_clients or clients) > clients:
        raise UsageError(f"flower.min_clients is {flower.min_clients}, but there are {clients} clients")
    if algorithm.full_participation and cohort + flower.oversample != clients:
        raise UsageError(f"{name} is defined only for full participation, but cohort is {cohort} of {clients} clients")
    if flower.eval_clients and any(isinstance(each, Privacy) for each in settings.reply_transforms or ()):
        raise UsageError("flower.eval_clients is set, but Privacy does not cover what clients find on their test data")
    if algorithm.full_participation and flower.sampling != "all":
        raise UsageError(f"{name} is defined only for full participation, but flower.sampling is {flower.sampling}")
