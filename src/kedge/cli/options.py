"""The options that several commands share, and the configuration that they make.

Importing them loads no torch: names that tables elsewhere hold are repeated here, and a test compares them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from kedge.errors import UsageError
from kedge.runs.settings import Config

DATA, METHOD, RUN = "Data", "Algorithm", "Run"

KEYS = {
    "dataset": "data.dataset", "data_dir": "data.data_dir", "clients": "data.clients", "partition": "data.partition",
    "alpha": "data.alpha", "model": "model.name", "algorithm": "algorithm.name", "eta": "algorithm.eta",
    "gamma": "algorithm.gamma", "beta": "algorithm.beta", "rounds": "run.rounds", "cohort": "run.cohort",
    "local_steps": "run.local_steps", "batch_size": "run.batch_size", "weight_decay": "run.weight_decay",
    "seed": "run.seed", "eval_every": "run.eval_every", "device": "run.device", "engine": "run.engine",
    "workers": "run.workers", "stall_timeout": "run.stall_timeout", "threads": "run.threads",
    "state_memory": "run.state_memory", "checkpoint_every": "run.checkpoint_every",
}  # fmt: skip


def _option(name: str, panel: str, text: str, default: str | None = None) -> Any:
    """Declare an option of the configuration; its default is the configuration's own, unless told otherwise."""
    section, key = KEYS[name].split(".")
    value = default or getattr(getattr(Config(), section), key, None)
    return typer.Option(help=text if value is None else f"{text} Default: {value}.", rich_help_panel=panel)


ConfigFile = Annotated[Path | None, typer.Argument(help="A configuration; options override it.", show_default=False)]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set any key, as in model.widths=\\[64,64].")
]
Out = Annotated[Path | None, typer.Option(help="A new directory for the results.", show_default=False)]

DATASETS = "digits, synthetic, mnist, fashion-mnist, cifar10, cifar100, quadratics"
MODELS = "logistic, mlp, lenet, resnet18"
PARTITIONS = "iid, dirichlet, dirichlet-by-class, shards, quantity, by-user"
ENGINES = "auto, fused-mlp, fused-cnn, module"

Dataset = Annotated[str | None, _option("dataset", DATA, f"{DATASETS}.")]
DataDir = Annotated[str | None, _option("data_dir", DATA, "Where the files are.", "$KEDGE_DATA or ~/.cache/kedge")]
Model = Annotated[str | None, _option("model", DATA, f"{MODELS}.", "mlp; logistic for synthetic")]
Clients = Annotated[int | None, _option("clients", DATA, "N, the clients.")]
Partition = Annotated[str | None, _option("partition", DATA, f"{PARTITIONS}.", "dirichlet; by-user for synthetic")]
Alpha = Annotated[float | None, _option("alpha", DATA, "Concentration: small is severe heterogeneity.")]
Algorithm = Annotated[str | None, _option("algorithm", METHOD, "An id of `kedge algorithms`, or file.py:Class.")]
Eta = Annotated[float | None, _option("eta", METHOD, "Local learning rate.", "0.1; in compare each has its own")]
Gamma = Annotated[float | None, _option("gamma", METHOD, "Server learning rate.", "eta K")]
Beta = Annotated[float | None, _option("beta", METHOD, "Momentum: the weight of the new gradient.", "the algorithm's")]
Rounds = Annotated[int | None, _option("rounds", RUN, "R, the rounds.")]
Cohort = Annotated[str | None, _option("cohort", RUN, "S, the clients of a round, or 'all'.")]
LocalSteps = Annotated[int | None, _option("local_steps", RUN, "K, the local steps.")]
BatchSize = Annotated[str | None, _option("batch_size", RUN, "Samples of a minibatch, or 'full'.")]
WeightDecay = Annotated[float | None, _option("weight_decay", RUN, "λ; λx is part of every gradient.")]
Seed = Annotated[int | None, _option("seed", RUN, "Of data, model, cohorts and minibatches.")]
EvalEvery = Annotated[
    int | None, _option("eval_every", RUN, "Rounds between evaluations.", "10 to 50 times a run, by cost")
]
Device = Annotated[str | None, _option("device", RUN, "Where torch computes.")]
Workers = Annotated[int | None, _option("workers", RUN, "Processes, of which each has its share of the clients.")]
StallTimeout = Annotated[
    float | None, _option("stall_timeout", RUN, "Seconds until a process that does not answer counts as lost.")
]
Threads = Annotated[int | None, _option("threads", RUN, "Clients to run at once in a process.", "one a core")]
Jobs = Annotated[
    int | None,
    typer.Option(
        help="Runs at once, each in a process on one core; with 1, one after the other on all cores. "
        "Changes no result. Default: one a core.",
        rich_help_panel=RUN,
        show_default=False,
    ),
]
StateMemory = Annotated[
    str | None,
    _option("state_memory", RUN, "Client state to keep in memory, as in 500MB; more goes to a file in the directory."),
]
CheckpointEvery = Annotated[
    str | None, _option("checkpoint_every", RUN, "Rounds between checkpoints, '30s' or 'never'.", "2 % of the time")
]
Engine = Annotated[str | None, _option("engine", RUN, f"{ENGINES}.")]


def configuration(file: Path | None, settings: list[str] | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a file, `--set` and the options, in this order; nothing is checked yet."""
    from kedge.runs.config import load_toml, merged

    changes = [_assignment(text) for text in settings or []]
    changes += [(KEYS[name], value) for name, value in given.items() if name in KEYS and value is not None]
    return merged(load_toml(file) if file is not None else {}, changes)


def checked(file: Path | None, settings: list[str] | None, given: Mapping[str, Any]) -> Config:
    """Return the configuration of one run."""
    from kedge.runs.config import check

    return check(configuration(file, settings, given))


def _assignment(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--set is {text!r}, but must have the form key=value, as in algorithm.eta=0.1")
    from kedge.runs.config import parse_value

    return key.strip(), parse_value(value.strip())


def short_name(algorithm: str) -> str:
    """Return an id as it is, and of ``my_file.py:MyAlgorithm`` the class alone."""
    return algorithm.rpartition(":")[2]
