"""`kedge compare`: several algorithms on the same data, cohorts and minibatches."""

import dataclasses
import shlex
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from kedge.algorithms import ALGORITHMS, ALIASES, algorithm_class
from kedge.checks import whole
from kedge.cli import consent, options
from kedge.cli.commands import COMPARED
from kedge.cli.compare_file import FILE, check_alike, read_about, read_there, write_file
from kedge.cli.console import errors, figure, output
from kedge.cli.progress import batch_display
from kedge.cli.run import RUNS
from kedge.cli.signals import Stop, StoppedError, stopping
from kedge.errors import UsageError
from kedge.files import claimed, make_new_directory, refuse_link, write_csv
from kedge.report.comparison import Runs, Summary, default_target, summarise
from kedge.report.lines import named_lines
from kedge.runs.batch import Event, rehearse, run_batch
from kedge.runs.config import Config, check, division, resolved
from kedge.runs.directory import check_place
from kedge.runs.own import places, short_name
from kedge.runs.reader import StoredRun
from kedge.runs.settings import SETTINGS, outside

WIDTH = 160
"""The width of the table where nobody looks at it."""

SEEDS = 1000
"""The most seeds of a comparison."""

PROBLEM = {
    "data": ("dataset", "clients", "partition", "alpha"),
    "run": ("cohort", "local_steps", "local_epochs", "batch_size", "local_update"),
}
"""What decides, besides the model, which eta and beta are good."""

FILES = {FILE, "runs", "summary.csv", "curves.csv", "curves.png", "curves.svg", "report.html"}


def compare(
    raw: dict[str, Any],
    algorithms: str | None,
    seeds: int | None,
    target: float | None,
    jobs: int | None,
    out: Path | None,
    *,
    source: Path | None,
    trust: bool,
) -> None:
    """Compare the algorithms of a configuration that is not checked yet; ``source`` is the file it comes from."""
    about, raw = read_about(raw, source)
    consent.allow([algorithms], [] if algorithms else about.algorithms or [], source, trust=trust)
    algorithms = algorithms or ",".join(about.algorithms or []) or COMPARED
    seeds, target = about.seeds if seeds is None else seeds, about.target if target is None else target
    seeds = whole("seeds", 3 if seeds is None else seeds, 1, SEEDS)
    if target is not None and not 0 < target <= 1:
        raise UsageError(f"target is {target:g}, but must be above 0 and at most 1, as in 0.93")
    if jobs is not None:
        whole("jobs", jobs, 1)
    chosen = _chosen(algorithms, raw)
    borrowed = _borrowed(chosen, raw)
    first = chosen[next(iter(chosen))]
    path = out or make_new_directory(RUNS, f"compare-{short_name(first.data.dataset)}")
    check_place(path)
    with claimed(path, lambda: _check_content(path), new=out is None):
        chosen, seeds = _extended(path, chosen, seeds, trust=trust)
        for settings in chosen.values():
            rehearse(settings)
        write_file(path, chosen, seeds, target)
        with stopping() as stop:
            runs, failures = _run_all(chosen, seeds, path, jobs, stop)
        if runs:
            _report(runs, target, path, first)
        if runs and borrowed and not _is_tuned(first):
            were, them = ("were", "them") if len(borrowed) > 1 else ("was", "it")
            note = f"{' and '.join(borrowed)} {were} tuned for digits, 40 clients, not for this problem"
            errors.print(f"{note}; tune {them} with kedge sweep", soft_wrap=True)
    for name, error in failures.items():
        errors.print(f"kedge: {name} failed: {error}", markup=False, highlight=False, soft_wrap=True)
    ended = [run for own in runs.values() for run in own]
    if stop.signal is not None and len(ended) + len(failures) < len(chosen) * seeds:
        raise StoppedError("interrupted; finished work is kept, and the same command with --out resumes", stop.signal)
    if failures or all(run.diverged is not None for run in ended):
        raise typer.Exit(1)


def _extended(path: Path, chosen: dict[str, Config], seeds: int, *, trust: bool) -> tuple[dict[str, Config], int]:
    """Return what is asked for, plus what the directory already has."""
    there = read_there(path)
    if there is None:
        return chosen, seeds
    about, raw = there
    consent.allow([], [*(about.algorithms or []), *consent.named_in(raw)], path / FILE, trust=trust)
    before = _chosen(",".join(about.algorithms or []), raw)
    check_alike(path, next(iter(before.values())), next(iter(chosen.values())))
    run = next(iter(chosen.values())).run
    kept = {name: config.model_copy(update={"run": run}) for name, config in before.items() if name not in chosen}
    return kept | chosen, max(seeds, about.seeds or 1)


def _check_content(path: Path) -> None:
    """Refuse a directory that holds something other than a comparison."""
    holds = {file.name for file in path.iterdir()}
    if holds and ("runs" not in holds or holds - FILES):
        raise UsageError(f"out is {path}, but that directory is not empty; nothing was overwritten")
    refuse_link(path / "runs")


def _chosen(names: str, raw: dict[str, Any]) -> dict[str, Config]:
    """Return a checked configuration per algorithm."""
    everything = names.strip() == "all"
    ids = list(ALGORITHMS) if everything else [name.strip() for name in names.split(",") if name.strip()]
    if not ids:
        raise UsageError("algorithms is empty, but must name at least one")
    for name, section in raw.items():
        if not isinstance(section, dict):
            if name in {key.partition(".")[2] for key in SETTINGS}:
                raise outside(name, section)
            raise UsageError(f"{name} is {section!r}, but must be a section")
    shorts = [options.short_name(name) for name in ids]
    common = {name: section for name, section in raw.items() if name not in {*ALGORITHMS, *ALIASES, *shorts}}
    shared = {key: value for key, value in common.pop("algorithm", {}).items() if key != "name"}
    for section in raw:
        if section in {*ALGORITHMS, *ALIASES} and section not in shorts:
            raise UsageError(f"--set names {section}, but the comparison has only {', '.join(ids)}")
    known: set[str] = set()
    chosen: dict[str, Config] = {}
    for name, short in zip(ids, shorts, strict=True):
        if short in chosen:
            raise UsageError(f"algorithms names {short} twice, but each name must be unique")
        fields = {field.name for field in dataclasses.fields(algorithm_class(name))}
        known |= fields
        own = tuned().get(ALIASES.get(name, name), {})
        hyper = own | {key: value for key, value in shared.items() if key in fields}
        chosen[short] = check(common | {"algorithm": {"name": name} | hyper | raw.get(short, {})})
    for key in shared:
        if key not in known:
            names = f"nothing in the comparison ({', '.join(ids)})"
            raise UsageError(f"{names} has a hyper-parameter {key!r}; known: {', '.join(sorted(known))}")
    return _participating(chosen) if everything else chosen


def _participating(chosen: dict[str, Config]) -> dict[str, Config]:
    """Leave out, with a note, algorithms that are not defined for a cohort smaller than the federation."""
    run, data = next(iter(chosen.values())).run, next(iter(chosen.values())).data
    if run.cohort in (None, data.clients):
        return chosen
    left_out = [name for name, config in chosen.items() if algorithm_class(config.algorithm.name).full_participation]
    if left_out:
        errors.print(f"Left out, because they need every client in every round: {', '.join(left_out)}", soft_wrap=True)
    return {name: config for name, config in chosen.items() if name not in left_out}


def tuned() -> dict[str, dict[str, float]]:
    """Return the hyper-parameters that the grid on the default problem found."""
    return tomllib.loads((resources.files("kedge.cli") / "tuned.toml").read_text(encoding="utf-8"))


def _borrowed(chosen: dict[str, Config], raw: dict[str, Any]) -> list[str]:
    """Return the hyper-parameters, of any algorithm, whose values are the tuned ones because none were given."""
    found: set[str] = set()
    for short, config in chosen.items():
        name = config.algorithm.name
        found |= {*tuned().get(ALIASES.get(name, name), {})} - {*raw.get("algorithm", {}), *raw.get(short, {})}
    return [name for name in ("eta", "beta") if name in found]


def _is_tuned(config: Config) -> bool:
    """Whether a problem is the one that the hyper-parameters were tuned for, but for rounds, seeds and evaluation."""
    here, there = resolved(config), resolved(check({}))
    return here["model"] == there["model"] and all(
        here[section].get(key) == there[section].get(key) for section, keys in PROBLEM.items() for key in keys
    )


def _run_all(
    chosen: dict[str, Config], seeds: int, path: Path, processes: int | None, stop: Stop
) -> tuple[dict[str, list[StoredRun]], dict[str, str]]:
    """Run every algorithm with every seed; return the runs that ended, by algorithm, and why others failed."""
    first = next(iter(chosen.values())).run.seed
    jobs = {(name, seed): _seeded(chosen[name], seed) for seed in range(first, first + seeds) for name in chosen}
    named = {f"{name}-{seed}": (name, seed) for name, seed in jobs}
    configs = {directory: jobs[job] for directory, job in named.items()}

    def line(event: Event) -> str:
        assert event.ended is not None
        return _line(named[event.name][0], event.ended)

    with batch_display(configs, line) as display:
        ended = run_batch(configs, path / "runs", processes, display.follow, stop)
    runs: dict[str, list[StoredRun]] = {}
    for directory, run in ended.items():
        if run.error is None:
            runs.setdefault(named[directory][0], []).append(run)
    return runs, {name: run.error for name, run in ended.items() if run.error is not None}


def _seeded(config: Config, seed: int) -> Config:
    return config.model_copy(update={"run": config.run.model_copy(update={"seed": seed})})


def _line(name: str, run: StoredRun) -> str:
    said = f"{name}, seed {run.seed}:"
    if run.error is not None:
        return f"{said} failed"
    if run.last is None:
        return f"{said} diverged in round {run.diverged}"
    return f"{said} accuracy {figure(run.last.get('test_accuracy'), '.1%')} ({run.last['seconds']:.1f} s)"


def _report(runs: Runs, target: float | None, path: Path, config: Config) -> None:
    from kedge.report.figures import draw_comparison  # matplotlib is slow to load
    from kedge.report.page import REPORT, write_report

    target = target if target is not None else default_target(runs)
    summaries = summarise(runs, target)
    write_csv(path / "summary.csv", [summary.row() for summary in summaries])
    ended = [(name, run) for name, own in runs.items() for run in own]
    curves = [{"algorithm": name, "seed": run.seed, **row} for name, run in ended for row in run.rows]
    write_csv(path / "curves.csv", curves)
    title = _title(config)
    files = ["summary.csv", "curves.csv", "runs/"]
    if any(run.diverged is None for _, run in ended):
        files = [drawn.name for drawn in draw_comparison(runs, path / "curves", title)] + files
    write_report(named_lines(runs), path / REPORT, title, f"kedge report {shlex.quote(str(path))}")
    files.insert(0, REPORT)
    wide = output if output.is_terminal else Console(markup=False, highlight=False, emoji=False, width=WIDTH)
    wide.print(_table(summaries, target, title))
    output.print(f"Written to {path}: {', '.join(files)}", highlight=False, soft_wrap=True)


def _title(config: Config) -> str:
    data, run = config.data, config.run
    cohort = run.cohort or "all"
    clients = "" if places(data.dataset) else f"{data.clients} clients, "
    return f"{short_name(data.dataset)}: {clients}{cohort} per round, {division(config)}, K = {run.local_steps}"


def _table(summaries: list[Summary], target: float | None, title: str) -> Table:
    table = Table(title=title, box=None, pad_edge=False, title_justify="left", caption_justify="left")
    seeds = max(s.seeds for s in summaries)
    table.caption = "one seed" if seeds == 1 else f"means over {seeds} seeds; ± is the standard deviation over them"
    table.add_column("algorithm", no_wrap=True)
    for name in ("eta", "beta"):
        table.add_column(name, justify="right")
    goal = "target" if target is None else f"{target:.0%}"
    own = [name.removeprefix("test_") for name in summaries[0].own]
    for name in ("accuracy", *own, "best", "loss", f"rounds to {goal}", f"MB to {goal}", "grads", "s"):
        table.add_column(name, justify="right", no_wrap=name == "accuracy")
    for s in summaries:
        spread = "" if s.final_accuracy_std is None else f" ± {100 * s.final_accuracy_std:.1f}"
        accuracy = figure(s.final_accuracy, ".1%") + spread
        if s.diverged:
            accuracy = f"{s.diverged} of {s.seeds} diverged"
        table.add_row(
            s.algorithm, _short(s.eta), _short(s.beta), accuracy, *map(_short, s.own.values()),
            figure(s.best_accuracy, ".1%"),
            figure(s.final_loss, ".3g"), _rounds(s.rounds_to_target), figure(s.megabytes_to_target, ".1f"),
            figure(s.gradients, ".0f"), figure(s.seconds, ".1f"),
        )  # fmt: skip
    return table


def _rounds(mean: float | None) -> str:
    """Format a mean of rounds; one that is not whole has a decimal, so that no half is rounded away."""
    return figure(mean, ".0f" if mean is None or mean.is_integer() else ".1f")


def _short(value: object) -> str:
    return "-" if value is None else f"{value:.3g}" if isinstance(value, int | float) else str(value)
