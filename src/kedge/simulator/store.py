"""The clients' own state, created when a client first takes part: in memory up to a limit, then in a file."""

import math
import mmap
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kedge.errors import UsageError

Rows = dict[str, Tensor]
"""Rows of client state: the numbers of the `clients`, and a row of every field for each."""

PORTION = 1 << 27
"""How many bytes of client state are copied at a time."""


class ClientStore:
    """Rows of client state; a client that never took part has the initial state and costs nothing.

    The first rows stay in memory, up to ``limit`` bytes; those of later clients go to a scratch file in
    ``directory`` (None: the system's for temporary files). Cohorts are drawn uniformly, so no client is likelier to
    come back soon than another: keeping the latest in memory would save no reads, and cost a write for each.

    Threads may read while one thread writes the row of another client.
    """

    def __init__(self, initial: Callable[[], Any], limit: float = math.inf, directory: Path | None = None) -> None:
        self._initial = initial
        self._rows: dict[int, Any] = {}
        self._room = limit
        self._scratch = Scratch(directory)
        self._changed: set[int] = set()

    def __getitem__(self, client: int) -> Any:
        if client in self._rows:
            return self._rows[client]
        return self._scratch[client] if client in self._scratch else self._initial()

    def __setitem__(self, client: int, state: Any) -> None:
        if not len(state):
            return
        self._changed.add(client)
        if client in self._scratch:
            self._scratch[client] = state
        elif client in self._rows:
            self._rows[client] = state
        else:
            size = sum(vector.nbytes for vector in state)
            if size <= self._room:
                self._room -= size
                self._rows[client] = state
            else:
                self._scratch[client] = state

    def clients(self, *, changed: bool) -> list[int]:
        """Return the clients that have their own state, or only those whose state is not settled."""
        return sorted(self._changed if changed else [*self._rows, *self._scratch])

    def count_changed(self) -> int:
        """Count the clients whose state changed since it was last settled."""
        return len(self._changed)

    @cached_property
    def template(self) -> Rows:
        """One row, for its shapes."""
        row = self._initial()._asdict()
        vectors = {f"client.{name}": vector[None] for name, vector in row.items()}
        return {"clients": torch.zeros(1, dtype=torch.int64)} | vectors

    @property
    def is_empty(self) -> bool:
        """Whether the algorithm keeps no client state."""
        return len(self.template) == 1

    @property
    def row_bytes(self) -> int:
        """The size of one client's state."""
        return sum(tensor.nbytes for name, tensor in self.template.items() if name.startswith("client."))

    def rows(self, clients: list[int]) -> Rows:
        """Return the states of some clients."""
        if not clients:
            return {name: tensor[:0] for name, tensor in self.template.items()}
        states = [self[client] for client in clients]
        fields = zip(states[0]._fields, zip(*states, strict=True), strict=True)
        return {"clients": torch.tensor(clients)} | {f"client.{name}": torch.stack(rows) for name, rows in fields}

    def changed(self, clients: list[int]) -> Tensor:
        """Return, for some clients, whether their state changed since `settle`."""
        return torch.tensor([client in self._changed for client in clients], dtype=torch.uint8)

    def portions(self, *, changed: bool) -> Iterator[Rows]:
        """Return all rows, or those that changed since `settle`, in portions of bounded size."""
        size, clients = max(1, PORTION // max(1, self.row_bytes)), self.clients(changed=changed)
        return (self.rows(clients[at : at + size]) for at in range(0, len(clients), size))

    def put(self, rows: Rows, wanted: Callable[[int], bool] = lambda client: True) -> None:
        """Take rows of the wanted clients, by default all; ``rows["changed"]`` may say which are not settled."""
        kind, fields = type(self._initial()), {k: like for k, like in self.template.items() if k != "clients"}
        flags = rows.get("changed", torch.ones(len(rows["clients"]))).tolist()
        for at, client in enumerate(rows["clients"].tolist()):
            if wanted(client):  # copied, or one row would keep its whole portion in memory
                self[client] = kind(*(rows[name][at].to(like.device, copy=True) for name, like in fields.items()))
                if not flags[at]:
                    self._changed.discard(client)

    def drop(self, clients: Iterable[int]) -> None:
        """Forget clients whose state is now elsewhere."""
        for client in clients:
            self._changed.discard(client)
            if client in self._scratch:
                self._scratch.drop(client)
            elif client in self._rows:
                self._room += sum(vector.nbytes for vector in self._rows.pop(client))

    def settle(self) -> None:
        """Mark the current state as saved."""
        self._changed.clear()


class Scratch:
    """Rows of fixed shapes in an unnamed file, each mapped into memory only while it is read or written.

    Without a name the file needs no cleanup: its space is freed when the store is gone or the process ends,
    however it ends. A row that is read is a copy, so later writes do not change it.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._slots: dict[int, int] = {}
        self._free: list[int] = []
        self._end = 0  # how many slots the file has
        self._file: IO[bytes] | None = None
        self._kind: Any = None
        self._fields: list[tuple[torch.Size, torch.dtype, torch.device]] = []
        self._stride = 0

    def __contains__(self, client: int) -> bool:
        return client in self._slots

    def __iter__(self) -> Iterator[int]:
        return iter(self._slots)

    def __getitem__(self, client: int) -> Any:
        row, start, vectors = self._mapped(client, mmap.ACCESS_READ), 0, []
        for shape, dtype, device in self._fields:
            vector = torch.empty(shape, dtype=dtype)
            content = _bytes(vector)
            content[:] = row[start : start + content.size]
            start += content.size
            vectors.append(vector.to(device))
        return self._kind(*vectors)

    def __setitem__(self, client: int, state: Any) -> None:
        self._fit(state)
        content = np.concatenate([_bytes(vector) for vector in state])
        if client in self._slots:
            self._mapped(client, mmap.ACCESS_WRITE)[: content.size] = content
        else:
            slot = self._free.pop() if self._free else self._end
            self._write(content, slot)
            self._end = max(self._end, slot + 1)
            self._slots[client] = slot  # only now may readers find it

    def drop(self, client: int) -> None:
        """Free the place of a row."""
        self._free.append(self._slots.pop(client))

    def _fit(self, state: Any) -> None:
        fields = [(vector.shape, vector.dtype, vector.device) for vector in state]
        if not self._fields:
            size = sum(vector.nbytes for vector in state)
            self._kind, self._fields = type(state), fields
            self._stride = -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        if fields != self._fields:
            raise UsageError("an exchange has changed the shapes or dtypes of a client's state, but must keep them")

    def _write(self, content: NDArray[np.uint8], slot: int) -> None:
        """Write a new row, not through a map: on a full disk a map kills the process, but writing raises an error."""
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115  (closed with the store)
                weakref.finalize(self, self._file.close)
            self._file.seek(slot * self._stride)
            self._file.write(content.data)
            self._file.write(bytes(self._stride - content.size))
            self._file.flush()
        except OSError as error:
            place = self._directory or tempfile.gettempdir()
            raise UsageError(
                f"the clients' state beyond state_memory cannot be written in {place}: {error.strerror}"
            ) from error

    def _mapped(self, client: int, access: int) -> NDArray[np.uint8]:
        """Return the row as bytes; the array keeps the map alive."""
        assert self._file is not None
        place = self._slots[client] * self._stride
        return np.frombuffer(mmap.mmap(self._file.fileno(), self._stride, access=access, offset=place), np.uint8)


def _bytes(vector: Tensor) -> NDArray[np.uint8]:
    """Return the bytes of a tensor; they are its own if it is contiguous and on the CPU."""
    content: NDArray[np.uint8] = vector.detach().cpu().reshape(-1).view(torch.uint8).numpy()
    return content
