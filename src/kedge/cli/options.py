"""The options that commands share, derived from the declared settings, and the configuration they make.

Importing them does not load torch.
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer

from kedge.errors import UsageError, shown
from kedge.runs.settings import SETTINGS, Config, is_complete
from kedge.runs.toml import load_toml, merged, parse_value
from kedge.schedules import Schedule
from kedge.settings import Setting

HYPER = {
    "algorithm.beta": ("Momentum: the weight of the new gradient.", "the algorithm's"),
    "algorithm.gamma": ("Server learning rate.", "eta K"),
}
"""Hyper-parameters that many algorithms share, and their defaults in words: the algorithms declare them."""

FILES = ("config.toml", "compare.toml")
"""Configurations in the directory of a run or a comparison."""

Given = Mapping[str, Any]
"""What the options of a command line set, by key, as in run.rounds."""

ConfigFile = Annotated[Path | None, typer.Argument(help="A configuration; options override it.", show_default=False)]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set any key, as in algorithm.mu=0.1.")
]
Out = Annotated[Path | None, typer.Option(help="A new directory for the results.", show_default=False)]
Jobs = Annotated[
    int | None,
    typer.Option(
        help="Runs at once, each in a process on one core; with 1, one after another on all cores. "
        "Does not change the result. Default: one per core.",
        rich_help_panel="Run",
        show_default=False,
    ),
]


def option_name(key: str) -> str:
    """Return the name of the option that sets a key; "" if there is none."""
    return SETTINGS[key].option or "" if key in SETTINGS else key.partition(".")[2]


def takes(
    *what: str, without: Collection[str] = (), defaults: bool = True, starts: Mapping[str, str] = MappingProxyType({})
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for every setting of some sections or of some keys, but ``without`` others.

    The command's first parameter gets those that were given. With ``defaults``, their help states the default, which
    ``starts`` words differently for some.
    """
    known = [*SETTINGS, *HYPER]
    keys = [key for each in what for key in known if key == each or key.startswith(f"{each}.")]
    named = {option_name(key): key for key in keys if option_name(key) and key not in without}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        _, *own = inspect.signature(command, eval_str=True).parameters.values()
        derived = [_parameter(name, key, starts, defaults=defaults) for name, key in named.items()]

        @wraps(command)
        def taking(**values: Any) -> None:
            options = {key: values.pop(name) for name, key in named.items()}
            given = {key: value for key, value in options.items() if value is not None}
            Config.read(configuration(None, None, given))  # a wrong value is answered before torch is loaded
            command(given, **values)

        parameters = [*own, *derived]
        taking.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        taking.__annotations__ = {each.name: each.annotation for each in parameters}
        return taking

    return decorate


def _parameter(name: str, key: str, starts: Mapping[str, str], *, defaults: bool) -> inspect.Parameter:
    if key in SETTINGS:
        declared = SETTINGS[key]
        kind, panel, text, start = _type(declared), declared.panel, declared.help(), declared.start_text
    else:
        kind, panel, (text, start) = str, SETTINGS["algorithm.name"].panel, HYPER[key]
    start = starts.get(key, start)
    text = f"{text} Default: {start}." if start and defaults else text
    option = typer.Option(help=text.replace("[", "\\["), rich_help_panel=panel)
    annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _type(declared: Setting) -> Any:
    """Return the type of an option: text, read as TOML, if the setting may have several types."""
    plain = len(declared.kinds) == 1 and declared.word is None and declared.kinds[0] in (int, float, bool)
    return declared.kinds[0] if plain else str


def configuration(file: Path | None, settings: list[str] | None, given: Given) -> dict[str, Any]:
    """Merge a file, `--set` and the options, in this order; nothing is checked yet."""
    if file is not None and file.is_dir():
        inside = next((file / name for name in FILES if (file / name).is_file()), None)
        said = f"did you mean {inside}?" if inside else "it must be a file"
        raise UsageError(f"the configuration {file} is a directory; {said}")
    changes = [_assignment(text) for text in settings or []]
    changes += [(key, _read(key, value)) for key, value in given.items()]
    there = load_toml(file) if file is not None else {}
    result = merged(there, changes)
    changed = {key for key, _ in changes}
    run = result.get("run")
    if not isinstance(run, dict) or not {"local_steps", "local_epochs"} <= set(run):
        return result
    # Passes replace the steps of a file; and the complete configuration that a run writes has both.
    if "run.local_steps" in changed or not ("run.local_epochs" in changed or is_complete(there["run"])):
        both = " and ".join(f"{name} is {shown(run[name])}" for name in ("local_steps", "local_epochs"))
        raise UsageError(f"{both}, but only one of them can be given")
    return result


def _read(key: str, value: Any) -> Any:
    kinds = SETTINGS[key].kinds if key in SETTINGS else (float, Schedule)
    if not isinstance(value, str) or str in kinds or not {int, list[int], Schedule} & set(kinds):
        return value
    return parse_value(f"[{value}]" if list[int] in kinds and not value.startswith("[") else value)


def _assignment(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--set is {text!r}, but must have the form key=value, as in algorithm.eta=0.1")
    return key.strip(), parse_value(value.strip())


def short_name(algorithm: str) -> str:
    """Return an id as it is, and only the class of ``my_file.py:MyAlgorithm``."""
    return algorithm.rpartition(":")[2]
