"""What `config.toml` says about a run made in Python: all that a configuration can say, and what is missing otherwise.

If nothing is missing, `kedge resume` and `kedge run config.toml` rebuild the run; the fingerprint checks that it is the
same. What is missing stands in the section `python`.
"""

import dataclasses
import itertools
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from kedge.algorithm import Algorithm
from kedge.algorithms import ALGORITHMS
from kedge.errors import UsageError
from kedge.own_code import SHA256
from kedge.problem import Federation, build_model, model_origin
from kedge.problem.quadratic import QuadraticModel, mean_output
from kedge.runs.own import entry_of
from kedge.runs.settings import Config, RunSettings, SimulationSettings
from kedge.schedules import Schedule

PYTHON, MISSING = "python", "missing"
"""The section that says what a configuration cannot, and its key."""


def described(
    model: nn.Module,
    federation: Federation,
    algorithm: Algorithm[Any, Any],
    loss: Any,
    settings: SimulationSettings,
    more: Mapping[str, Any],
) -> dict[str, dict[str, Any]] | None:
    """Return the configuration of a run; ``more`` is what else it was given and no configuration holds."""
    if (
        not isinstance(federation, Federation)
        or not isinstance(algorithm, Algorithm)
        or not isinstance(model, nn.Module)
    ):
        return None  # the simulation will say so
    data = dict(federation.origin or {})
    seeds = {"data": data.pop("seed", settings.seed)}
    made = model_origin(model) or {}
    options = {key: value for key, value in made.items() if key not in ("seed", "shape", "classes")}
    seeds["model"] = made.get("seed", settings.seed)
    sections = {
        "data": data, "model": options, "algorithm": dict(_algorithm(algorithm)),
        "run": RunSettings(**settings.values()).written(),
    }  # fmt: skip
    whole = isinstance(model, QuadraticModel) and "dataset" in data and entry_of(data["dataset"]).make is not None
    missing = []
    if federation.origin is None:
        missing.append("the federation was not made by kedge.load_federation")
    elif not federation.is_as_loaded:
        missing.append("the federation was changed after kedge.load_federation")
    if not whole and not made:
        missing.append(f"the model {type(model).__name__} was not made by kedge.build_model")
    if made and not _is_as_built(model, made, federation):
        missing.append("the model is not the one that kedge.build_model makes for this data with this seed")
    if (loss or cross_entropy) is not (mean_output if whole else cross_entropy):
        missing.append(f"the loss is {getattr(loss, '__name__', type(loss).__name__)}")
    missing += [
        f"the {what} was drawn with seed {seed}, but the run has seed {settings.seed}"
        for what, seed in seeds.items() if seed != settings.seed
    ]  # fmt: skip
    missing += [f"{name} was given" for name, value in more.items() if value]
    try:
        Config.read(sections)
        if "name" not in sections["algorithm"]:
            raise UsageError(f"the algorithm {type(algorithm).__name__} is not defined in its own file")
    except UsageError as error:
        missing.append(str(error))
    return sections | ({PYTHON: {MISSING: missing}} if missing else {})


def outputs_of(federation: Federation) -> int | None:
    """Return how many outputs a model of this data has: the classes, or the numbers of a target; None if unknown."""
    labels = federation.labels
    if not len(labels):
        return None
    return labels[0].numel() if labels.is_floating_point() or labels.ndim > 1 else int(labels.max()) + 1


def _is_as_built(model: nn.Module, made: Mapping[str, Any], federation: Federation) -> bool:
    """Whether building a model again, for the shapes of the data, makes this one."""
    features = federation.features
    if not isinstance(features, Tensor) or tuple(features.shape[1:]) != made["shape"]:
        return False
    options = {key: value for key, value in made.items() if key not in ("name", "shape", "classes")}
    again = build_model(made["name"], made["shape"], outputs_of(federation) or made["classes"], **options)
    pairs = itertools.zip_longest(_tensors(model), _tensors(again))
    return all(
        one is not None and other is not None and one[0] == other[0] and one[1].dtype == other[1].dtype
        and one[1].requires_grad == other[1].requires_grad and torch.equal(one[1].cpu(), other[1])
        for one, other in pairs
    )  # fmt: skip


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return itertools.chain(model.named_parameters(), model.named_buffers())


def _algorithm(algorithm: Algorithm[Any, Any]) -> Iterator[tuple[str, Any]]:
    kind = type(algorithm)
    module = sys.modules.get(kind.__module__)
    for name, known in ALGORITHMS.items():
        if known is kind:
            yield "name", name
    if hasattr(module, SHA256):  # it was loaded from a file
        yield "name", f"{module.__file__}:{kind.__name__}"  # type: ignore[union-attr]
        yield "sha256", getattr(module, SHA256)
    for field in dataclasses.fields(algorithm):
        value = getattr(algorithm, field.name)
        yield field.name, str(value) if isinstance(value, Schedule) else value


def extended(sections: dict[str, dict[str, Any]], rounds: int) -> dict[str, dict[str, Any]] | None:
    """Return the configuration of a run that will play this many rounds; None if it is already, or is not kedge's."""
    before = sections.get("run", {}).get("rounds")
    nested = any(isinstance(value, dict) for section in sections.values() for value in section.values())
    if nested or not isinstance(before, int) or before == rounds:
        return None
    return sections | {"run": sections["run"] | {"rounds": rounds}}


def refuse_missing(sections: Mapping[str, Any], source: object) -> None:
    """Say what is missing in a configuration that a run in Python has written."""
    about = sections.get(PYTHON)
    if isinstance(about, Mapping):
        listed = about.get(MISSING)
        said = "; ".join(str(each) for each in listed) if isinstance(listed, list) else "something"
        raise UsageError(
            f"{source} comes from a run made in Python that cannot be rebuilt here: {said}; "
            "resume it with kedge.simulate(..., resume=True)"
        )
