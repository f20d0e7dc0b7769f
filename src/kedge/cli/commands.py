"""What each command takes. Its code is imported when it is called: help and wrong options need no torch."""

from pathlib import Path
from typing import Annotated

import typer

from kedge.cli import consent, options

COMPARED = "fedavg,fedavg-m,fedavg-m-vr,scaffold,scaffold-m,scaffold-m-vr"
"""What is compared by default."""

SWEEP = "Sweep"

Grid = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUES",
        help="Values of a key, as in algorithm.eta=0.01,0.1; give it once per key. "
        "With --search optuna, also a range, as in algorithm.eta=0.001..1:log.",
        rich_help_panel=SWEEP,
    ),
]
Seeds = Annotated[int, typer.Option(help="Seeds per point, starting at --seed.", rich_help_panel=SWEEP)]
Metric = Annotated[
    str,
    typer.Option(
        help="What decides at the end of the runs: test_accuracy (higher is better) or test_loss (lower is better).",
        rich_help_panel=SWEEP,
    ),
]
Halving = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Successive halving: all points start with few rounds; after each rung the best 1/N continue with N times "
        "the rounds, up to --rounds, and the others stop.",
        rich_help_panel=SWEEP,
    ),
]
Search = Annotated[
    str,
    typer.Option(
        help="grid: every combination. optuna: the points it proposes, after pip install 'kedge\\[optuna]'.",
        rich_help_panel=SWEEP,
    ),
]
Trials = Annotated[int | None, typer.Option(help="Points that optuna tries. Default: 50.", rich_help_panel=SWEEP)]
PROCESSES = ("run.workers", "run.threads", "run.stall_timeout")
"""How one run is spread over processes and threads; with many runs, each has one of either."""


@options.takes("algorithm", "data", "model", "run")
def run(
    given: options.Given,
    config: options.ConfigFile = None,
    set_: options.Set = None,
    settings: Annotated[
        str,
        typer.Option(
            help="own: the hyper-parameters that you give. theory: those of the paper's theorem for measured constants."
        ),
    ] = "own",
    out: options.Out = None,
    trust: consent.Trust = False,
) -> None:
    """Run one algorithm on one federation.

    Without options: SCAFFOLD-M on scikit-learn's digits, 40 clients with very unequal labels, 4 of them per round.
    """
    from kedge.cli.run import run

    run(config, set_, out, given, source=settings, trust=trust)


@options.takes("run.device", *PROCESSES, defaults=False)
def resume(
    given: options.Given,
    directory: Annotated[Path, typer.Argument(help="The directory of a run.", show_default=False)],
    rounds: Annotated[int | None, typer.Option(help="Play this many rounds in total.", show_default=False)] = None,
    trust: consent.Trust = False,
) -> None:
    """Resume an interrupted run: the result is that of an uninterrupted one, to the bit.

    If the run is finished, print its result; --rounds extends it.
    """
    from kedge.cli.resume import resume

    resume(directory, rounds, given, trust=trust)


@options.takes(
    "algorithm", "data", "model", "run", without=["algorithm.name", *PROCESSES],
    starts={"algorithm.eta": "each algorithm's own", "algorithm.beta": "each algorithm's own"},
)  # fmt: skip
def compare(
    given: options.Given,
    config: options.ConfigFile = None,
    algorithms: Annotated[
        str | None, typer.Option(help=f"Ids separated by commas, or 'all'. Default: {COMPARED}.", show_default=False)
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="How many seeds, starting at --seed. Default: 3.", show_default=False)
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(help="Target for the rounds and MB columns. [95 % of the best]", show_default=False),
    ] = None,
    jobs: options.Jobs = None,
    set_: options.Set = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The directory: a new one, or that of a comparison to extend.", show_default=False),
    ] = None,
    trust: consent.Trust = False,
) -> None:
    """Compare algorithms over several seeds on the same data, cohorts and minibatches.

    Each algorithm has its own eta and beta, found by a grid search on the default problem (experiments/digits_grid.py).
    For another problem, set your own with --eta and --beta for all, or --set scaffold-m.eta=0.2 for one.
    The directory holds compare.toml, which repeats the comparison. More algorithms or seeds extend an existing one.
    """
    from kedge.cli.compare import compare

    raw = consent.configuration(config, set_, given, trust=trust)
    compare(raw, algorithms, seeds, target, jobs, out, source=config, trust=trust)


@options.takes("algorithm", "data", "model", "run", without=PROCESSES)
def sweep(
    given: options.Given,
    config: options.ConfigFile = None,
    grid: Grid = None,
    seeds: Seeds = 3,
    metric: Metric = "test_accuracy",
    halving: Halving = None,
    search: Search = "grid",
    trials: Trials = None,
    jobs: options.Jobs = None,
    set_: options.Set = None,
    out: Annotated[
        Path | None, typer.Option(help="The directory: a new one, or that of a sweep to resume.", show_default=False)
    ] = None,
    trust: consent.Trust = False,
) -> None:
    """Try many settings, several runs at once, and report which is best.

    Every run has its own directory, DIR/runs/POINT-seedK. The same command with --out DIR resumes an interrupted sweep:
    finished runs are not repeated, and the others resume from their checkpoints. More values or seeds extend the sweep.
    """
    from kedge.cli.sweep import SweepOptions, sweep

    sweep(config, set_, out, jobs, given, SweepOptions(grid or [], seeds, metric, halving, search, trials), trust=trust)


def algorithms(
    name: Annotated[
        str | None, typer.Argument(help="The same as --detail NAME.", metavar="[NAME]", show_default=False)
    ] = None,
    detail: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Print everything about one: rule, rate, limit, hyper-parameters, source."),
    ] = None,
) -> None:
    """List the algorithms with what they send, compute and keep.

    The numbers come from running the rules, per client of the cohort and round with K local steps.
    """
    from kedge.cli.algorithms import algorithms

    algorithms(detail or name)


@options.takes("data", "run.seed", without=["data.dim", "data.heterogeneity", "data.sigma"])
def partition(
    given: options.Given,
    config: options.ConfigFile = None,
    set_: options.Set = None,
    out: Annotated[
        Path | None, typer.Option(help="Draw clients x labels to this file, as PNG and SVG.", show_default=False)
    ] = None,
    trust: consent.Trust = False,
) -> None:
    """Show how a data set is divided: sizes, label entropy, and how far apart the clients are."""
    from kedge.cli.partition import partition as show
    from kedge.runs.config import check

    show(check(consent.configuration(config, set_, given, trust=trust)), out)


@options.takes(
    "data", "model", "run.rounds", "run.cohort", "run.local_steps", "run.batch_size", "run.weight_decay", "run.weights",
    "run.seed",
)  # fmt: skip
def diagnose(
    given: options.Given,
    config: options.ConfigFile = None,
    set_: options.Set = None,
    trial: Annotated[
        bool, typer.Option("--trial/--no-trial", help="Try several multiples of the start value of eta for 15 rounds.")
    ] = True,
    trust: consent.Trust = False,
) -> None:
    """Measure a problem: is drift, noise or client sampling the problem, and which algorithm fits?

    It measures the constants of the paper's theorems on the clients' data, says what they mean, recommends an
    algorithm with start values of eta and beta, and prints a `kedge compare` command to check that.
    """
    from kedge.cli.diagnose import diagnose

    diagnose(config, set_, given, trial=trial, trust=trust)


@options.takes("run.device", "data.data_dir")
def reproduce(
    given: options.Given,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[FIGURE]",
            help="A figure, 'all', or your own experiment, a file my-study.toml.",
            show_default=False,
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            help="smoke (seconds), laptop (all in about eight hours), overnight (ResNet-18, a night) or paper."
        ),
    ] = "smoke",
    out: Annotated[Path, typer.Option(help="Results go to OUT/FIGURE/SCALE.")] = Path("experiments/results"),
    jobs: options.Jobs = None,
    list_: Annotated[bool, typer.Option("--list", help="Show the figures and what they cost.")] = False,
    trust: consent.Trust = False,
) -> None:
    """Repeat an experiment of the paper, or your own: search the grids, run the seeds, draw, judge the claims.

    After an interruption, the same command resumes. docs/reproduce.md says how to write your own experiment.
    """
    from kedge.cli.reproduce import reproduce

    reproduce(name, scale, out, jobs, given.get("run.device"), given.get("data.data_dir"), list_=list_, trust=trust)


Runs = Annotated[
    list[Path],
    typer.Argument(metavar="RUN...", help="Directories of runs, or folders with runs in them.", show_default=False),
]


def report(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="The page, an HTML file.")] = Path("report.html"),
    title: Annotated[
        str | None, typer.Option(help="The title of the page. Default: what the runs are about.", show_default=False)
    ] = None,
) -> None:
    """Write a page about runs: curves, results, data and settings, in one file that opens anywhere.

    Runs that differ only in their seed become one line, with a band. Nothing in the runs is changed or run.
    """
    from kedge.cli.report import report

    report(runs, out, title)


def watch(
    folder: Annotated[Path, typer.Argument(help="A folder of runs, or one run.", show_default=False)],
    terminal: Annotated[bool, typer.Option("--terminal", help="Show a table here instead of a page.")] = False,
    port: Annotated[int, typer.Option(help="The port of the page; 0 takes a free one.", min=0, max=65535)] = 0,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Follow runs while they compute: the page of `kedge report`, live, until Ctrl-C.

    The page is for this machine only, and its address contains a secret. Nothing is written.
    """
    from kedge.cli.watch import watch

    watch(folder, port, terminal=terminal, open_=open_)


def export(
    runs: Runs,
    format_: Annotated[
        str, typer.Option("--format", help="csv or parquet (every row), or latex (the results).")
    ] = "csv",
    out: Annotated[Path | None, typer.Option(help="A new file. Default: standard output.", show_default=False)] = None,
    target: Annotated[
        float | None, typer.Option(help="Target of the LaTeX table. [95 % of the best]", show_default=False)
    ] = None,
) -> None:
    """Write runs as a table for other programs: CSV, Parquet, or LaTeX with booktabs."""
    from kedge.cli.export import export

    export(runs, format_, out, target)


def export_model(
    run: Annotated[Path, typer.Argument(help="The directory of a finished run.", show_default=False)],
    format_: Annotated[str, typer.Option("--format", help="safetensors, torch-export or onnx.")] = "safetensors",
    out: Annotated[
        Path | None,
        typer.Option(help="A new file. Default: model.safetensors, model.pt2 or model.onnx.", show_default=False),
    ] = None,
    trust: consent.Trust = False,
) -> None:
    """Write the model of a run for other programs.

    For torch-export and onnx, the model is built again from the run's configuration, and the number of samples is free.
    """
    from kedge.cli.export import export_model

    export_model(run, format_, out, trust=trust)
