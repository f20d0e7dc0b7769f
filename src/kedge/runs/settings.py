"""The settings of a run as they are declared: four sections of a TOML file. Importing them loads no torch."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

STATE_MEMORY = "4GB"
"""The clients' state to keep in memory, unless told otherwise."""


STALL_TIMEOUT = 300.0
"""Seconds after which a process that does not answer counts as lost, unless told otherwise."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class Data(_Section):
    """Whose data, and how it is divided."""

    dataset: str = "digits"
    data_dir: str | None = None
    clients: int = 40
    partition: str | None = None  # None: by-user for synthetic, else dirichlet
    alpha: float = 0.1
    shards_per_client: int = 2
    holdout: float = 0.0  # share of the training samples to evaluate on, instead of the test set
    test_samples: int | None = None  # to evaluate on; None: all
    dim: int = 20  # of quadratics
    heterogeneity: str = "mild"  # of quadratics
    sigma: float = 0.0  # of quadratics


class Model(_Section):
    """What is trained. An option that a model does not know is refused."""

    name: str | None = None
    widths: list[int] | None = None
    dropout: float | None = None
    norm: str | None = None
    width: int | None = None


class Method(_Section):
    """The algorithm; its hyper-parameters are checked by the algorithm itself."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = "scaffold-m"
    eta: float = 0.1
    sha256: str | None = None  # of the source, where the name is file.py:Class


class Run(_Section):
    """How it is run."""

    rounds: int = 100
    cohort: int | Literal["all"] = 4
    local_steps: int = 16
    local_epochs: float | None = None
    batch_size: int | Literal["full"] = 16
    weight_decay: float = 0.0
    weights: Literal["uniform", "size"] = "uniform"
    lost_replies: float = 0.0
    seed: int = 0
    eval_every: int | None = None  # None: up to fifty times a run, by what it costs
    eval_clients: bool = False
    device: str = "cpu"
    engine: str = "auto"
    workers: int = 1  # processes
    stall_timeout: float = STALL_TIMEOUT  # seconds until a process that does not answer counts as lost
    threads: int | None = None  # clients at once in each process; None: one a core
    shards: int = 16
    state_memory: int | str = STATE_MEMORY  # of the clients' state; the rest goes to a file
    checkpoint_every: int | str | None = None  # rounds; "30s": seconds; None: a fiftieth of the time


class Config(_Section):
    """A whole run: `kedge run config.toml` repeats it."""

    data: Data = Data()
    model: Model = Model()
    algorithm: Method = Method()
    run: Run = Run()
