"""How much memory a configuration will need at least: what cannot fit is refused before any of it is taken."""

import itertools

from kedge.errors import UsageError
from kedge.problem.checks import fits, whole
from kedge.runs.settings import QUADRATICS, Config

LAYERS = 1000
"""The most hidden layers of an MLP."""

WORKERS = 1024
"""The most processes, and the most threads of one."""

NARROWEST, CLASSES = 60, 10
"""No built-in data set has fewer features, nor another number of classes."""

SAMPLES = 64
"""Of a client of quadratics."""

LEAST_SAMPLES = 50
"""Of a user of the synthetic data."""


def check_size(config: Config) -> None:
    """Refuse what no machine can hold or play."""
    data, run = config.data, config.run
    clients, dim = whole("clients", data.clients, 1), whole("dim", data.dim, 1)
    whole("shards_per_client", data.shards_per_client, 1)
    for name, count in (("workers", run.workers), ("threads", run.threads)):
        if count is not None:
            whole(name, count, 1, WORKERS)
    if data.dataset == QUADRATICS:
        # The Hessians and what they are made of; the samples, with their noise.
        size = 8 * clients * (3 * dim**2 + 2 * SAMPLES * (dim + 1))
        fits(f"quadratics with clients = {clients} and dim = {dim}", size)
    elif data.dataset == "synthetic":
        fits(f"the data of {clients} clients", 8 * clients * LEAST_SAMPLES * NARROWEST)
    widths = [whole("a width of mlp", width, 1) for width in config.model.widths or []]
    if len(widths) > LAYERS:
        raise UsageError(f"widths has {len(widths)} entries, but a model has at most {LAYERS} hidden layers")
    parameters = sum((inputs + 1) * outputs for inputs, outputs in itertools.pairwise([NARROWEST, *widths, CLASSES]))
    # In float32: the model, the server's, a gradient and a client's own.
    fits(f"a model of {parameters:.3g} parameters", 4 * 4 * parameters)
