"""Conduct an experiment: search the grid, run the seeds, and write down the results.

All runs are directories of one batch, so the same call resumes whatever an earlier one left unfinished.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kedge.errors import UsageError
from kedge.files import claimed, make_directory, write_atomically
from kedge.reproduce import claims, results, verdict
from kedge.reproduce.experiment import load
from kedge.reproduce.plan import Case, FinalRun, Hyper, Plan, name_of, slug
from kedge.reproduce.rehearsal import guessing
from kedge.reproduce.results import Measure, Runs
from kedge.reproduce.search import search
from kedge.reproduce.tried import GRID, read_tried, write_tried
from kedge.runs.batch import Event, run_batch
from kedge.runs.config import Config, resolved
from kedge.runs.directory import to_toml
from kedge.runs.reader import StoredRun

Stage = Callable[[str, Mapping[str, Config]], Callable[[Event], None]]
"""Called before a batch with its title and runs; returns what to notify of their progress."""


class UnfinishedError(Exception):
    """The experiment was stopped; the same call resumes it."""


@dataclass(frozen=True)
class Report:
    """The results of an experiment."""

    folder: Path
    verdict: str


def conduct(
    plan: Plan, out: Path, processes: int | None, stage: Stage, stop: Callable[[], bool], command: str
) -> Report:
    """Run an experiment and write its results to ``out / figure / scale``."""
    folder = out / plan.experiment.name / plan.scale
    chances = guessing(plan)
    with claimed(folder):
        return _conduct(plan, folder, out, processes, stage, stop, command, chances)


def _conduct(
    plan: Plan,
    folder: Path,
    out: Path,
    processes: int | None,
    stage: Stage,
    stop: Callable[[], bool],
    command: str,
    chances: results.Chances,
) -> Report:
    def batch(title: str, jobs: dict[str, Config]) -> dict[str, StoredRun]:
        ended = run_batch(jobs, folder / "runs", processes, stage(title, jobs), stop, models=False)
        for name, run in ended.items():
            if run.error is not None:
                raise UsageError(f"{name} of {plan.experiment.name} failed: {run.error}")
        if len(ended) < len(jobs):
            raise UnfinishedError
        return ended

    found = search(plan, batch)
    chosen = found.chosen()
    finished = batch("runs", plan.final_jobs(chosen))
    trials = [FinalRun(case, hyper, seed) for case, hyper in chosen.items() for seed in plan.seeds]
    runs = {trial: finished[name_of("run", *trial)] for trial in trials}
    write_tried(folder / GRID, found)
    return write_report(plan, chosen, runs, folder, out, command, chances)


def write_report(
    plan: Plan,
    chosen: dict[Case, Hyper],
    runs: Runs,
    folder: Path,
    out: Path,
    command: str,
    chances: results.Chances,
) -> Report:
    """Write tables, figures, configurations and the verdict."""
    from kedge.report.lines import named_lines
    from kedge.report.page import REPORT
    from kedge.report.page import write_report as write_page
    from kedge.reproduce.drawing import draw  # matplotlib is slow to load

    summary = folder / "summary.csv"
    results.write_measures(summary, results.measures(runs, chances))
    measured = results.read_measures(summary)  # rounded as in the file, so that later readers find the same
    results.write_curves(folder / "curves.csv", runs)
    draw(plan, results.read_curves(folder / "curves.csv", measured), measured, folder)
    make_directory(folder / "configs")
    for name, text in configurations(plan, chosen).items():
        write_atomically(folder / "configs" / name, text.encode())
    found = claims.findings(plan.experiment, plan.scale, measured, others_at(out, plan.scale))
    lines = named_lines(_by_line(runs))
    write_page(lines, folder / REPORT, f"{plan.title} ({plan.experiment.figure}), {plan.scale} scale", command)
    text = verdict.write(plan, read_tried(folder / GRID), chosen, measured, found, command, chances)
    write_atomically(folder / "verdict.md", text.encode())
    return Report(folder, text)


def _by_line(runs: Runs) -> dict[str, list[StoredRun]]:
    """Return the runs by algorithm, and by panel and protocol if there are several."""
    panels, protocols = ({getattr(trial.case, part) for trial in runs} for part in ("panel", "protocol"))
    found: dict[str, list[StoredRun]] = {}
    for trial, run in runs.items():
        case = trial.case
        parts = [case.line, *([case.panel] * (len(panels) > 1)), *([case.protocol] * (len(protocols) > 1))]
        found.setdefault(", ".join(parts), []).append(run)
    return found


def configurations(plan: Plan, chosen: Mapping[Case, Hyper]) -> dict[str, str]:
    """Return a file for every line, with the configuration of its first seed, wherever its data are."""
    files = {}
    for case, hyper in chosen.items():
        sections = resolved(plan.final(case, hyper, plan.seeds[0]))
        sections["data"].pop("data_dir", None)
        name = "--".join(slug(part) for part in (case.protocol, case.panel, case.line))
        files[f"{name}.toml"] = to_toml(sections)
    return files


def others_at(out: Path, scale: str) -> claims.Look:
    """Return what looks up the results of other figures at a scale; of those that do not have it, at the laptop's."""
    return lambda figure: measures_of(out, figure, scale if scale in load(figure).scales else "laptop")


def measures_of(out: Path, figure: str, scale: str) -> list[Measure] | None:
    """Return the results of a figure at a scale, if it was run."""
    path = out / figure / scale / "summary.csv"
    return results.read_measures(path) if path.is_file() else None
