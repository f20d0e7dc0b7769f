"""Ways to divide a labelled data set between clients, each sample to exactly one client.

``iid``                a random split into equal parts.
``dirichlet``          equal parts, label mixtures from a Dirichlet distribution: Hsu, Qi and Brown, "Measuring
                       the Effects of Non-Identical Data Distribution for Federated Visual Classification" (2019).
``dirichlet-by-class`` each class split by a Dirichlet draw over the clients: Yurochkin et al., "Bayesian
                       Nonparametric Federated Learning of Neural Networks" (ICML 2019).
``shards``             sorted by label, cut and dealt: McMahan et al. (AISTATS 2017).
``quantity``           unequal sizes, similar labels: Li et al., "Federated Learning on Non-IID Data Silos" (2022).
``by-user``            the data set's own users.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kedge.checks import real, whole, whole_seed
from kedge.errors import UsageError, unknown

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_REDRAWS = 10


@dataclass(frozen=True)
class _Deal:
    """What a partition needs: ``codes`` are the labels as 0..classes-1."""

    rng: np.random.Generator
    codes: Ints
    clients: int
    alpha: float
    shards_per_client: int
    users: npt.NDArray[Any] | None


def _draw(deal: _Deal, concentration: float, parts: int, size: int) -> Floats:
    """Draw ``size`` points of the symmetric Dirichlet distribution."""
    # Beyond these bounds a draw is one-hot or uniform to rounding, and numpy's own sums under- or overflow.
    bounded = float(np.clip(concentration, 1e-9, 1e9))
    return deal.rng.dirichlet(np.full(parts, bounded), size)


def _apportion(shares: Floats, total: int) -> Ints:
    """Round ``shares * total`` to whole numbers that add up to ``total``."""
    ends = np.rint(np.cumsum(shares) * total).astype(np.int64)
    ends[-1] = total
    return np.diff(ends, prepend=0)


def _balanced(total: int, parts: int) -> Ints:
    """Return ``parts`` sizes that differ by at most one."""
    return total // parts + (np.arange(parts) < total % parts)


def _group(owner: Ints, clients: int) -> list[Ints]:
    ends = np.cumsum(np.bincount(owner, minlength=clients))
    return np.split(np.argsort(owner, kind="stable"), ends[:-1])


def iid(deal: _Deal) -> Ints:
    """Deal the samples at random into parts whose sizes differ by at most one."""
    return deal.rng.permutation(np.arange(len(deal.codes)) % deal.clients)


def dirichlet(deal: _Deal) -> Ints:
    """Give every client a label mixture from the symmetric Dirichlet distribution of concentration alpha per class.

    This is one common reading of "Dirichlet(alpha)". In their own notation, Dir(alpha p) with p a
    distribution over C classes, the same division has the parameter C alpha. The clients draw in turn and without
    replacement; when a class runs out, the client's mixture is renormalised over the
    classes left (or, if it has no mass there, replaced by what is left).
    """
    left = np.bincount(deal.codes)
    mixtures = _draw(deal, deal.alpha, len(left), deal.clients)
    taken = np.zeros((deal.clients, len(left)), np.int64)
    for mine, mixture, size in zip(taken, mixtures, _balanced(len(deal.codes), deal.clients), strict=True):
        while (need := size - mine.sum()) > 0:
            weights = np.where(left > 0, mixture, 0.0)
            if weights.sum() == 0:
                weights = left.astype(float)
            drawn = np.minimum(deal.rng.multinomial(need, weights / weights.sum()), left)
            mine += drawn
            left -= drawn
    return _hand_out(deal, taken)


def dirichlet_by_class(deal: _Deal) -> Ints:
    """Divide each class over the clients by a draw of Dir(alpha): the sizes are unequal.

    A division with an empty client is drawn again, up to ten times; after that each empty client receives one
    random sample of the client that is largest at the time.
    """
    counts = np.bincount(deal.codes)
    for _ in range(_REDRAWS):
        shares = _draw(deal, deal.alpha, deal.clients, len(counts))
        taken = np.stack([_apportion(share, n) for share, n in zip(shares, counts, strict=True)], axis=1)
        if taken.sum(axis=1).all():
            return _hand_out(deal, taken)
    owner = _hand_out(deal, taken)
    held = [part.tolist() for part in _group(owner, deal.clients)]
    largest = [(-len(part), k) for k, part in enumerate(held)]
    heapq.heapify(largest)
    for empty in (k for k, part in enumerate(held) if not part):
        donor = largest[0][1]
        owner[held[donor].pop(deal.rng.integers(len(held[donor])))] = empty
        heapq.heapreplace(largest, (-len(held[donor]), donor))
    return owner


def _hand_out(deal: _Deal, taken: Ints) -> Ints:
    """Choose at random which ``taken[k, c]`` samples of class c go to client k."""
    owner = np.empty(len(deal.codes), np.int64)
    for code in range(taken.shape[1]):
        members = deal.rng.permutation(np.flatnonzero(deal.codes == code))
        owner[members] = np.repeat(np.arange(deal.clients), taken[:, code])
    return owner


def shards(deal: _Deal) -> Ints:
    """Sort by label, cut into clients * shards_per_client shards of equal size and deal them at random."""
    pieces = deal.clients * deal.shards_per_client
    if pieces > len(deal.codes):
        raise UsageError(
            f"clients * shards_per_client is {pieces}, but the data set has only {len(deal.codes)} samples"
        )
    mixed = deal.rng.permutation(len(deal.codes))
    by_label = mixed[np.argsort(deal.codes[mixed], kind="stable")]
    holder = deal.rng.permutation(np.arange(pieces) % deal.clients)
    owner = np.empty(len(deal.codes), np.int64)
    owner[by_label] = np.repeat(holder, _balanced(len(deal.codes), pieces))
    return owner


def quantity(deal: _Deal) -> Ints:
    """Give every client one sample, and a Dir(alpha) share of the rest, at random."""
    share = _draw(deal, deal.alpha, deal.clients, 1)[0]
    sizes = 1 + _apportion(share, len(deal.codes) - deal.clients)
    return deal.rng.permutation(np.repeat(np.arange(deal.clients), sizes))


def by_user(deal: _Deal) -> Ints:
    """Make one client of each user, in the order of their ids, or deal the users out if there are fewer clients."""
    if deal.users is None:
        raise UsageError("partition 'by-user' needs the user of every sample, but the data set has no users")
    if len(deal.users) != len(deal.codes):
        raise UsageError(f"users has {len(deal.users)} entries, but the data set has {len(deal.codes)} samples")
    names, user = np.unique(deal.users, return_inverse=True)
    if deal.clients > len(names):
        raise UsageError(f"clients is {deal.clients}, but the data set has only {len(names)} users")
    holder = np.arange(len(names)) % deal.clients
    if deal.clients < len(names):
        holder = deal.rng.permutation(holder)
    return holder[user]


PARTITIONS: dict[str, Callable[[_Deal], Ints]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "dirichlet-by-class": dirichlet_by_class,
    "shards": shards,
    "quantity": quantity,
    "by-user": by_user,
}

WITH_ALPHA = frozenset({"dirichlet", "dirichlet-by-class", "quantity"})
"""The partitions that have a concentration."""


def split(
    method: str,
    labels: npt.NDArray[Any],
    clients: int,
    *,
    seed: int,
    alpha: float = 0.5,
    shards_per_client: int = 2,
    users: npt.NDArray[Any] | None = None,
) -> list[Ints]:
    """Return the ascending sample indices of each client; no client is empty, and every sample has one client."""
    if method not in PARTITIONS:
        raise unknown("partition", method, PARTITIONS)
    labels = np.asarray(labels)
    if labels.ndim != 1:
        raise UsageError(f"labels has the shape {labels.shape}, but a partition needs one label per sample")
    if whole("clients", clients, 1) > len(labels):
        raise UsageError(f"clients is {clients}, but the data set has only {len(labels)} samples")
    deal = _Deal(
        np.random.Generator(np.random.Philox(whole_seed(seed))),
        np.unique(labels, return_inverse=True)[1],
        int(clients),
        real("alpha", alpha, positive=True),
        whole("shards_per_client", shards_per_client, 1),
        users,
    )
    return _group(PARTITIONS[method](deal), deal.clients)


@dataclass(frozen=True, eq=False)
class PartitionStatistics:
    """How unequal the clients of a partition are.

    ``label_counts`` is clients x classes; ``entropies`` are those of the clients' labels in bits;
    ``mean_pairwise_distance`` is the mean total-variation distance between the label distributions of two
    clients; ``mean_global_distance`` is the one from the whole data set's, weighted by the clients' sizes.
    """

    smallest: int
    median: float
    largest: int
    label_counts: Ints
    entropies: Floats
    mean_entropy: float
    mean_pairwise_distance: float
    mean_global_distance: float


def describe(labels: npt.NDArray[Any], parts: Sequence[npt.NDArray[Any]]) -> PartitionStatistics:
    """Measure the partition ``parts`` of the samples with these ``labels``."""
    if not parts or not all(len(part) for part in parts):
        raise UsageError("a partition must have at least 1 client and no client without samples")
    classes, codes = np.unique(labels, return_inverse=True)
    counts = np.stack([np.bincount(codes[part], minlength=len(classes)) for part in parts])
    sizes = counts.sum(axis=1)
    shares = counts / sizes[:, None]
    # Zeros are replaced by ones, whose logarithm is 0: 0 log 0 = 0.
    entropies = -(shares * np.log2(np.where(shares > 0, shares, 1.0))).sum(axis=1) + 0.0
    whole_share = counts.sum(axis=0) / counts.sum()
    n = len(parts)
    # In ascending order the value at rank k is the larger of k pairs and the smaller of n - 1 - k.
    ranks = 2 * np.arange(n) - (n - 1)
    gaps = float((ranks[:, None] * np.sort(shares, axis=0)).sum()) / 2
    return PartitionStatistics(
        smallest=int(sizes.min()),
        median=float(np.median(sizes)),
        largest=int(sizes.max()),
        label_counts=counts,
        entropies=entropies,
        mean_entropy=float(entropies.mean()),
        mean_pairwise_distance=gaps / (n * (n - 1) / 2) if n > 1 else 0.0,
        mean_global_distance=float((sizes * np.abs(shares - whole_share).sum(axis=1)).sum() / sizes.sum() / 2),
    )
