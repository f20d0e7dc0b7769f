"""One vector as it travels: numpy's format 1.0, whole, or the places and the values of what is not zero.

What arrives is compared with the bytes that it must have: first the size, then the header, which is never parsed.
"""

import io
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import Array
from torch import Tensor

from kedge.errors import UsageError, shown
from kedge.transforms import packed, unpacked, wire_size

OVERHEAD = 128
"""The bytes that a vector needs in addition to its numbers: the header of numpy's format."""

PART = 1 << 20
"""How many numbers are checked at once: what a check needs is then small."""

Most = Callable[[int], int]
"""most(size): how many numbers of a vector of this size may differ from zero."""


class Spec(NamedTuple):
    """The form of a vector."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, value: Tensor) -> "Spec":
        """Return the form of a tensor."""
        return cls(tuple(value.shape), value.dtype)

    @property
    def bytes(self) -> int:
        """The size of its numbers."""
        return math.prod(self.shape) * self.dtype.itemsize


def all_finite(value: Tensor) -> bool:
    """Whether all numbers are finite."""
    return all(bool(part.isfinite().all()) for part in torch.split(value.reshape(-1), PART))


def written(value: Tensor, *, sparse: bool = False) -> Array:
    """Return a vector as it travels; if ``sparse``, as places and values where these are smaller."""
    numbers = value.detach().contiguous().numpy()
    if sparse and wire_size([value], 0, 0, sparse=True) < value.nbytes:
        places, values = packed(value)
        numbers = np.empty(len(places), _pairs(value.dtype))
        numbers["place"], numbers["value"] = places.numpy(), values.numpy()
    parts: list[bytes | memoryview] = [_header(numbers.shape, numbers.dtype), numbers.reshape(-1).view(np.uint8).data]
    return Array(str(numbers.dtype), tuple(numbers.shape), "numpy.ndarray", b"".join(parts))


def read(name: str, array: Array, form: Spec, most: Most | None = None) -> Tensor:
    """Return a vector, which must have this form and finite numbers; only with ``most`` may it be places and values."""
    data, dtype = array.data, _numpy(form.dtype)
    if not isinstance(data, bytes) or not OVERHEAD <= len(data) <= form.bytes + OVERHEAD:
        raise UsageError(f"{name} has {len(data)} bytes, but must have at most {form.bytes} and a header")
    if len(data) == form.bytes + OVERHEAD and data.startswith(_header(form.shape, dtype)):
        value = torch.from_numpy(np.frombuffer(data, dtype, offset=OVERHEAD).reshape(form.shape).copy())
        if most is not None and wire_size([value], 0, 0, sparse=True) < value.nbytes:
            raise UsageError(f"{name} is whole, but must be places and values: most of it is zero")
    elif most is not None and len(form.shape) == 1:
        value = _unpacked(name, data, form, most(form.shape[0]))
    else:
        raise UsageError(
            f"{name} is {shown(array.shape)} {shown(array.dtype)} in {len(data)} bytes, "
            f"but must be {form.shape} {dtype} in numpy's format 1.0"
        )
    if not all_finite(value):
        raise UsageError(f"{name} has a number that is not finite")
    return value


def _unpacked(name: str, data: bytes, form: Spec, most: int) -> Tensor:
    """Return a vector from its places and values."""
    kind, (size,) = _pairs(form.dtype), form.shape
    count, rest = divmod(len(data) - OVERHEAD, kind.itemsize)
    if rest or not data.startswith(_header((count,), kind)):
        raise UsageError(f"{name} is neither whole nor {count} places and values in numpy's format 1.0")
    if count > most:
        raise UsageError(f"{name} has {count} numbers, but may have {most}")
    pairs = np.frombuffer(data, kind, offset=OVERHEAD)
    places, values = pairs["place"].copy(), pairs["value"].copy()
    if count and not (places[0] >= 0 and places[-1] < size and (places[1:] > places[:-1]).all()):
        raise UsageError(f"the places of {name} are not rising numbers from 0 to {size - 1}")
    if not values.all():
        raise UsageError(f"{name} has a zero among its values")
    return unpacked(torch.from_numpy(places), torch.from_numpy(values), size)


def _numpy(dtype: torch.dtype) -> np.dtype[Any]:
    return torch.empty(0, dtype=dtype).numpy().dtype


def _pairs(dtype: torch.dtype) -> np.dtype[Any]:
    return np.dtype([("place", np.int32), ("value", _numpy(dtype))])


def _header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """Return the bytes before the numbers: numpy fills them up with spaces to 128."""
    stream = io.BytesIO()
    about = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, about)
    return stream.getvalue()
