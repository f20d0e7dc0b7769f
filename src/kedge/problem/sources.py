"""Federations from elsewhere: Hugging Face's `datasets`, the partitioners of `flwr-datasets`, and LEAF's JSON files.

LEAF is Caldas et al., "LEAF: A Benchmark for Federated Settings" (2018): its files hold the samples of each user.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kedge.checks import affordable, tensor
from kedge.errors import UsageError, shown
from kedge.samples import Input

LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's letters of Shakespeare; any other one has the number that follows theirs."""

PARSED = 8
"""How many times its size a JSON file may need in memory."""


def tables(source: Any, by: str | None) -> dict[Any, Any]:
    """Return a table of `datasets` per client: of a dict, a list, a partitioner, or one table divided by a column."""
    if isinstance(source, Mapping):
        found = dict(source)
    elif hasattr(source, "load_partition"):
        found = {i: source.load_partition(i) for i in range(source.num_partitions)}
    elif hasattr(source, "column_names"):
        if by is None:
            raise UsageError("by is missing: it names the column that says whose each sample is")
        _check_columns(source, [by])
        names, owner = np.unique(np.asarray(source[by][:]), return_inverse=True)
        rows = np.split(np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner))[:-1])
        found = {name.item(): source.select(part) for name, part in zip(names, rows, strict=True)}
    elif isinstance(source, Iterable) and not isinstance(source, str | bytes):
        found = dict(enumerate(source))
    else:
        raise UsageError(
            f"the data is {shown(source)}, but must be tables of datasets or a partitioner of flwr-datasets"
        )
    for name, table in found.items():
        if not hasattr(table, "column_names"):
            raise UsageError(f"client {name} is a {type(table).__name__}, but must be a table of datasets")
    return found


def columns(table: Any, inputs: str | Sequence[str], label: str, who: str) -> tuple[Input, Any]:
    """Return the features and labels of a table: one column, or a dict of several, which the model gets by name."""
    names = [inputs] if isinstance(inputs, str) else list(inputs)
    _check_columns(table, [*names, label])
    content = table.with_format("numpy", columns=[*names, label])[:]
    arrays = {name: _numbers(content[name], f"{who}'s column {name!r}") for name in names}
    return arrays[inputs] if isinstance(inputs, str) else arrays, content[label]


def _check_columns(table: Any, names: Sequence[str]) -> None:
    for name in names:
        if name not in table.column_names:
            raise UsageError(f"the data has no column {name!r}; it has {', '.join(table.column_names)}")


def _numbers(values: Any, what: str) -> Tensor:
    """Return a column as a tensor; images become numbers from 0 to 1 with the channels first."""
    array = np.asarray(values)
    if array.dtype == object:  # images, and arrays of several dimensions, come one by one
        shapes = {np.asarray(each).shape for each in values}
        if len(shapes) > 1:
            raise UsageError(f"{what} has rows of several shapes; pad or resize them first")
        array = np.stack([np.asarray(each) for each in values])
    found = tensor(array, what)
    if found.dtype == torch.uint8 and found.ndim in (3, 4):
        found = found.to(torch.float32) / 255
        found = found.unsqueeze(1) if found.ndim == 3 else found.permute(0, 3, 1, 2).contiguous()
    return found.to(torch.float32) if found.dtype == torch.float64 else found


def read_leaf(folder: Path) -> dict[str, tuple[Any, Any]]:
    """Return the samples of every user in the JSON files of a folder."""
    files = sorted(folder.glob("*.json")) if folder.is_dir() else []
    if not files:
        raise UsageError(f"{folder} is not a folder with JSON files of LEAF")
    found: dict[str, tuple[Any, Any]] = {}
    for file in files:
        for user, data in _user_data(file).items():
            if not isinstance(data, dict) or not isinstance(data.get("x"), list) or not isinstance(data.get("y"), list):
                raise UsageError(f"{file} is not LEAF's: the user {shown(user)} has no lists x and y")
            if user in found:
                raise UsageError(f"{file} holds the user {shown(user)}, who is in another file already")
            if data["y"]:
                who = f"the user {shown(user)} in {file}"
                found[user] = _encoded(data["x"], who), _encoded(data["y"], who, single=True)
    return found


def _user_data(file: Path) -> dict[str, Any]:
    affordable(f"{file}", PARSED * file.stat().st_size)
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from None
    users = content.get("user_data") if isinstance(content, dict) else None
    if not isinstance(users, dict):
        raise UsageError(f"{file} is not LEAF's: it has no user_data")
    return users


def _encoded(values: list[Any], who: str, *, single: bool = False) -> Any:
    """Return letters as numbers, and numbers as they are."""
    if values and all(isinstance(value, str) for value in values):
        values = [[_code(letter) for letter in value] for value in values]
        values = [code[0] if code else len(LETTERS) for code in values] if single else values
    found = tensor(values, f"the samples of {who}")
    return found.to(torch.float32) if found.dtype == torch.float64 else found


def _code(letter: str) -> int:
    place = LETTERS.find(letter)
    return place if place >= 0 else len(LETTERS)
