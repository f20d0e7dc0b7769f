"""Tensors to a file one after another, so that no second copy of them is in memory; the format is safetensors."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from kedge.errors import UsageError
from kedge.files import write_atomically

_TYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.int64: "I64", torch.int32: "I32"}


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: str = "") -> None:
    """Write tensors atomically; ``about`` is a text that goes with them."""
    header: dict[str, object] = {"__metadata__": {"kedge": about}} if about else {}
    end = 0
    for name, value in tensors.items():
        if value.dtype not in _TYPES:
            raise UsageError(f"{name} has dtype {value.dtype}, but only {', '.join(_TYPES.values())} can be written")
        begin, end = end, end + value.nbytes
        header[name] = {"dtype": _TYPES[value.dtype], "shape": list(value.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    write_atomically(path, _parts(text, tensors.values()))


def _parts(header: bytes, tensors: Iterable[Tensor]) -> Iterator[memoryview]:
    yield memoryview(len(header).to_bytes(8, "little") + header)
    for value in tensors:
        yield memoryview(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
