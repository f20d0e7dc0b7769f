"""`kedge`: the commands, and how they end.

Exit 0 on success; 2 with one sentence on bad input; 1 if a run, or every run of a comparison, diverged, or a file could
not be written; 130 on Ctrl-C, 143 on SIGTERM and 129 on SIGHUP.
"""

import os
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, Any

import typer

from kedge.cli import commands, groups
from kedge.cli.console import guard, output, say
from kedge.cli.signals import StoppedError
from kedge.errors import FailedRunError, LostProcessError, RunWarning, UsageError
from kedge.files import WriteError
from kedge.own_code import consent_ends

app = typer.Typer(
    help="Federated learning that does not drift: momentum, control variates and variance reduction on non-IID data.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        output.print(f"kedge {version('kedge')}", highlight=False)
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Handle the options that belong to no command."""


for _command in (
    commands.run, commands.resume, commands.compare, commands.sweep, commands.algorithms, commands.partition,
    commands.diagnose, commands.reproduce, commands.report, commands.watch, commands.export, commands.export_model,
):  # fmt: skip
    app.command()(_command)

_theory = typer.Typer(
    help="What the paper's theory says: rates, and experiments that check them.", no_args_is_help=True
)
for _command in (groups.rates, groups.verify):
    _theory.command()(_command)
app.add_typer(_theory, name="theory")

_flower = typer.Typer(help="The same algorithms on real federations, run by Flower.", no_args_is_help=True)
for _name, _command in (("new", groups.flower_new), ("demo", groups.flower_demo)):
    _flower.command(_name)(_command)
_flower.command("node", context_settings={"ignore_unknown_options": True})(groups.flower_node)
app.add_typer(_flower, name="flower")

# Some versions of typer depend on click and some bring their own; the class is found where this one keeps it.
_ClickException: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


INTERRUPTED = 130


def main() -> None:
    """Run the command line and exit."""
    standard = guard()
    code = execute()
    if standard is not None:
        standard.flush()
        if standard.failure is not None:
            say(f"standard output cannot be written: {standard.failure.strerror}")
            code = code or 1
    sys.exit(code)


def execute(arguments: list[str] | None = None) -> int:
    """Run the command line with these arguments, or the process's own; return the exit code."""
    with warnings.catch_warnings(), consent_ends():
        warnings.simplefilter("always", RunWarning)
        warnings.showwarning = _once()
        return _execute(arguments)


def _once() -> Callable[..., None]:
    """Return what shows a warning, the same text only once: many runs may have the same."""
    said: set[str] = set()

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        text = f"{message}" if category is RunWarning else f"{category.__name__}: {message}"
        if text not in said:
            said.add(text)
            say(text)

    return show


SYNONYMS = {
    "lr": "eta", "learning-rate": "eta", "epochs": "local-epochs", "batch": "batch-size", "optimizer": "local-update",
    "num-clients": "clients",
}  # fmt: skip
"""What other programs call an option, and what kedge does."""


def _explained(error: Any) -> str:
    """Return a mistake on the command line in one sentence."""
    asked = str(getattr(error, "option_name", None) or "").removeprefix("--").replace("_", "-")
    ours = f"--{SYNONYMS.get(asked)}"
    if any(ours in each.opts for each in (error.ctx.command.params if getattr(error, "ctx", None) else ())):
        return f"No such option: --{asked}; kedge calls it {ours}"
    message: str = error.format_message()
    question = " Did you mean "
    if message.count(question) > 1:  # typer and click may both propose the nearest command
        message = message[: message.rindex(question)]
    return message


def _execute(arguments: list[str] | None) -> int:
    try:
        outcome = app(arguments, standalone_mode=False)
    except (UsageError, FailedRunError, WriteError) as error:
        say(error)
        return 2 if isinstance(error, UsageError) else 1
    except OSError as error:  # a path that the user may not enter, or that no system has
        if not isinstance(error.filename, str | bytes):
            raise
        say(f"{os.fsdecode(error.filename)[:300]} cannot be used: {error.strerror or error}")
        return 2
    except StoppedError as stopped:
        say(stopped)
        return stopped.exit_code
    except _ClickException as error:
        message = _explained(error)
        if not message:  # no command at all: the help has been printed
            return 0
        say(message)
        return 2
    except LostProcessError:  # the launcher says which, and restarts all of them
        from kedge.runs.joining import LOST

        return LOST
    except MemoryError:
        say("out of memory; use fewer clients, local steps, opening batches or a smaller batch_size")
        return 1
    except (KeyboardInterrupt, typer.Abort):
        outcome = INTERRUPTED
    except typer.Exit as request:
        outcome = request.exit_code
    if outcome == INTERRUPTED:  # some versions of typer turn Ctrl-C into this number themselves
        say("interrupted; finished work is kept")
    return outcome if isinstance(outcome, int) else 0
