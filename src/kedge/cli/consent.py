"""Consent to code that a file names: what this command line names may run, anything else needs consent."""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from kedge.cli.console import errors
from kedge.errors import UsageError
from kedge.own_code import Place

Trust = Annotated[
    bool, typer.Option("--trust", help="Run the file.py:Class that a configuration names, without asking.")
]

NAME, SHA256 = "name", "sha256"


def settle(raw: Mapping[str, Any], source: Path | None, *, named: Iterable[Any], trust: bool) -> dict[str, Any]:
    """Return a configuration whose code may run: it is ``named`` by the command line, or the user consents.

    ``source`` is the file that the configuration comes from.
    """
    given = [name for name in named if isinstance(name, str)]
    method = raw.get("algorithm", {})
    if not isinstance(method, dict):  # reported when the configuration is checked
        return dict(raw)
    allow(given, [method.get(NAME)], source, trust=trust)
    if given:  # the checksum is of the file that was named before
        method = {key: value for key, value in method.items() if key != SHA256}
    return dict(raw) | {"algorithm": method}


def allow(named: Iterable[Any], used: Iterable[Any], source: Path | None, *, trust: bool) -> None:
    """Trust the places that are ``named``, and ask about the others that are ``used``."""
    for name in named:
        if isinstance(name, str) and (place := Place.parse(name)) is not None:
            place.trust()
    for name in used:
        if isinstance(name, str) and (place := Place.parse(name)) is not None and not place.trusted:
            if not trust and not _agrees(place, source):
                raise UsageError(
                    f"{source} names {place}, but that file runs only if you trust it: read it, then add --trust"
                )
            place.trust()


def _agrees(place: Place, source: Path | None) -> bool:
    """Ask, if somebody is there to answer."""
    if not (sys.stdin.isatty() and errors.is_terminal):
        return False
    return typer.confirm(f"{source} names {place}, a file that will run with your rights. Run it?", err=True)
