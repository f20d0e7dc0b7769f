"""What determines a run's result, as a flat table: if it differs, kedge refuses to resume or reuse the run."""

import functools
import hashlib
import itertools
import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kedge.client.flat import frozen
from kedge.files import METRIC
from kedge.local_update import Chain
from kedge.problem import Federation
from kedge.samples import Lazy, leaves, structure
from kedge.schedules import Schedule
from kedge.simulator.simulation import Simulation

SMALL = 1 << 20
"""Up to this many bytes, SHA-256 takes no time; for more, it would take half as long as loading them."""

COLUMNS, BLOCK = 1024, 64
"""Of the table in which larger data is summed, and of its rows that stay in the cache for the second sum."""

SCALARS = (bool, int, float, complex, str, bytes, type(None))
CONTAINERS = (list, tuple, dict, set, frozenset, np.ndarray)

LIBRARIES = ("kedge", "torch", "builtins")
"""Packages identified by their version, which a checkpoint records too."""


def fingerprint(run: Simulation, federation: Federation | None = None) -> dict[str, Any]:
    """Return what determines the result of a run, except for the number of rounds.

    Where and how it is computed (device, engine, workers) is left out: that affects at most the last bits.
    ``federation`` is the one the run was made from, if it is still available: the run's own copy has the model's dtype
    and device.
    """
    federation = run.federation if federation is None else federation
    return {
        "algorithm": repr(run.algorithm),
        "algorithm code": code(type(run.algorithm)),
        "algorithm file": _file(type(run.algorithm)),
        "server state": ", ".join(type(run.moment.state)._fields),
        "client state": ", ".join(name for name in run.row_template if name != "clients"),
        **{name.replace("_", " "): _plain_setting(value) for name, value in run.settings.values().items()},
        **_functions(run),
        "loss": _said(run.loss),
        "loss code": code(run.loss),
        "loss file": _file(run.loss),
        "dtype": str(run.flat.initial.dtype),
        "parameters": run.flat.initial.numel(),
        "model": f"{type(run.initial_model).__name__} {_short(repr(run.initial_model).encode())}",
        "model code": code(run.initial_model),
        **_untrained(run.initial_model),
        "initial parameters": checksum(*_tensors(run.initial_model)),
        "clients": len(federation),
        "samples of clients": checksum(*_places(federation)),
        **data_fingerprint(federation),
    }


def metrics_fingerprint(metrics: Mapping[str, Any]) -> dict[str, str]:
    """Return the checksums of the files that metrics come from; a run may get other metrics, but not change one."""
    files = {f"{METRIC}{name}": _file(metric) for name, metric in metrics.items()}
    return {name: digest for name, digest in files.items() if digest is not None}


def _untrained(model: nn.Module) -> dict[str, str]:
    """Return which parameters and parts of a model are frozen, if any."""
    parts = set(frozen(model))
    names = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    names += [f"{name}.eval()" for name, module in model.named_modules() if module in parts]
    return {"frozen": ", ".join(names)} if names else {}


def _file(thing: Any) -> str | None:
    """Return the checksum of the user's own file that a class, a function or an object comes from."""
    names = (getattr(thing, "__module__", None), type(thing).__module__)
    found = (getattr(sys.modules.get(name or ""), "__sha256__", None) for name in names)
    return next((digest for digest in found if digest is not None), None)


def _plain_setting(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str | None) else repr(value)


def _functions(run: Simulation) -> dict[str, str]:
    """Return the user's own code in schedules, local updates and reply transforms."""
    found = {**run.algorithm.scheduled, "weight_decay": run.settings.weight_decay}
    own = {name: value.function for name, value in found.items() if isinstance(value, Schedule)}
    codes = {f"{name} code": code(function) for name, function in own.items() if function is not None}
    update = run.settings.local_update
    hooks = (*(update.updates if isinstance(update, Chain) else (update,)), *(run.settings.reply_transforms or ()))
    return codes | {f"{type(one).__name__} code": code(type(one)) for one in hooks if one is not None}


def data_fingerprint(federation: Federation) -> dict[str, str]:
    """Return the part of the fingerprint that covers the data set, however it is divided."""
    test = (None, None) if federation.test is None else federation.test
    inputs = {
        "features": federation.features, "labels": federation.labels, "test features": test[0], "test labels": test[1],
    }  # fmt: skip
    return {name: _data(value) for name, value in inputs.items()}


def _data(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, Lazy):  # its transforms, one sample, and what the data sets keep
        features, labels = value.take(torch.zeros(1, dtype=torch.int64))
        codes = dict.fromkeys(code(data) for data in value.datasets)
        seen: set[int] = set()
        kept = _short(*(part for data in value.datasets for part in _kept(data, seen)))
        return f"lazy {len(value)} {checksum(*leaves(features), labels)} {kept} {' '.join(codes)}"
    return f"{structure(value)}{checksum(*leaves(value))}"


def _said(loss: Any) -> str:
    """Return a loss by its name, with the options of a module or a partial function."""
    if isinstance(loss, functools.partial):
        return f"{_said(loss.func)} {loss.args} {loss.keywords}"
    if isinstance(loss, nn.Module):
        return f"{type(loss).__qualname__} {_plain(vars(loss))} {checksum(*_tensors(loss))}"
    return getattr(loss, "__qualname__", type(loss).__qualname__)


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, bool | int | float | str | None) and name != "training" and not name.startswith("__")
    }


def _places(federation: Federation) -> list[Tensor]:
    indices = federation.indices
    order = [] if indices.order is None else [indices.order]
    return [torch.from_numpy(indices.starts), torch.from_numpy(indices.sizes.copy()), *order]


def checksum(*tensors: Tensor) -> str:
    """Return a short checksum of the tensors: their shapes and all their bytes."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        for part in [content.data] if len(content) <= SMALL else _sums(content):
            digest.update(part)
    return digest.hexdigest()[:16]


def _sums(content: np.ndarray[Any, np.dtype[np.uint8]]) -> Iterator[memoryview]:
    """Lay the bytes out as a table of 64-bit words and return the sums of its columns and its rows, and the rest.

    Every bit counts and so does its place, at the speed of the memory. It is possible to construct other data with
    the same sums: the purpose is to notice mistakes.
    """
    length = len(content) // (8 * COLUMNS) * 8 * COLUMNS
    table = content[:length].view(np.uint64).reshape(-1, COLUMNS)
    columns, rows = np.zeros(COLUMNS, np.uint64), np.empty(len(table), np.uint64)
    for at in range(0, len(table), BLOCK):
        block = table[at : at + BLOCK]
        columns += np.add.reduce(block, axis=0)
        np.add.reduce(block, axis=1, out=rows[at : at + BLOCK])
    yield from (columns.data, rows.data, content[length:].data)


def _short(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    """Return the model's parameters and buffers, and any other tensors it keeps."""
    yield from model.state_dict().values()
    for module in model.modules():
        yield from (value for value in vars(module).values() if isinstance(value, Tensor))


def code(thing: Any) -> str:
    """Return a checksum of the user's own code that a class, a function or a module runs; "built in" if none.

    It covers compiled code, so another version of Python gives another checksum.
    """
    parts = list(_code(thing, set()))
    return f"{_short(*parts)} (Python {sys.version_info[0]}.{sys.version_info[1]})" if parts else "built in"


def _code(thing: Any, seen: set[int]) -> Iterator[bytes]:
    """Return the compiled code of an object, with all the user's own code that it refers to."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, functools.partial):
        yield from _code(thing.func, seen)
    elif isinstance(thing, types.MethodType | staticmethod | classmethod):
        yield from _code(thing.__func__, seen)
    elif isinstance(thing, property):
        yield from _code(thing.fget, seen)
    elif isinstance(thing, types.FunctionType):
        if not _is_library(thing):
            yield from _function(thing, seen)
    elif isinstance(thing, type):
        for kind in thing.__mro__:
            if not _is_library(kind):
                yield kind.__qualname__.encode()
                yield from _held(vars(kind), seen)
                for value in vars(kind).values():
                    yield from _code(value, seen)
    elif isinstance(thing, nn.Module):
        for module in thing.modules():
            yield from _code(type(module), seen)
            if not _is_library(type(module)):
                yield from _held(vars(module), seen)
            for value in vars(module).values():  # its own forward, hooks
                for one in value.values() if isinstance(value, dict) else [value]:
                    if callable(one) and not isinstance(one, nn.Module):
                        yield from _code(one, seen)
    elif not _is_library(type(thing)) and hasattr(thing, "__dict__"):
        yield from _code(type(thing), seen)
        yield from _held(vars(thing), seen)


def _held(attributes: Mapping[str, Any], seen: set[int]) -> Iterator[bytes]:
    """Return the plain values and the containers among attributes."""
    yield repr(_plain(attributes)).encode()
    for name, value in attributes.items():
        if isinstance(value, CONTAINERS) and not name.startswith("_"):
            yield name.encode()
            yield from _values(value, seen)


def _kept(data: Any, seen: set[int]) -> Iterator[bytes]:
    """Return what a data set keeps in its attributes; it may wrap others, as a `Subset` does."""
    if id(data) in seen:
        return
    seen.add(id(data))
    for name, value in getattr(data, "__dict__", {}).items():
        yield name.encode()
        wraps = hasattr(value, "__getitem__") and hasattr(value, "__dict__") and not isinstance(value, Tensor)
        yield from (_kept if wraps else _values)(value, seen)


def _values(value: Any, seen: set[int]) -> Iterator[bytes]:
    """Return a value: numbers, text, tensors, arrays, and containers of them; of anything else, the user's own code."""
    if isinstance(value, Tensor):
        yield checksum(value).encode()
    elif isinstance(value, SCALARS):
        yield repr(value).encode()
    elif not isinstance(value, CONTAINERS):
        yield from _code(value, seen)
    elif id(value) not in seen:
        seen.add(id(value))
        yield f"{type(value).__name__} {np.size(value) if isinstance(value, np.ndarray) else len(value)}".encode()
        if isinstance(value, np.ndarray) and value.dtype != object:
            yield f"{value.shape} {value.dtype}".encode()
            yield np.ascontiguousarray(value).tobytes()
        elif isinstance(value, set | frozenset):
            yield repr(sorted(map(repr, value))).encode()
        else:
            for part in itertools.chain.from_iterable(value.items()) if isinstance(value, dict) else value:
                yield from _values(part, seen)


def _function(function: types.FunctionType, seen: set[int]) -> Iterator[bytes]:
    values = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # it is empty
            values.append(cell.cell_contents)
    for inner in _all_code(function.__code__):
        yield inner.co_code
        names = [*inner.co_names, *inner.co_varnames, *inner.co_freevars]
        yield repr((names, _constant(inner.co_consts))).encode()
        values += [function.__globals__[name] for name in inner.co_names if name in function.__globals__]
    for value in values:
        yield from _values(value, seen)


def _constant(value: Any) -> str:
    """Format a constant of compiled code, the same in every process."""
    if isinstance(value, tuple | frozenset):
        parts = [_constant(one) for one in value]
        return f"({', '.join(parts if isinstance(value, tuple) else sorted(parts))})"
    return "code" if isinstance(value, types.CodeType) else repr(value)


def _all_code(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _all_code(constant)


def _is_library(thing: Any) -> bool:
    package = (getattr(thing, "__module__", None) or "builtins").partition(".")[0]
    return package in LIBRARIES or package in sys.stdlib_module_names
