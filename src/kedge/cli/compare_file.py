"""`compare.toml`: what a comparison is, in its directory. `kedge compare compare.toml` repeats it."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from kedge.errors import UsageError, shown
from kedge.files import write_atomically
from kedge.runs.batch import FREE
from kedge.runs.config import Config, resolved
from kedge.runs.directory import to_toml
from kedge.runs.reader import read_toml

FILE, ABOUT = "compare.toml", "compare"


class About(BaseModel):
    """The section `compare`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    algorithms: list[str] | None = None
    seeds: int | None = None
    target: float | None = None


def read_about(raw: Mapping[str, Any], source: object) -> tuple[About, dict[str, Any]]:
    """Return the section `compare` of a configuration, and the other sections."""
    rest = dict(raw)
    try:
        return About.model_validate(rest.pop(ABOUT, {})), rest
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(map(str, [ABOUT, *first["loc"]]))[:60]
        raise UsageError(f"{source} cannot be read: {key}: {first['msg'].lower()}") from None


def read_there(path: Path) -> tuple[About, dict[str, Any]] | None:
    """Return the comparison in a directory; None if there is none."""
    raw = read_toml(path / FILE)
    if raw is None:
        return None
    for name, section in raw.items():
        if not isinstance(section, dict):
            raise UsageError(f"{path / FILE} cannot be read: {name} is {shown(section)}, but must be a section")
    return read_about(raw, path / FILE)


def write_file(path: Path, chosen: Mapping[str, Config], seeds: int, target: float | None) -> None:
    """Write the comparison: common settings, and the hyper-parameters of every algorithm."""
    sections = {short: resolved(config) for short, config in chosen.items()}
    first = next(iter(sections.values()))
    names = [each["algorithm"]["name"] for each in sections.values()]
    about = {"algorithms": names, "seeds": seeds, "target": target}
    hyper = {
        short: {key: value for key, value in each["algorithm"].items() if key != "name"}
        for short, each in sections.items()
    }
    content = {ABOUT: about} | {name: first[name] for name in ("data", "model", "run")} | hyper
    write_atomically(path / FILE, to_toml(content).encode())


def check_alike(path: Path, there: Config, here: Config) -> None:
    """Refuse to extend the comparison in a directory by runs with other data, models or settings, or fewer rounds."""
    for section in ("data", "model", "run"):
        before, now = (tomllib.loads(to_toml(resolved(each)))[section] for each in (there, here))
        for key in dict.fromkeys([*before, *now]):
            if f"{section}.{key}" not in FREE and before.get(key) != now.get(key):
                was, is_ = (shown(each.get(key)) for each in (before, now))
                raise UsageError(
                    f"the existing comparison is different: {section}.{key} is {was} there, but {is_} here"
                )
    if here.run.rounds < there.run.rounds:
        raise UsageError(
            f"rounds is {here.run.rounds}, but the comparison in {path} has {there.run.rounds}; nothing was overwritten"
        )
