"""Keyed randomness: a draw depends only on its key.

Philox is a counter-based generator (Salmon et al. 2011): the seed and the purpose are its key, the place (round,
exchange, client) is its counter. No draw depends on another, so the order of clients, the number of workers, the
other algorithms of a comparison, or an interruption cannot change what a client sees.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kedge.checks import affordable
from kedge.errors import shown

COHORT, MINIBATCH, NOISE, LOSS, HOLDOUT, SUBSET, SKIP, OWN_TEST, PRIVACY = range(9)
"""Purposes: who takes part, what data, dropout masks inside a model, whose reply is lost, which training samples
are held out, which test samples are used, which rounds skip communication, which samples a client tests on,
the noise that hides a reply."""


def keyed(seed: int, purpose: int, round: int, exchange: int = 0, client: int = 0) -> np.random.Generator:
    """Return the generator for one place; the opening is round -1."""
    return np.random.Generator(np.random.Philox(key=[seed, purpose], counter=[0, round + 1, exchange, client]))


def sample_cohort(seed: int, round: int, clients: int, size: int) -> list[int]:
    """Draw ``size`` of ``clients`` clients uniformly without replacement, in random order."""
    return [int(client) for client in keyed(seed, COHORT, round).choice(clients, size, replace=False)]


def draw_minibatches(
    seed: int,
    round: int,
    exchange: int,
    clients: Sequence[int],
    samples: Sequence[int] | NDArray[np.int64],
    counts: Sequence[int],
    batch_size: int,
) -> list[NDArray[np.int64]]:
    """Draw independent minibatches for each client, each uniform without replacement from its ``samples``.

    Return an array (count, batch_size) of sample numbers per client. Row j of a client does not depend on the
    count or on who else takes part.
    """
    # The numbers, the choices and their comparisons. Nothing else bounds the local steps.
    size = sum(counts) * batch_size
    affordable(f"{shown(max(counts))} minibatches of {shown(batch_size)} samples per client", 16 * size)
    uniform = [
        keyed(seed, MINIBATCH, round, exchange, client).random((count, batch_size))
        for client, count in zip(clients, counts, strict=True)
    ]
    chosen = distinct(np.concatenate(uniform), np.repeat(np.asarray(samples), counts))
    return np.split(chosen, np.cumsum(counts)[:-1])


def distinct(uniform: NDArray[np.float64], samples: NDArray[np.int64]) -> NDArray[np.int64]:
    """Turn each row of numbers in [0, 1) into as many distinct indices below its ``samples``: a uniform subset.

    Floyd's algorithm (Bentley 1987), for all rows at once; its cost does not depend on ``samples``.
    """
    chosen = np.empty(uniform.shape, dtype=np.int64)
    size = uniform.shape[1]
    for place in range(size):
        top = samples - size + place
        candidate = (uniform[:, place] * (top + 1)).astype(np.int64)
        taken = (chosen[:, :place] == candidate[:, None]).any(axis=1)
        chosen[:, place] = np.where(taken, top, candidate)
    return chosen
