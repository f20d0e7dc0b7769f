"""Clients in parallel: threads of one process, each with its own engine and one compute thread."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import TypeVar

import torch

from kedge.simulator.engines import Engine

Item = TypeVar("Item")
Value = TypeVar("Value")

LARGE = 4_000_000
"""Models with more parameters run one client at a time on all threads: their operations are worth dividing."""

AHEAD = 4
"""Jobs per thread that may be in progress or queued while earlier replies are summed."""


def thread_count(parameters: int, random_module: bool, clients: int, wanted: int | None) -> int:
    """Return how many clients to run at once. A module that draws from torch's one generator runs alone."""
    available = torch.get_num_threads() if wanted is None else wanted
    return 1 if random_module or parameters >= LARGE else max(1, min(available, clients))


class Pool:
    """Runs a function over items, with one thread per engine; results come in the order of the items."""

    def __init__(self, engines: list[Engine]) -> None:
        self.engines = engines
        self._free: SimpleQueue[Engine] = SimpleQueue()
        for engine in engines:
            self._free.put(engine)
        self._pool = ThreadPoolExecutor(len(engines), "kedge", _one_thread) if len(engines) > 1 else None

    def map(self, function: Callable[[Engine, Item], Value], items: Iterable[Item]) -> Iterator[Value]:
        """Apply ``function(engine, item)``."""

        def apply(item: Item) -> Value:
            engine = self._free.get()
            try:
                with torch.no_grad():
                    return function(engine, item)
            finally:
                self._free.put(engine)

        return map(apply, items) if self._pool is None else self._ahead(self._pool, apply, items)

    def _ahead(
        self, pool: ThreadPoolExecutor, apply: Callable[[Item], Value], items: Iterable[Item]
    ) -> Iterator[Value]:
        """Limit how far ahead to compute: the replies of a whole federation need not fit in memory."""
        waiting: deque[Future[Value]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(apply, item))
                while waiting and (waiting[0].done() or len(waiting) > AHEAD * len(self.engines)):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()

    def close(self) -> None:
        """End the threads; from now on, `map` runs on the thread that calls it."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def _one_thread() -> None:
    torch.set_num_threads(1)
