"""What travels: named vectors and a small record about them, both checked against a schema on arrival.

Nothing that arrives is unpickled, and its size is compared with what is expected before anything is allocated.
"""

import io
import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from kedge.costs import trace
from kedge.errors import UsageError, shown
from kedge.exchange import Effort
from kedge.round import AnyAlgorithm, AnyExchange

ABOUT, FIELDS, BUFFERS = "about", "fields", "buffers"
"""The records of a message."""

OVERHEAD = 128
"""The bytes that a vector needs in addition to its numbers: the header of numpy's format."""

SENTENCE = 500
"""The most characters of a reason."""

Tag = Annotated[str, Field(pattern=r"^([0-9]{6}-[0-9]{10})?$")]
"""The version of a client's state: which start of the server, and which question since then; "" is a fresh client."""

_Count = Annotated[int, Field(ge=0, le=2**53)]


class Asked(BaseModel):
    """What a question says, besides its vectors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    rules: Annotated[str, Field(max_length=20_000)]  # algorithm and settings, which both ends must share
    experiment: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}\.[0-9a-f]{8}$")]
    client: _Count
    round: Annotated[int, Field(ge=-1, le=2**53)]
    exchange: _Count
    tag: Tag  # of the version that the answer makes
    base: Tag  # from which version the answer starts
    keep: Tag  # the version to which the server may return
    attempt: Tag  # the round's: its earlier messages are kept under this name
    evaluate: bool  # whether to evaluate the model on the client's own test data


class Told(BaseModel):
    """What a reply says, besides its vectors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    client: _Count
    tag: Tag
    gradients: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    test_samples: _Count = 0
    test_loss: Annotated[float, Field(allow_inf_nan=False)] | None = None
    test_accuracy: Annotated[float, Field(ge=0, le=1)] | None = None


class Refused(BaseModel):
    """A reply without an answer."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    refused: Annotated[str, Field(max_length=SENTENCE)]


class Present(BaseModel):
    """Who a node is: a client's number, or a name that the server gives a number to."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    client: Annotated[int, Field(ge=-1, le=2**53)]  # -1: the server decides
    name: Annotated[str, Field(max_length=100)]
    samples: Annotated[int, Field(ge=1, le=2**53)]


Record = TypeVar("Record", bound=BaseModel)


class Spec(NamedTuple):
    """The form of a vector."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """The size of its numbers."""
        return math.prod(self.shape) * self.dtype.itemsize


Layout = Mapping[str, Spec]
"""The vectors of a message."""


class Layouts(NamedTuple):
    """The forms of the question and the answer of an exchange."""

    down: Layout
    up: Layout

    @classmethod
    def of(cls, algorithm: AnyAlgorithm, exchange: AnyExchange, x: Tensor) -> "Layouts":
        """Find them by running the rules on a tiny vector; ``x`` gives the size and the dtype."""
        tiny, algorithm = torch.zeros(2, dtype=x.dtype), algorithm.at(0)
        server, client = algorithm.init_server(tiny), algorithm.init_client(tiny)
        up = trace(algorithm, exchange, server, client, Effort(steps=1), {}).up
        return cls(layout(exchange.broadcast(server), tiny, x), layout(up, tiny, x))


def layout(values: Any, tiny: Tensor, x: Tensor) -> Layout:
    """Return the forms of a NamedTuple that was made of ``tiny`` as they are for ``x``."""
    return {
        name: Spec(tuple(x.shape) if value.shape == tiny.shape else tuple(value.shape), value.dtype)
        for name, value in values._asdict().items()
    }


def pack(about: BaseModel, fields: Mapping[str, Tensor], buffers: Tensor | None = None) -> RecordDict:
    """Return a message."""
    values = {name: value for name, value in about.model_dump().items() if value is not None}
    records = RecordDict({ABOUT: ConfigRecord(values)})
    if fields:
        records[FIELDS] = ArrayRecord({name: Array(value.contiguous()) for name, value in fields.items()})
    if buffers is not None and buffers.numel():
        records[BUFFERS] = ArrayRecord({BUFFERS: Array(buffers)})
    return records


def payload(records: RecordDict) -> int:
    """Return the bytes of a message's vectors."""
    return sum(len(array.data) for record in records.array_records.values() for array in record.values())


def about(records: RecordDict, kind: type[Record]) -> Record:
    """Return what a message says about itself."""
    _check_records(records)
    try:
        return kind.model_validate(dict(records.config_records[ABOUT]))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])[:60]
        raise UsageError(f"a message is malformed: {place}: {first['msg'][:100]}") from None


def _check_records(records: RecordDict) -> None:
    if strange := set(records) - {ABOUT, FIELDS, BUFFERS}:
        raise UsageError(f"a message has a record {shown(min(strange))}, but only {ABOUT}, {FIELDS} and {BUFFERS}")
    if ABOUT not in records.config_records or {FIELDS, BUFFERS} & set(records) - set(records.array_records):
        raise UsageError("a message has records of other kinds than it must have")


def refusal(records: RecordDict) -> str | None:
    """Return why a client did not answer; None if it did."""
    record = records.config_records.get(ABOUT)
    return about(records, Refused).refused if record is not None and "refused" in record else None


def names(records: RecordDict) -> list[str]:
    """Return which vectors a message has."""
    return list(records.array_records[FIELDS]) if FIELDS in records.array_records else []


def unpack(records: RecordDict, forms: Layout, record: str = FIELDS) -> dict[str, Tensor]:
    """Return the vectors of a message, which must be these and have these forms, and finite numbers."""
    found: Mapping[str, Array] = records.array_records.get(record, {})
    if set(found) != set(forms):
        raise UsageError(f"a message has the vectors {_listed(found)}, but must have {_listed(forms)}")
    return {name: _read(name, found[name], form) for name, form in forms.items()}


def unpack_buffers(records: RecordDict, like: Tensor) -> Tensor:
    """Return the buffers of a message."""
    if not like.numel():
        unpack(records, {}, BUFFERS)
        return like
    return unpack(records, {BUFFERS: Spec(tuple(like.shape), like.dtype)}, BUFFERS)[BUFFERS]


def _listed(names: Iterable[str]) -> str:
    return shown(sorted(names)) if names else "none"


def _read(name: str, array: Array, form: Spec) -> Tensor:
    if not isinstance(array.data, bytes) or not form.bytes < len(array.data) <= form.bytes + OVERHEAD:
        raise UsageError(f"{name} has {len(array.data)} bytes, but must have {form.bytes} and a header")
    stream = io.BytesIO(array.data)
    try:
        if np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError("the version of its format")
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    except ValueError:
        raise UsageError(f"{name} is not an array in numpy's format 1.0") from None
    wanted = torch.empty(0, dtype=form.dtype).numpy().dtype
    if shape != form.shape or dtype != wanted:
        raise UsageError(f"{name} is {shown(shape)} {dtype}, but must be {form.shape} {wanted}")
    if len(array.data) - stream.tell() != form.bytes:
        raise UsageError(f"{name} has {len(array.data) - stream.tell()} bytes, but must have {form.bytes}")
    numbers = np.frombuffer(array.data, dtype, offset=stream.tell()).reshape(shape)
    value = torch.from_numpy(numbers.copy())
    if not torch.isfinite(value).all():
        raise UsageError(f"{name} has a number that is not finite")
    return value
