"""Your own data, models, losses and metrics where a configuration names them: `my.py:load`, `data.npz`.

A function takes what it declares: a parameter called `clients`, `alpha`, `seed` or `input_shape` gets that value, and
any other one gets what the configuration sets under its name (`--set model.hidden=64`).
"""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from kedge.checks import expanded
from kedge.client import Loss, Metric, check_metrics
from kedge.errors import UsageError, shown, unknown
from kedge.own_code import CodePlace
from kedge.problem import DATASETS, Federation
from kedge.problem.datasets import Entry, is_archive


def mse(output: Tensor, target: Tensor) -> Tensor:
    """The mean squared error, of outputs (n, 1) and targets (n,) too."""
    return mse_loss(output.reshape(target.shape), target.to(output.dtype))


def bce(output: Tensor, target: Tensor) -> Tensor:
    """The binary cross-entropy of scores: one or several yes-or-no labels per sample."""
    return binary_cross_entropy_with_logits(output.reshape(target.shape), target.to(output.dtype))


LOSSES: dict[str, Loss] = {"cross-entropy": cross_entropy, "mse": mse, "bce": bce}


def places(text: object) -> list[CodePlace]:
    """Return the places that a setting names; those of metrics are separated by commas."""
    parts = text.split(",") if isinstance(text, str) else []
    found = [place for part in parts if (place := CodePlace.parse(part.strip())) is not None]
    # The path of an archive may have colons and commas, but only a file that ends in .py can run.
    return [] if is_archive(str(text)) and all(place.file.suffix != ".py" for place in found) else found


def sha256(text: object) -> str:
    """Return the checksums of the files that a setting names, separated by commas."""
    return ",".join(place.sha256() for place in places(text))


def absolute_place(text: str) -> str:
    """Return a name as it is, and a place or an archive so that it holds from any directory."""
    if found := places(text):
        return ",".join(str(place.absolute()) for place in found)
    return str(expanded(text).absolute()) if is_archive(text) else text


def short_name(text: str) -> str:
    """Return a name for people: of ``dir/my.py:load`` only load, of ``dir/data.npz`` only data."""
    return Path(text).stem if is_archive(text) else text.rpartition(":")[2]


def entry_of(dataset: str) -> Entry:
    """Return what is known about a data set before it is loaded."""
    if dataset in DATASETS:
        return DATASETS[dataset]
    if is_archive(dataset) or places(dataset):
        return Entry(known=False)
    raise unknown("data set", dataset, DATASETS)


def taken(place: CodePlace) -> dict[str, bool] | None:
    """Return the parameters of a function and whether each is required; None if it takes any."""
    function = place.load()
    if not callable(function):
        raise UsageError(f"{place} is {shown(function)}, but must be a function")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    named = (each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY))
    return {each.name: each.default is each.empty for each in named}


def called(place: CodePlace, values: Mapping[str, Any]) -> Any:
    """Call a function with those of the values that it takes."""
    known = taken(place)
    chosen = {name: value for name, value in values.items() if known is None or name in known}
    for name, required in (known or {}).items():
        if required and chosen.get(name) is None:
            raise UsageError(f"{place} needs {name}, but nothing sets it")
    try:
        return place.load()(**chosen)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{place} failed: {type(error).__name__}: {error}") from error


def own_federation(place: CodePlace, values: Mapping[str, Any]) -> Federation:
    """Return what a user's function loads."""
    made = called(place, values)
    if not isinstance(made, Federation):
        raise UsageError(f"{place} returned a {type(made).__name__}, but must return a kedge.Federation")
    return made


def own_model(place: CodePlace, values: Mapping[str, Any], seed: int) -> nn.Module:
    """Return what a user's function makes; torch's random numbers start from the seed, and the caller's are kept."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = called(place, dict(values) | {"seed": seed})
    if not isinstance(made, nn.Module):
        raise UsageError(f"{place} returned a {type(made).__name__}, but must return a torch.nn.Module")
    return made


def loss_of(name: str | None) -> Loss:
    """Return a loss by its name."""
    if name is None:
        return cross_entropy
    if found := places(name):
        loss: Loss = found[0].load()
        if not callable(loss):
            raise UsageError(f"{name} is {shown(loss)}, but must be a function loss(output, y)")
        return loss
    if name not in LOSSES:
        raise unknown("loss", name, LOSSES)
    return LOSSES[name]


def metrics_of(text: str | None) -> dict[str, Metric]:
    """Return the metrics that `run.metrics` names."""
    if text is None:
        return {}
    found = places(text)
    if len(found) != len(text.split(",")):
        raise UsageError(f"run.metrics is {shown(text)}, but must be file.py:function, several separated by commas")
    return check_metrics({place.name: place.load() for place in found})
