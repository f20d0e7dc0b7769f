"""The settings of a run: four sections of a TOML file. Importing them does not load torch.

Names from tables elsewhere are repeated here, and a test compares them.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from kedge.checks import byte_size
from kedge.errors import UsageError, hint, shown, unknown
from kedge.runs.checkpoint_timer import Interval
from kedge.schedules import Schedule
from kedge.settings import Section, Setting, Settings, setting

DATASETS = "digits, synthetic, mnist, fashion-mnist, cifar10, cifar100, quadratics"
MODELS = "logistic, mlp, lenet, resnet18"
PARTITIONS = "iid, dirichlet, dirichlet-by-class, shards, quantity, by-user"
ENGINES = "auto, fused-mlp, fused-cnn, module"

PROCESSES = 1024
"""The most processes, and the most threads of one."""


class DataSettings(Section):
    """Whose data, and how it is divided."""

    panel = "Data"

    model_config = ConfigDict(extra="allow", frozen=True)
    own = "dataset"

    dataset: str = setting("digits", f"{DATASETS}; your own data.npz, or file.py:function.")
    data_dir: str | None = setting(
        None, "The directory of the data files.", default_text="$KEDGE_DATA or ~/.cache/kedge", free=True
    )
    clients: int = setting(40, "N, the number of clients.", at_least=1)
    partition: str | None = setting(None, f"{PARTITIONS}.", default_text="dirichlet; by-user for synthetic")
    alpha: float = setting(0.1, "Concentration of the Dirichlet draw: small makes clients very unequal.", above=0)
    shards_per_client: int = setting(2, "Shards per client, for the partition shards.", at_least=1)
    holdout: float = setting(
        0.0, "The share of the training samples to evaluate on, instead of the test set.", at_least=0, below=1
    )
    test_samples: int | None = setting(None, "Samples to evaluate on.", at_least=1, default_text="all")
    client_tests: float | None = setting(
        None, "The share of every client's samples that becomes its own test set; see eval_clients.",
        above=0, below=1, default_text="none",
    )  # fmt: skip
    dim: int = setting(20, "For quadratics: the number of parameters.", at_least=1)
    heterogeneity: str = setting("mild", "For quadratics: how the clients differ (mild, shared or large).")
    sigma: float = setting(0.0, "For quadratics: the noise of a sample's gradient.", at_least=0)
    sha256: str | None = setting(None, "SHA-256 of the source, if the data set is file.py:function.", option="")


class ModelSettings(Section):
    """What is trained, and by which loss. A setting that a model does not know is refused."""

    panel = "Model"

    model_config = ConfigDict(extra="allow", frozen=True)
    own = "name"

    name: str | None = setting(
        None, f"{MODELS}, or your own file.py:function.", option="model", default_text="mlp; logistic for synthetic"
    )
    loss: str | None = setting(
        None, "cross-entropy, mse, bce, or your own file.py:function.", default_text="cross-entropy"
    )
    widths: list[int] | None = setting(None, "For mlp: the units of each hidden layer.", default_text="the model's")
    dropout: float | None = setting(
        None, "For mlp: the share of units to drop.", at_least=0, below=1, default_text="the model's"
    )
    norm: Literal["group", "batch"] | None = setting(
        None, "For resnet18: GroupNorm or BatchNorm.", default_text="the model's"
    )
    width: int | None = setting(
        None, "For resnet18: the channels of its first stage.", at_least=1, at_most=64, default_text="the model's"
    )
    sha256: str | None = setting(None, "SHA-256 of the source, if the name is file.py:function.", option="")
    loss_sha256: str | None = setting(None, "SHA-256 of the source, if the loss is file.py:function.", option="")


class AlgorithmSettings(Section):
    """The algorithm; its other hyper-parameters are declared, and all of them checked, by the algorithm itself."""

    model_config = ConfigDict(extra="allow", frozen=True, arbitrary_types_allowed=True)

    panel = "Algorithm"

    name: str = setting("scaffold-m", "An id of `kedge algorithms`, or file.py:Class.", option="algorithm")
    eta: float | Schedule = setting(0.1, "Local learning rate.")
    sha256: str | None = setting(None, "SHA-256 of the source, if the name is file.py:Class.", option="")


class SimulationSettings(Settings):
    """What `kedge.simulate` takes, in addition to the problem and the algorithm."""

    panel = "Run"

    rounds: int = setting(100, "R, the number of rounds.", at_least=1, free=True)
    eval_every: int | None = setting(
        1, "Rounds between evaluations; the last round is always evaluated.",
        at_least=1, configured=None, default_text="10 to 50 times a run, by cost",
    )  # fmt: skip
    eval_clients: bool = setting(False, "Evaluate on every client's own data too (mean and worst decile).")
    device: str = setting("cpu", "The device that torch computes on.", free=True)
    engine: str = setting(
        "auto", f"{ENGINES}: fused-mlp is for stacks of linear layers, fused-cnn for those of "
        "convolutions, pooling and linear layers, module for any model.", free=True,
    )  # fmt: skip
    threads: int | None = setting(
        None, "Clients to run at once in a process. Does not change the result. A model with more than 4 million "
        "parameters runs one client at a time on all of torch's threads instead.",
        at_least=1, at_most=PROCESSES, default_text="one per core", free=True,
    )  # fmt: skip
    state_memory: int | str = setting(
        "4GB", "Client state to keep in memory, in bytes or as in 500MB; the rest goes to a scratch file. Does not "
        "change the result.", check=byte_size, free=True,
    )  # fmt: skip
    checkpoint_every: int | str | None = setting(
        None, "Rounds between checkpoints, or '30s' for seconds; 0 means only at the end or when stopped, 'never' not "
        "even then.", check=lambda _, value: Interval.of(value), default_text="at most 2 % of the time", free=True,
    )  # fmt: skip


class RunSettings(SimulationSettings):
    """How to run a configuration."""

    workers: int = setting(1, "Processes; each has its share of the clients.", at_least=1, at_most=PROCESSES, free=True)
    stall_timeout: float = setting(
        300.0, "Seconds of silence after which a process counts as lost.", above=0, free=True
    )
    metrics: str | None = setting(
        None, "Your own metrics of the test set: file.py:function, several separated by commas.", free=True
    )
    metrics_sha256: str | None = setting(
        None, "SHA-256 of the source of every metric, separated by commas.", option="", free=True
    )
    diagnose: int | None = setting(
        None, "Add the proof's quantities (drift, errors of momentum and control variables) to the row of every n-th "
        "round, if that round is evaluated.", at_least=1, default_text="never", free=True,
    )  # fmt: skip


class Config(BaseModel):
    """A whole run: `kedge run config.toml` repeats it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sections: ClassVar[Mapping[str, type[Section]]] = {
        "data": DataSettings, "model": ModelSettings, "algorithm": AlgorithmSettings, "run": RunSettings,
    }  # fmt: skip

    data: DataSettings
    model: ModelSettings
    algorithm: AlgorithmSettings
    run: RunSettings

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> "Config":
        """Return what sections say; a sentence names the first wrong key and its rule."""
        for name, values in raw.items():
            if name not in cls.sections:
                raise outside(name, values)
            if not isinstance(values, Mapping):
                raise UsageError(f"{name} is {shown(values)}, but must be a section")
        return cls(**{name: _read(name, kind, raw.get(name, {})) for name, kind in cls.sections.items()})


def _read(name: str, kind: type[Section], values: Mapping[str, Any]) -> Any:
    for key, value in values.items():
        if key in kind.declared:
            continue
        if not kind.takes_more(values):
            others = [f"[{other}]" for other, its in Config.sections.items() if key in its.declared]
            said = f"it belongs in {' or '.join(others)}" if others else hint(key, kind.declared)
            raise UsageError(f"[{name}] has no setting {shown(key)}; {said}")
        if name != "algorithm" and not _is_plain(value):
            raise UsageError(f"{name}.{key} is {shown(value)}, but must be a number, text, a truth value or a list")
    try:
        return kind.read(values)
    except UsageError as error:
        named = str(error).partition(" ")[0] in kind.declared
        raise UsageError(f"{name}.{error}" if named else str(error)) from None


def outside(name: str, value: Any) -> UsageError:
    """Return the error that a configuration has no such section: its name may be that of a setting."""
    owners = [f"[{section}]" for section, kind in Config.sections.items() if name in kind.declared]
    if owners and not isinstance(value, Mapping):
        return UsageError(f"{name} is outside a section; it belongs in {' or '.join(owners)}")
    return unknown("section", name, Config.sections)


def is_complete(run: Mapping[str, Any]) -> bool:
    """Whether a section run is one that a run has written: it holds every setting, given or not."""
    return all(name in run for name, each in RunSettings.declared.items() if each.written(each.start) is not None)


def _is_plain(value: Any) -> bool:
    parts = value if isinstance(value, list) else [value]
    return all(isinstance(part, bool | int | float | str) for part in parts)


SETTINGS: dict[str, Setting] = {
    f"{section}.{name}": each for section, kind in Config.sections.items() for name, each in kind.declared.items()
}
"""All settings by their keys, as in run.rounds."""
