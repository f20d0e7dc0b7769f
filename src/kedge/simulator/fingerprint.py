"""What determines a run's result, as a flat table: a checkpoint carries it, and is refused where it differs."""

import hashlib
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from kedge.problem import Federation
from kedge.simulator.simulation import Simulation

SAMPLES = 64
"""How many of the samples enter the checksum: to read them all would take longer than to save a checkpoint."""


def fingerprint(run: Simulation) -> dict[str, Any]:
    """Return what determines the result of a run, which has not begun, but for the number of its rounds.

    Where and how it is computed (device, engine, workers) is left out: that changes at most the last bits.
    """
    federation = run.federation
    test = () if federation.test is None else federation.test
    return {
        "algorithm": repr(run.algorithm),
        "server state": ", ".join(run.server._fields),
        "client state": ", ".join(run.clients[0]._fields),
        **{name.replace("_", " "): value for name, value in asdict(run.settings).items()},
        "loss": getattr(run.loss, "__qualname__", type(run.loss).__qualname__),
        "dtype": str(run.flat.initial.dtype),
        "parameters": run.flat.initial.numel(),
        "initial parameters": checksum(run.flat.initial),
        "initial buffers": checksum(run.buffers),
        "clients": len(federation),
        "samples": checksum(*_places(federation), federation.labels, _some(federation.features)),
        "test samples": checksum(*(part for tensor in test for part in (torch.tensor(len(tensor)), _some(tensor)))),
    }


def _places(federation: Federation) -> list[Tensor]:
    indices = federation.indices
    order = [] if indices.order is None else [indices.order]
    return [torch.from_numpy(indices.starts), torch.from_numpy(indices.sizes.copy()), *order]


def checksum(*tensors: Tensor) -> str:
    """Return a short checksum of the tensors' bytes."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def _some(tensor: Tensor) -> Tensor:
    return tensor[:: max(1, len(tensor) // SAMPLES)]
