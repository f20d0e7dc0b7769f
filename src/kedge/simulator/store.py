"""The clients' own state, made when a client first takes part."""

from collections.abc import Callable, Iterator
from typing import Any


class ClientStore:
    """Rows of client state; a client that never took part has the initial one and costs nothing."""

    def __init__(self, initial: Callable[[], Any]) -> None:
        self._initial = initial
        self._rows: dict[int, Any] = {}
        self._changed: set[int] = set()

    def __getitem__(self, client: int) -> Any:
        return self._rows[client] if client in self._rows else self._initial()

    def __setitem__(self, client: int, state: Any) -> None:
        if len(state):
            self._rows[client] = state
            self._changed.add(client)

    def touched(self) -> Iterator[tuple[int, Any]]:
        """Return the clients that have a state of their own, and it."""
        return iter(sorted(self._rows.items()))

    def clients(self, *, changed: bool) -> list[int]:
        """Return the clients that have a state of their own, or only those whose state is not settled."""
        return sorted(self._changed if changed else self._rows)

    def count_changed(self) -> int:
        """Count the clients whose state changed since it was last settled."""
        return len(self._changed)

    def settle(self) -> None:
        """Take the present state as saved."""
        self._changed.clear()
