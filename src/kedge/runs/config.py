"""The configuration of a run: four sections of a TOML file, checked before anything is computed."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from kedge.algorithm import Algorithm
from kedge.algorithms import make_algorithm
from kedge.checks import expanded
from kedge.client import Loss
from kedge.errors import UsageError
from kedge.own_code import PLACES
from kedge.problem import DATASETS, Federation, build_model, load_federation, model_options
from kedge.problem.partition import WITH_ALPHA
from kedge.runs.joining import own_device
from kedge.runs.own import (
    absolute_place,
    entry_of,
    loss_of,
    metrics_of,
    own_federation,
    own_model,
    places,
    sha256,
    taken,
)
from kedge.runs.rebuild import outputs_of, refuse_missing
from kedge.runs.settings import Config as Config
from kedge.runs.settings import SimulationSettings
from kedge.runs.simulate import Result, play
from kedge.runs.toml import check_values
from kedge.schedules import Schedule
from kedge.simulator.simulation import usable_device
from kedge.theory import Diagnose

DIVISION = frozenset({"data_dir", "partition", "alpha", "shards_per_client", "holdout", "test_samples", "client_tests"})
"""Keys of the section data that say how samples are divided; a data set without samples does not read them."""

MODEL_KEYS = ("name", "loss", "sha256", "loss_sha256")
"""Keys of the section model that are no options of the model."""

TEST_SAMPLES = 10_000
"""From how many samples on a test set counts as large."""

EVALUATION_SHARE = 0.04
"""The share of the time that evaluations may take by default."""


def check(raw: Mapping[str, Any]) -> Config:
    """Check a configuration; one sentence says the first thing that is wrong."""
    refuse_missing(raw, "the configuration")
    check_values(raw)
    config = Config.read(raw)
    entry_of(config.data.dataset)
    _check_sources(config)
    algorithm_of(config)
    if usable_device(config.run.device).type == "meta":
        raise UsageError("device is 'meta', but it holds no numbers")
    _check_relevance(config)
    return config


def _check_relevance(config: Config) -> None:
    """Refuse a setting that the problem would not look at."""
    dataset, entry = config.data.dataset, entry_of(config.data.dataset)
    read = _read_by(dataset)
    strange = frozenset() if read is None else config.data.model_fields_set - read
    for place, sets in ((dataset, strange), (config.model.name, _unread(config))):
        if sets and place is not None and places(place):
            raise UsageError(f"{place} does not take {min(sets)}; it takes {', '.join(taken(places(place)[0]) or ())}")
    if strange:
        name = min(strange)
        owners = [other for other, its in DATASETS.items() if name in its.options]
        if owners:
            raise UsageError(f"data.{name} belongs to the data set {owners[0]}, but the data set is {dataset}")
        raise UsageError(f"{dataset} has no samples to divide or to choose from, but data.{name} is set")
    if entry.make is not None and config.model.model_fields_set:
        raise UsageError(f"{dataset} brings its own model, but model.{min(config.model.model_fields_set)} is set")
    loss_of(config.model.loss)
    metrics_of(config.run.metrics)


def _unread(config: Config) -> frozenset[str]:
    """Return the keys of the section model that a user's own function does not take."""
    found = places(config.model.name)
    known = taken(found[0]) if found else None
    return frozenset() if known is None else frozenset(config.model.model_fields_set - {*MODEL_KEYS, *known})


def _read_by(dataset: str) -> frozenset[str] | None:
    """Return the keys of the section data that mean something to this data set; None is all."""
    entry = entry_of(dataset)
    if found := places(dataset):
        known = taken(found[0])
        return None if known is None else frozenset({"dataset", "sha256", "holdout", *known})
    return frozenset({"dataset", "clients"}) | entry.options | (DIVISION if entry.make is None else frozenset())


def algorithm_of(config: Config) -> Algorithm[Any, Any]:
    """Build the algorithm, with every hyper-parameter checked."""
    hyper = config.algorithm.model_dump(exclude={"sha256"})
    return make_algorithm(hyper.pop("name"), hyper)


def _check_sources(config: Config) -> None:
    """Refuse a user's own file that has changed since the configuration was written."""
    for place, key in PLACES.items():
        name, recorded = (getattr(getattr(config, section), of) for section, of in map(_parts, (place, key)))
        if recorded is None:
            continue
        found, hashes = places(name), recorded.split(",")
        if len(found) != len(hashes):
            wrong = f"{name} is not a file" if len(hashes) == 1 else f"{place} does not name {len(hashes)} files"
            raise UsageError(f"{key} is set, but {wrong}")
        for own, before in zip(found, hashes, strict=True):
            if (now := own.sha256()) != before:
                raise UsageError(
                    f"{own.file} has changed since the configuration was written: its SHA-256 is {now[:12]}..., "
                    f"but {key} has {before[:12]}..."
                )


def _parts(key: str) -> tuple[str, str]:
    section, _, name = key.partition(".")
    return section, name


def resolved(config: Config) -> dict[str, dict[str, Any]]:
    """Return every setting, with the defaults that depend on others filled in."""
    sections = {name: getattr(config, name).written() for name in Config.sections}
    algorithm = algorithm_of(config)
    hyper = {field.name: getattr(algorithm, field.name) for field in dataclasses.fields(algorithm)}
    written = {name: str(value) if isinstance(value, Schedule) else value for name, value in hyper.items()}
    sections["algorithm"] = {"name": config.algorithm.name, **written}
    sections["run"]["eval_every"] = eval_every(config)
    sections["data"]["data_dir"] = config.data.data_dir and str(expanded(config.data.data_dir).absolute())
    own = places(config.data.dataset)
    read = {"dataset", *_passed(config)} if own else _read_by(config.data.dataset) or set()
    sections["data"] = {key: value for key, value in sections["data"].items() if key in read}
    if entry_of(config.data.dataset).make is not None:
        sections["model"] = {}
    else:
        if not own:
            sections["data"]["partition"] = partition_name(config)
        given = {key: value for key, value in sections["model"].items() if value is not None}
        options = {} if places(model_name(config)) else model_options(model_name(config))
        sections["model"] = {"name": model_name(config)} | options | given
    for place, key in PLACES.items():
        section, name = _parts(place)
        text = sections[section].get(name)
        if isinstance(text, str):
            sections[section][name] = absolute_place(text)
        if places(text):
            sections[section][_parts(key)[1]] = sha256(text)
    return sections


def _passed(config: Config) -> set[str]:
    """Return the keys of the section data that a user's own function gets: those that are set or that it requires."""
    known = taken(places(config.data.dataset)[0])
    required = {name for name, needed in (known or {}).items() if needed}
    return {*config.data.model_fields_set, *required} - {"dataset", "sha256"}


def eval_every(config: Config) -> int:
    """Return the interval of evaluation: as asked, or fifty times a run, or less often where that would cost much.

    A sample of the test set costs a forward pass, one of a minibatch about two. With 10 clients of 16 minibatches of
    32, the 10,000 images of MNIST cost as much as a whole round. But ten times a run at least.
    """
    run = config.run
    if run.eval_every is not None:
        return run.eval_every
    cohort, batch = run.cohort or config.data.clients, run.batch_size or TEST_SAMPLES
    large = (entry_of(config.data.dataset).test or 0) >= TEST_SAMPLES and config.data.test_samples is None
    dear = math.ceil(TEST_SAMPLES / (EVALUATION_SHARE * 2 * cohort * run.local_steps * batch)) if large else 1
    return max(1, run.rounds // 50, min(dear, run.rounds // 10))


def model_name(config: Config) -> str:
    """Return the model: as asked, or the data set's usual one."""
    return config.model.name or entry_of(config.data.dataset).model


def partition_name(config: Config) -> str | None:
    """Return the division of the data: as asked, or the data set's usual one; None if only the data can tell."""
    entry = entry_of(config.data.dataset)
    return config.data.partition or (entry.partition if entry.known else None)


def division(config: Config) -> str:
    """Say how the clients differ: the partition, with its alpha where it has one."""
    setting = entry_of(config.data.dataset).differ_by
    if setting != "partition":
        return str(getattr(config.data, setting))
    name = partition_name(config)
    if name is None or places(config.data.dataset):
        return "its own clients"
    return f"{name} {config.data.alpha:g}" if name in WITH_ALPHA else name


@dataclass(frozen=True)
class Problem:
    """What a configuration trains on."""

    model: nn.Module
    federation: Federation
    loss: Loss


def problem_of(config: Config) -> Problem:
    """Load the data, divide it and build the model, all from the run's seed."""
    data, options = config.data, config.model.model_dump(exclude=set(MODEL_KEYS), exclude_none=True)
    entry = entry_of(data.dataset)
    make = entry.make
    if make is not None:
        own = {key: value for key, value in data.model_dump().items() if key in entry.options}
        made = make(data.clients, seed=config.run.seed, **own)
        return Problem(made.model, made.federation, made.loss)
    federation, name, seed = federation_of(config), model_name(config), config.run.seed
    plain, classes = isinstance(federation.features, Tensor), outputs_of(federation)
    shape = tuple(federation.features.shape[1:]) if plain else None
    if found := places(name):
        model = own_model(found[0], options | {"input_shape": shape, "classes": classes}, seed)
    elif shape is None or classes is None:
        raise UsageError(f"the model is {name}, but this data needs your own: --model file.py:function")
    else:
        model = build_model(name, shape, classes, seed=seed, **options)
    return Problem(model, federation, loss_of(config.model.loss))


def federation_of(config: Config) -> Federation:
    """Load the data and divide it."""
    data = config.data
    if found := places(data.dataset):
        values = {key: value for key, value in data.model_dump().items() if key in _passed(config)}
        made, known = own_federation(found[0], values | {"seed": config.run.seed}), taken(found[0])
        return made.held_out(data.holdout) if data.holdout and known is not None and "holdout" not in known else made
    return load_federation(
        data.dataset, data.clients, partition_name(config), data.alpha, config.run.seed, data.data_dir,
        holdout=data.holdout, test_samples=data.test_samples, shards_per_client=data.shards_per_client,
        client_tests=data.client_tests,
    )  # fmt: skip


def run_config(
    config: Config,
    problem: Problem | None = None,
    out: Any = None,
    callbacks: Sequence[object] = (),
    *,
    resume: bool = False,
) -> Result:
    """Run a configuration."""
    problem = problem or problem_of(config)
    here = {"eval_every": eval_every(config), "device": own_device(config.run.device)}
    if config.run.diagnose is not None:
        callbacks = [Diagnose(config.run.diagnose), *callbacks]
    chosen = SimulationSettings(**config.run.part(SimulationSettings).values() | here)
    return play(
        problem.model, problem.federation, algorithm_of(config), chosen, problem.loss, out, callbacks,
        metrics_of(config.run.metrics), resume=resume,
    )  # fmt: skip
