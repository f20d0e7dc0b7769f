"""`kedge flower new`: a Flower app that runs as it is, and that you change into your own."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kedge.errors import UsageError
from kedge.files import make_directory, write_atomically
from kedge.flower.agreement import FlowerSettings

PACKAGE = "federation"
"""The app's own package."""

RUN = ("rounds", "cohort", "local_steps", "local_epochs", "batch_size", "weight_decay", "weights", "seed", "shards",
       "eval_every", "local_update", "reply_transforms")  # fmt: skip
"""The settings of a run that a federation has too."""

PYPROJECT = """\
# A Flower app: `flwr run .` starts it on the SuperLink that your Flower configuration names.
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "kedge-federation"
version = "1.0.0"
description = "{algorithm} on a real federation"
license = "Apache-2.0"
dependencies = []  # install kedge beforehand from its repository, on the server and on every client

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "kedge"

[tool.flwr.app.components]
serverapp = "federation.server_app:app"
clientapp = "federation.client_app:app"

# The sections of a kedge configuration, and one of Flower's. "" stands for a setting that is not given. Override any of
# them for one run with `flwr run . -c "run.rounds=50 algorithm.eta=0.05"`.
{sections}"""

TASK = '''\
"""The model and the data. Replace both by your own."""

import kedge
from flwr.app import Context
from kedge.flower import client_number
from torch import nn


def model(context: Context) -> nn.Module:
    """Return the model; the server trains it, clients only need its structure."""
    return kedge.build_model({model})


def load_data(context: Context) -> tuple:
    """Return the samples and labels of this client: yours come from its own disk."""
    return _federation(context).client(client_number(context))


def load_test(context: Context) -> tuple:
    """Return the samples and labels on which the server evaluates."""
    return _federation(context).test


def load_own_test(context: Context) -> tuple:
    """Return the samples and labels on which this client evaluates with flower.eval_clients."""
    federation = _federation(context)
    return (federation.client_tests or federation).client(client_number(context))


def _federation(context: Context) -> kedge.Federation:
    config = context.run_config
    return kedge.load_federation({data})
'''

SERVER = """\
from kedge.flower import server_app

from federation.task import load_test, model

app = server_app(model, load_test=load_test)
"""

CLIENT = """\
from kedge.flower import client_app

from federation.task import load_data, load_own_test, model

app = client_app(model, load_data, load_test=load_own_test)
"""

DATA = {
    "clients": "clients", "partition": "partition", "alpha": "alpha", "data_dir": "data_dir", "holdout": "holdout",
    "test_samples": "test_samples", "client_tests": "client_tests", "shards_per_client": "shards_per_client",
}  # fmt: skip
"""The settings of a data set and the parameters of `kedge.load_federation`."""


def write_app(
    path: Path, sections: Mapping[str, Mapping[str, Any]], shape: tuple[int, ...], classes: int, out: str
) -> list[Path]:
    """Write an app for a resolved configuration of a built-in data set; nothing is overwritten."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"{path} exists and is not an empty directory; nothing was overwritten")
    model = {key: value for key, value in sections["model"].items() if key not in ("loss", "sha256")}
    name, given = model.pop("name"), {key: value for key, value in model.items() if value is not None}
    arguments = [
        _literal(name),
        repr(shape),
        str(classes),
        *(f"{key}={_literal(value)}" for key, value in given.items()),
    ]
    files = {
        "pyproject.toml": PYPROJECT.format(algorithm=sections["algorithm"]["name"], sections=_config(sections, out)),
        f"{PACKAGE}/__init__.py": "",
        f"{PACKAGE}/task.py": TASK.format(
            model=", ".join([*arguments, 'seed=context.run_config["run.seed"]']), data=_arguments(sections["data"])
        ),
        f"{PACKAGE}/server_app.py": SERVER,
        f"{PACKAGE}/client_app.py": CLIENT,
    }
    make_directory(path / PACKAGE)
    for name, text in files.items():
        write_atomically(path / name, text.encode())
    return [path / name for name in files]


def _literal(value: Any) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def _arguments(data: Mapping[str, Any]) -> str:
    given = [f'{parameter}=config["data.{key}"]' for key, parameter in DATA.items() if data.get(key) is not None]
    return ",\n        ".join(['\n        config["data.dataset"]', 'seed=config["run.seed"]', *given]) + ",\n    "


def _config(sections: Mapping[str, Mapping[str, Any]], out: str) -> str:
    """Return the run config as TOML."""
    model = {key: ",".join(map(str, v)) if isinstance(v, list | tuple) else v for key, v in sections["model"].items()}
    parts: dict[str, Mapping[str, Any]] = {
        "data": {key: value for key, value in sections["data"].items() if value is not None},
        "model": {key: value for key, value in model.items() if value is not None},
        "algorithm": sections["algorithm"],
        "run": {key: sections["run"][key] for key in RUN},
        "flower": FlowerSettings(out=out, eval_clients=sections["run"]["eval_clients"]).written(),
    }
    lines = []
    for section, values in parts.items():
        lines += [f"[tool.flwr.app.config.{section}]", *(f"{key} = {_toml(v)}" for key, v in values.items()), ""]
    return "\n".join(lines)


def _toml(value: Any) -> str:
    return json.dumps("" if value is None else value, ensure_ascii=False).replace("\x7f", "\\u007f")
