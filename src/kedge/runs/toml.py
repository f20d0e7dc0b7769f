"""A configuration as text: TOML read into sections, and dotted keys set in them. Importing this does not load torch."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kedge.errors import UsageError, shown


def load_toml(path: Path) -> dict[str, Any]:
    """Read a configuration file."""
    try:
        content = path.read_bytes().decode()
    except OSError as error:
        raise UsageError(f"the configuration {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the configuration {path} is not TOML: {error}") from error
    try:
        return _toml(content)
    except ValueError as error:
        raise UsageError(f"the configuration {path} is not TOML: {error}") from error


def parse_value(text: str) -> Any:
    """Read a value as TOML would; what is not TOML is a string."""
    try:
        return _toml(f"value = {text}")["value"]
    except ValueError:
        return text


def _toml(text: str) -> dict[str, Any]:
    """Read TOML; what cannot be read is a ValueError, whatever the reason."""
    try:
        content = tomllib.loads(text)
        check_values(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return content


def check_values(values: Mapping[str, Any] | list[Any], place: str = "") -> None:
    """Refuse, wherever they stand, whole numbers of more than the 64 bits that TOML promises, and text that it has not.

    Names of files may be any bytes but 0; what is written to `config.toml` may not.
    """
    for key, value in values.items() if isinstance(values, Mapping) else ((place, value) for value in values):
        name = f"{place}.{key}" if place and isinstance(values, Mapping) else key
        if not _is_text(key):
            raise UsageError(f"{shown(name)} is the name of a setting, but must be UTF-8 and without zeros")
        if isinstance(value, int) and value.bit_length() > 63:
            raise UsageError(f"{name} is {shown(value)}, but a whole number has at most 63 bits")
        if isinstance(value, str) and not _is_text(value):
            raise UsageError(f"{name} is {shown(value)}, but text in a configuration must be UTF-8 and without zeros")
        if isinstance(value, Mapping | list):
            check_values(value, name)


def _is_text(text: str) -> bool:
    return not any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in text)


def merged(base: Mapping[str, Any], changes: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return ``base`` with dotted keys set: ``("algorithm.eta", 0.1)``."""
    result = {name: dict(section) if isinstance(section, dict) else section for name, section in base.items()}
    for key, value in changes:
        section, dot, name = key.partition(".")
        if not dot or not name:
            raise UsageError(f"the key {key!r} must have the form section.name, as in algorithm.eta")
        if not isinstance(result.setdefault(section, {}), dict):
            raise UsageError(f"{section} is {shown(result[section])}, but must be a section")
        result[section][name] = value
    return result
