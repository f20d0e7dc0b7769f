"""Consent to code that a file names: what this command line names may run, anything else needs consent."""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from kedge.cli import options
from kedge.cli.console import errors
from kedge.errors import UsageError
from kedge.own_code import PLACES, CodePlace

Trust = Annotated[
    bool, typer.Option("--trust", help="Run your own code that a configuration names (file.py:Name), without asking.")
]


def configuration(
    config: Path | None, settings: list[str] | None, given: options.Given, *, trust: bool, more: Iterable[Any] = ()
) -> dict[str, Any]:
    """Return the configuration that a command line makes, with code that may run."""
    named = options.configuration(None, settings, given)
    raw = options.configuration(config, settings, given)
    return settle(raw, config, named=named, trust=trust, more=more)


def settle(
    raw: Mapping[str, Any], source: Path | None, *, named: Mapping[str, Any], trust: bool, more: Iterable[Any] = ()
) -> dict[str, Any]:
    """Return a configuration whose code may run: the command line names it, or the user consents.

    ``source`` is the file that the configuration comes from, ``named`` what the command line says of a configuration,
    and ``more`` what else it names.
    """
    allow([*named_in(named), *more], named_in(raw), source, trust=trust)
    settled = dict(raw)
    for place, key in PLACES.items():
        section, _, name = place.partition(".")
        values, given = settled.get(section), named.get(section)
        if isinstance(values, dict) and isinstance(given, dict) and isinstance(given.get(name), str):
            # The checksum is of the file that was named before.
            settled[section] = {own: value for own, value in values.items() if f"{section}.{own}" != key}
    return settled


def named_in(raw: Mapping[str, Any]) -> list[Any]:
    """Return all that the settings of a configuration name; what is not a section is reported when it is checked."""
    pairs = (key.split(".") for key in PLACES)
    return [raw[section].get(name) for section, name in pairs if isinstance(raw.get(section), Mapping)]


def allow(named: Iterable[Any], used: Iterable[Any], source: Path | None, *, trust: bool) -> None:
    """Trust the places that are ``named``, and ask about the others that are ``used``."""
    from kedge.runs.own import places

    for place in (place for name in named for place in places(name)):
        place.trust()
    for place in (place for name in used for place in places(name)):
        if place.trusted:
            continue
        if not trust and not _agrees(place, source):
            raise UsageError(
                f"{source} names {place}, but that file runs only if you trust it: read it, then add --trust"
            )
        place.trust()


def _agrees(place: CodePlace, source: Path | None) -> bool:
    """Ask, if there is a terminal to answer from."""
    if not (sys.stdin.isatty() and errors.is_terminal):
        return False
    return typer.confirm(f"{source} names {place}, a file that will run with your rights. Run it?", err=True)
