"""`kedge run`: one algorithm, one federation."""

import signal
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import typer

from kedge.cli import consent, options
from kedge.cli.console import errors, figure, output, say, say_to_all, size
from kedge.cli.progress import progress_bar
from kedge.cli.signals import StoppedError, stopping
from kedge.errors import UnlikeError, UsageError
from kedge.files import make_new_directory
from kedge.runs.config import Config, check, problem_of, resolved, run_config
from kedge.runs.directory import RunDirectory
from kedge.runs.joining import is_follower, is_rank, joined
from kedge.runs.launch import check_workers, launch
from kedge.runs.live import StopWhen, Watch
from kedge.runs.own import short_name
from kedge.runs.reader import Row, read_summary
from kedge.runs.toml import merged

RUNS = Path("runs")
"""Where runs without --out go."""

CLIENTS = ("clients_test", "clients")
"""How the columns begin that are of the clients' own models: on their test sets, or on the data they train on."""

OWN, THEORY = "own", "theory"
"""Where the hyper-parameters of a run come from."""


def run(
    config: Path | None,
    settings_: list[str] | None,
    out: Path | None,
    given: options.Given,
    *,
    source: str,
    trust: bool,
) -> None:
    """Run one algorithm on one federation; ``source`` says where its hyper-parameters come from."""
    raw = consent.configuration(config, settings_, given, trust=trust)
    settings = check(raw if source == OWN else of_theory(raw, source))
    name = options.short_name(settings.algorithm.name)
    if out is None and is_rank():
        raise UsageError("a run of several processes needs --out, so that all of them use the same directory")
    sections = resolved(settings)
    path = out or make_new_directory(RUNS, f"{short_name(settings.data.dataset)}-{name}")
    # After a failure, a launcher restarts its processes with the same command: that means to resume.
    directory = RunDirectory(path, sections, resume=is_rank(), new=out is None)
    if is_rank() and read_summary(path) is not None:
        raise UsageError(f"out is {path}, but that directory holds a finished run; nothing was overwritten")
    play(settings, directory, resume=is_rank())


def of_theory(raw: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return a configuration with the hyper-parameters of the paper's theorem, for constants that are measured."""
    from kedge.cli.diagnose import theory_settings

    if source != THEORY:
        raise UsageError(f"settings is {source!r}, but must be {OWN} or {THEORY}")
    settings = check(raw)
    given = {key for key in raw.get("algorithm", {}) if key not in ("name", "sha256")}
    if given:
        raise UsageError(f"{min(given)} is set, but --settings theory chooses the hyper-parameters itself")
    if settings.run.local_epochs is not None:
        raise UsageError("local_epochs is set, but the theorems are for clients with the same local_steps")
    found = theory_settings(settings, problem_of(settings))
    return merged(
        raw, [("algorithm.name", settings.algorithm.name), *((f"algorithm.{k}", v) for k, v in found.items())]
    )


def play(settings: Config, directory: RunDirectory, *, resume: bool = False) -> None:
    """Run a configuration with its progress on display, in as many processes as it asks for."""
    workers = settings.run.workers
    if workers > 1 and not is_rank():
        with directory.opened():  # if it stays empty, what was created is removed
            check_workers(workers, settings.run.shards)
            directory.write_configuration()
        _launch(settings, directory)
        return
    with joined(settings.run.stall_timeout, say_to_all):
        output.quiet = errors.quiet = is_follower()
        try:
            # Locked before the data is loaded: a second run with the same directory is refused at once.
            with nullcontext() if is_follower() else directory.opened():
                _play(settings, directory, resume=resume)
        except UnlikeError:
            errors.quiet = False  # the mistake may have been made on any machine
            raise


def _launch(settings: Config, directory: RunDirectory) -> None:
    """Start the processes of a run and wait for them."""
    run = settings.run
    here = ["--device", run.device, *(["--threads", str(run.threads)] if run.threads is not None else [])]
    with stopping() as stop:
        code = launch(
            directory.path, directory.checkpoints, run.workers, say,
            options=here, stall_timeout=run.stall_timeout, stop=stop,
        )  # fmt: skip
    if code:
        raise typer.Exit(code if stop.signal is None else 128 + stop.signal)


def _play(settings: Config, directory: RunDirectory, *, resume: bool) -> None:
    problem = problem_of(settings)
    output.print(f"{problem.federation}", highlight=False)
    name, path = options.short_name(settings.algorithm.name), directory.path
    last: Row = {}
    bar = progress_bar()
    with bar if errors.is_terminal else nullcontext():  # before rich 14.3 even a disabled bar ends with an empty line
        task = bar.add_task(name, total=settings.run.rounds)

        def watch(done: int, row: Row | None) -> None:
            nonlocal last
            last = row or last
            accuracy = figure(last.get("test_accuracy"), ".1%")
            bar.update(task, completed=done, description=f"{name}  accuracy {accuracy}")

        with stopping(patient=is_rank()) as stop:
            result = run_config(settings, problem, directory, [Watch(watch), StopWhen(stop)], resume=resume)
    if result.simulation.round < settings.run.rounds:
        way = f"continue with `kedge resume {path}`"
        number = stop.signal or signal.SIGTERM  # another process may have received the signal
        raise StoppedError(f"interrupted after round {result.simulation.round}; {way}", number)
    if not result.history:  # another process has it
        return
    line = result_line(name, result.history[-1], result.simulation.description())
    output.print(line, highlight=False, soft_wrap=True)
    output.print(f"Written to {path}; `kedge run {path / 'config.toml'}` repeats it.", highlight=False, soft_wrap=True)


def result_line(name: str, row: Mapping[str, Any], engine: str) -> str:
    """Return the result of a run in one line."""
    usual = f"test loss {figure(row.get('test_loss'))}, test accuracy {figure(row.get('test_accuracy'), '.2%')}"
    if "test_loss" not in row and (kind := next((kind for kind in CLIENTS if f"{kind}_loss" in row), None)):
        loss, accuracy = (row.get(f"{kind}_{each}") for each in ("loss", "accuracy"))
        usual = f"mean {kind.replace('_', ' ')} loss {figure(loss)}, accuracy {figure(accuracy, '.2%')}"
    elif (kind := next((kind for kind in CLIENTS if f"{kind}_accuracy" in row), None)) is not None:
        own, worst = (figure(row.get(f"{kind}_accuracy{part}"), ".2%") for part in ("", "_worst_decile"))
        usual += f", mean {kind.replace('_', ' ')} accuracy {own} (worst tenth {worst})"
    return (
        f"{name} after {row['round']} round{'s' * (row['round'] != 1)}: {usual}{_more(row)}; "
        f"{size(row['bytes_down'])} down, {size(row['bytes_up'])} up, {row['gradients']:.0f} minibatch gradients, "
        f"{row['seconds']:.1f} s ({engine})"
    )


def _more(row: Mapping[str, Any]) -> str:
    """Return a user's own metrics."""
    own = (name for name in row if name.startswith("test_") and name not in ("test_loss", "test_accuracy"))
    return "".join(f", {name.replace('_', ' ')} {figure(row[name])}" for name in own)
