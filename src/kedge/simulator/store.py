"""The clients' own state, made when a client first takes part."""

from collections.abc import Callable, Iterator
from typing import Any


class ClientStore:
    """Rows of client state; a client that never took part has the initial one and costs nothing."""

    def __init__(self, initial: Callable[[], Any]) -> None:
        self._initial = initial
        self._rows: dict[int, Any] = {}

    def __getitem__(self, client: int) -> Any:
        return self._rows[client] if client in self._rows else self._initial()

    def __setitem__(self, client: int, state: Any) -> None:
        if len(state):
            self._rows[client] = state

    def touched(self) -> Iterator[tuple[int, Any]]:
        """Return the clients that have a state of their own, and it."""
        return iter(sorted(self._rows.items()))
