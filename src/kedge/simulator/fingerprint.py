"""What determines a run's result, as a flat table: a checkpoint carries it, and is refused where it differs."""

import functools
import hashlib
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from kedge.problem import Federation
from kedge.simulator.simulation import Simulation

SAMPLES = 64
"""How many of the samples enter the checksum: to read them all would take longer than to save a checkpoint."""


def fingerprint(run: Simulation) -> dict[str, Any]:
    """Return what determines the result of a run, but for the number of its rounds.

    Where and how it is computed (device, engine, workers) is left out: that changes at most the last bits.
    """
    federation = run.federation
    test = () if federation.test is None else federation.test
    return {
        "algorithm": repr(run.algorithm),
        "server state": ", ".join(type(run.moment.state)._fields),
        "client state": ", ".join(name for name in run.row_template if name != "clients"),
        **{name.replace("_", " "): value for name, value in asdict(run.settings).items()},
        "loss": _said(run.loss),
        "dtype": str(run.flat.initial.dtype),
        "parameters": run.flat.initial.numel(),
        "model": f"{type(run.initial_model).__name__} {_short(repr(run.initial_model).encode())}",
        "initial parameters": checksum(*_tensors(run.initial_model)),
        "clients": len(federation),
        "samples": checksum(*_places(federation), federation.labels, _some(federation.features)),
        "test samples": checksum(*(part for tensor in test for part in (torch.tensor(len(tensor)), _some(tensor)))),
    }


def _said(loss: Any) -> str:
    """Return a loss by its name, with the options of a module or a partial function."""
    if isinstance(loss, functools.partial):
        return f"{_said(loss.func)} {loss.args} {loss.keywords}"
    if isinstance(loss, nn.Module):
        options = {
            name: value
            for name, value in vars(loss).items()
            if isinstance(value, bool | int | float | str) and name != "training"
        }
        return f"{type(loss).__qualname__} {options} {checksum(*_tensors(loss))}"
    return getattr(loss, "__qualname__", type(loss).__qualname__)


def _places(federation: Federation) -> list[Tensor]:
    indices = federation.indices
    order = [] if indices.order is None else [indices.order]
    return [torch.from_numpy(indices.starts), torch.from_numpy(indices.sizes.copy()), *order]


def checksum(*tensors: Tensor) -> str:
    """Return a short checksum of the tensors' bytes."""
    return _short(*(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data for t in tensors))


def _short(*parts: bytes | memoryview) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:16]


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    """Return the model's parameters and buffers, and what tensors it keeps besides."""
    yield from model.state_dict().values()
    for module in model.modules():
        yield from (value for value in vars(module).values() if isinstance(value, Tensor))


def _some(tensor: Tensor) -> Tensor:
    return tensor[:: max(1, len(tensor) // SAMPLES)]
