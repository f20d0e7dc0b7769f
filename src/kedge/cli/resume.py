"""`kedge resume`: resume an interrupted run."""

from pathlib import Path

import typer

from kedge.cli import consent, options
from kedge.cli.compare_file import FILE as COMPARISON
from kedge.cli.console import output, say
from kedge.cli.run import play, result_line
from kedge.errors import UsageError
from kedge.runs.config import check, resolved
from kedge.runs.directory import RunDirectory, check_run
from kedge.runs.reader import CONFIG, MODEL, read_config, read_summary
from kedge.runs.rebuild import refuse_missing
from kedge.runs.sweep import FILE as SWEEP
from kedge.runs.toml import merged


def resume(directory: Path, rounds: int | None, given: options.Given, *, trust: bool) -> None:
    """Resume a run."""
    check_run(directory)
    sections = read_config(directory)
    for file, command in ((COMPARISON, "compare"), (SWEEP, "sweep")):
        if sections is None and (directory / file).is_file():
            raise UsageError(
                f"{directory} holds many runs; repeat the `kedge {command}` command with --out {directory} to resume"
            )
    if sections is None:
        raise UsageError(f"{directory} has no {CONFIG}, so it is not a directory of `kedge run`")
    refuse_missing(sections, directory)
    sections = consent.settle(sections, directory / CONFIG, named={}, trust=trust)
    raw = merged(sections, [("run.rounds", rounds)] if rounds is not None else [])
    there, settings = check(raw), check(merged(raw, given.items()))
    run_directory = RunDirectory(directory, resolved(there), resume=True)
    name = options.short_name(there.algorithm.name)
    summary = read_summary(directory)
    if summary is not None and "diverged_in_round" in summary:
        say(f"{name} in {directory} diverged in round {summary['diverged_in_round']}")
        raise typer.Exit(1)
    if summary is not None and rounds is not None and rounds < summary["round"]:
        raise UsageError(f"rounds is {rounds}, but the run in {directory} has already played {summary['round']}")
    if summary is not None and summary["round"] >= there.run.rounds:
        if (directory / MODEL).is_file():
            for line in (
                result_line(name, summary, summary["engine"]),
                f"The run in {directory} is finished; `kedge resume {directory} --rounds N` extends it.",
            ):
                output.print(line, markup=False, highlight=False, soft_wrap=True)
            return
        say(f"{directory / MODEL} is missing; it is rewritten from the last checkpoint")
    play(settings, run_directory, resume=True)
