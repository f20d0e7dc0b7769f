"""The options that several commands share, and the configuration that they make."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from kedge.errors import UsageError
from kedge.runs.config import Config, check, load_toml, merged, parse_value

DATA, METHOD, RUN = "Data", "Algorithm", "Run"

ConfigFile = Annotated[Path | None, typer.Argument(help="A configuration; options override it.", show_default=False)]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set any key, as in model.widths=[64,64].")
]
Dataset = Annotated[
    str | None, typer.Option(help="digits, synthetic, quadratics, mnist, ... [digits]", rich_help_panel=DATA)
]
DataDir = Annotated[
    str | None, typer.Option(help="Where the files are. [$KEDGE_DATA or ~/.cache/kedge]", rich_help_panel=DATA)
]
Model = Annotated[str | None, typer.Option(help="logistic, mlp, lenet or resnet18. [mlp]", rich_help_panel=DATA)]
Clients = Annotated[int | None, typer.Option(help="N, the clients. [40]", rich_help_panel=DATA)]
Partition = Annotated[
    str | None,
    typer.Option(
        help="iid, dirichlet, dirichlet-by-class, shards, quantity or by-user. [dirichlet]", rich_help_panel=DATA
    ),
]
Alpha = Annotated[
    float | None, typer.Option(help="Concentration; small is severe heterogeneity. [0.1]", rich_help_panel=DATA)
]
Algorithm = Annotated[
    str | None,
    typer.Option(help="An id of `kedge algorithms`, or your_file.py:YourClass. [scaffold-m]", rich_help_panel=METHOD),
]
Eta = Annotated[float | None, typer.Option(help="Local learning rate.", rich_help_panel=METHOD)]
Gamma = Annotated[float | None, typer.Option(help="Server learning rate. [eta K]", rich_help_panel=METHOD)]
Beta = Annotated[
    float | None, typer.Option(help="Momentum: the weight of the new gradient. [0.1]", rich_help_panel=METHOD)
]
Rounds = Annotated[int | None, typer.Option(help="R, the rounds. [100]", rich_help_panel=RUN)]
Cohort = Annotated[str | None, typer.Option(help="S, the clients of a round, or 'all'. [4]", rich_help_panel=RUN)]
LocalSteps = Annotated[int | None, typer.Option(help="K, the local steps. [16]", rich_help_panel=RUN)]
BatchSize = Annotated[str | None, typer.Option(help="Samples of a minibatch, or 'full'. [16]", rich_help_panel=RUN)]
WeightDecay = Annotated[float | None, typer.Option(help="λ; λx is part of every gradient. [0]", rich_help_panel=RUN)]
Seed = Annotated[int | None, typer.Option(help="Of data, model, cohorts and minibatches. [0]", rich_help_panel=RUN)]
EvalEvery = Annotated[int | None, typer.Option(help="Rounds between evaluations. [rounds / 50]", rich_help_panel=RUN)]
Device = Annotated[str | None, typer.Option(help="Where torch computes. [cpu]", rich_help_panel=RUN)]
Engine = Annotated[str | None, typer.Option(help="auto, module or fused-mlp. [auto]", rich_help_panel=RUN)]
Out = Annotated[Path | None, typer.Option(help="A new directory for the results.", show_default=False)]

KEYS = {
    "dataset": "data.dataset", "data_dir": "data.data_dir", "clients": "data.clients", "partition": "data.partition",
    "alpha": "data.alpha", "model": "model.name", "algorithm": "algorithm.name", "eta": "algorithm.eta",
    "gamma": "algorithm.gamma", "beta": "algorithm.beta", "rounds": "run.rounds", "cohort": "run.cohort",
    "local_steps": "run.local_steps", "batch_size": "run.batch_size", "weight_decay": "run.weight_decay",
    "seed": "run.seed", "eval_every": "run.eval_every", "device": "run.device", "engine": "run.engine",
}  # fmt: skip


def configuration(file: Path | None, settings: list[str] | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a file, `--set` and the options, in this order; nothing is checked yet."""
    changes = [_assignment(text) for text in settings or []]
    changes += [(KEYS[name], value) for name, value in given.items() if name in KEYS and value is not None]
    return merged(load_toml(file) if file is not None else {}, changes)


def checked(file: Path | None, settings: list[str] | None, given: Mapping[str, Any]) -> Config:
    """Return the configuration of one run."""
    return check(configuration(file, settings, given))


def _assignment(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--set is {text!r}, but must have the form key=value, as in algorithm.eta=0.1")
    return key.strip(), parse_value(value.strip())


def short_name(algorithm: str) -> str:
    """Return an id as it is, and of ``my_file.py:MyAlgorithm`` the class alone."""
    return algorithm.rpartition(":")[2]


def new_directory(stem: str) -> Path:
    """Return the first of runs/STEM-1, runs/STEM-2, ... that does not exist."""
    number = 1
    while (path := Path("runs") / f"{stem}-{number}").exists():
        number += 1
    return path
