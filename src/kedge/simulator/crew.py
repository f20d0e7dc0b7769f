"""The clients' half of an exchange for a whole cohort: in groups, one group per thread at a time."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kedge.exchange import Effort, Needs
from kedge.round import Member, Question, Reply, Rules, answer
from kedge.simulator.engines import Engine
from kedge.simulator.engines.base import compute_threads
from kedge.simulator.pool import LARGE, Pool


@dataclass(frozen=True)
class Crew:
    """Plays the clients."""

    rules: Rules
    sizes: NDArray[np.int64]
    parameters: int
    pool: Pool

    def replies(
        self, question: Question, needs: Needs, clients: list[int], state: Callable[[int], Any]
    ) -> Iterator[Reply]:
        """Compute the replies of these clients, each from its ``state(client)``, and return them in their order."""
        if not clients:
            return
        samples = self.sizes[clients]
        steps = self.rules.settings.steps(samples)
        efforts = [question.exchange.effort(Effort(int(count))) for count in steps]

        def play(engine: Engine, part: slice) -> list[Reply]:
            numbers = zip(clients[part], samples[part].tolist(), strict=True)
            members = [Member(client, count, state(client)) for client, count in numbers]
            return answer(self.rules, question, needs, members, engine.run)

        parts = self._parts(efforts, samples)
        # Large models divide their operations between the threads; otherwise each client has one thread.
        with compute_threads(1 if self.parameters < LARGE else None):
            for replies in self.pool.map(play, parts):
                yield from replies

    def _parts(self, efforts: Sequence[Effort], samples: NDArray[np.int64]) -> list[slice]:
        """Divide a cohort into groups that run together: equal efforts within a group, and work for every thread."""
        engine, threads = self.pool.engines[0], len(self.pool.engines)
        size, minibatches = self.rules.settings.batch_size, efforts[0].minibatches
        small = size is not None and minibatches is not None and int(samples.min()) < size
        if small or any(effort != efforts[0] for effort in efforts):
            most = 1
        else:
            most = engine.group(None if size is None or minibatches is None else size * minibatches)
        count = max(-(-len(efforts) // most), min(len(efforts), threads))
        ends = [len(efforts) * part // count for part in range(count + 1)]
        return [slice(begin, end) for begin, end in itertools.pairwise(ends)]
