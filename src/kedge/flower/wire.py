"""What travels: named vectors and a small record about them, both checked against a schema on arrival.

Nothing that arrives is unpickled, and its size is compared with what is expected before anything is allocated.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, NamedTuple, TypeVar

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from kedge.costs import trace
from kedge.errors import UsageError, shown
from kedge.exchange import Effort
from kedge.flower.arrays import Most, Spec, read, written
from kedge.round import AnyAlgorithm, AnyExchange

ABOUT, FIELDS, BUFFERS = "about", "fields", "buffers"
"""The records of a message."""

SENTENCE = 500
"""The most characters of a reason."""

Tag = Annotated[str, Field(pattern=r"^([0-9]{6}-[0-9]{10})?$")]
"""The version of a client's state: which start of the server, and which question since then; "" is a fresh client."""

_Count = Annotated[int, Field(ge=0, le=2**53)]

_Real = Annotated[float, Field(ge=-1e300, le=1e300)]
"""A number of a client's: the sum of many of them is finite, too."""


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
    gradients: Annotated[float, Field(ge=0, le=2**53)]
    test_samples: _Count = 0
    test_loss: _Real | None = None
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
Kind = TypeVar("Kind", ArrayRecord, ConfigRecord)


Layout = Mapping[str, Spec]
"""The vectors of a message."""


class Layouts(NamedTuple):
    """The forms of the question and the answer of an exchange."""

    down: Layout
    up: Layout

    @classmethod
    def of(cls, algorithm: AnyAlgorithm, exchange: AnyExchange, x: Spec) -> "Layouts":
        """Find them by running the rules on a tiny vector; ``x`` is the form of the model."""
        tiny, algorithm = torch.zeros(2, dtype=x.dtype), algorithm.at(0)
        server, client = algorithm.init_server(tiny), algorithm.init_client(tiny)
        up = trace(algorithm, exchange, server, client, Effort(steps=1), {}).up
        return cls(layout(exchange.broadcast(server), tiny, x), layout(up, tiny, x))


def layout(values: Any, tiny: Tensor, x: Spec) -> Layout:
    """Return the forms of a NamedTuple that was made of ``tiny`` as they are for ``x``."""
    return {
        name: Spec(x.shape if value.shape == tiny.shape else tuple(value.shape), value.dtype)
        for name, value in values._asdict().items()
    }


def pack(
    about: BaseModel, fields: Mapping[str, Tensor], buffers: Tensor | None = None, *, sparse: bool = False
) -> RecordDict:
    """Return a message; if ``sparse``, its vectors are places and values where these are smaller."""
    values = {name: value for name, value in about.model_dump().items() if value is not None}
    records = RecordDict({ABOUT: ConfigRecord(values)})
    if fields:
        records[FIELDS] = ArrayRecord({name: written(value, sparse=sparse) for name, value in fields.items()})
    if buffers is not None and buffers.numel():
        records[BUFFERS] = ArrayRecord({BUFFERS: written(buffers, sparse=sparse)})
    return records


def payload(records: RecordDict) -> int:
    """Return the bytes of a message's vectors."""
    return sum(len(array.data) for record in _of(ArrayRecord, records).values() for array in record.values())


def _of(kind: type[Kind], records: RecordDict) -> dict[str, Kind]:
    """Return the records of a kind; Flower's own views of them are cycles, which keep a message's vectors in memory."""
    return {name: record for name, record in records.items() if isinstance(record, kind)}


def about(records: RecordDict, kind: type[Record]) -> Record:
    """Return what a message says about itself."""
    found = _of(ConfigRecord, records).get(ABOUT)
    if strange := set(records) - {ABOUT, FIELDS, BUFFERS}:
        raise UsageError(f"a message has a record {shown(min(strange))}, but only {ABOUT}, {FIELDS} and {BUFFERS}")
    if found is None or {FIELDS, BUFFERS} & set(records) - set(_of(ArrayRecord, records)):
        raise UsageError("a message has records of other kinds than it must have")
    try:
        return kind.model_validate(dict(found))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])[:60]
        raise UsageError(f"a message is malformed: {place}: {first['msg'][:100]}") from None


def refusal(records: RecordDict) -> str | None:
    """Return why a client did not answer; None if it did."""
    record = _of(ConfigRecord, records).get(ABOUT)
    return about(records, Refused).refused if record is not None and "refused" in record else None


def plain(text: object) -> str:
    """Return what others wrote on one line for a log, without terminal escape sequences."""
    return "".join(letter if letter.isprintable() else " " for letter in str(text))


def names(records: RecordDict) -> list[str]:
    """Return which vectors a message has."""
    return list(_of(ArrayRecord, records).get(FIELDS, ()))


def unpack(records: RecordDict, forms: Layout, record: str = FIELDS, most: Most | None = None) -> dict[str, Tensor]:
    """Take the vectors out of a message, which must be these and have these forms, and finite numbers.

    The message loses them, so that they are not in memory twice. With ``most`` they may be places and values.
    """
    arrays = records.pop(record, None)
    found: dict[str, Array] = dict(arrays) if isinstance(arrays, ArrayRecord) else {}
    del arrays
    if set(found) != set(forms):
        raise UsageError(f"a message has the vectors {_listed(found)}, but must have {_listed(forms)}")
    return {name: read(name, found.pop(name), form, most) for name, form in forms.items()}


def unpack_buffers(records: RecordDict, like: Tensor, *, sparse: bool = False) -> Tensor:
    """Take the buffers out of a message."""
    if not like.numel():
        unpack(records, {}, BUFFERS)
        return like
    return unpack(records, {BUFFERS: Spec.of(like)}, BUFFERS, (lambda size: size) if sparse else None)[BUFFERS]


def _listed(names: Iterable[str]) -> str:
    return shown(sorted(names)) if names else "none"
