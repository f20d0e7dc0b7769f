import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kedge.errors import UsageError
from kedge.problem import PARTITIONS, describe, split


@st.composite
def requests(draw):
    labels = np.array(draw(st.lists(st.sampled_from([0, 1, 2, 7]), min_size=1, max_size=120)))
    clients = draw(st.integers(1, len(labels)))
    options = {
        "alpha": draw(st.sampled_from([1e-300, 1e-3, 0.1, 1.0, 100.0, 1e300])),
        "shards_per_client": draw(st.integers(1, len(labels) // clients)),
        "seed": draw(st.integers(0, 2**63 - 1)),
        "users": np.arange(len(labels)) % draw(st.integers(clients, len(labels))),
    }
    return labels, clients, options


@pytest.mark.parametrize("method", PARTITIONS)
@settings(max_examples=40, deadline=None)
@given(request=requests())
def test_every_sample_has_one_client_and_no_client_is_empty(method, request):
    labels, clients, options = request
    parts = split(method, labels, clients, **options)
    assert len(parts) == clients
    assert min(len(part) for part in parts) >= 1
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))


@pytest.mark.parametrize("method", ["iid", "dirichlet"])
@settings(max_examples=40, deadline=None)
@given(request=requests())
def test_sizes_differ_by_at_most_one(method, request):
    labels, clients, options = request
    sizes = [len(part) for part in split(method, labels, clients, **options)]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("method", PARTITIONS)
def test_the_seed_alone_decides(method):
    labels = np.arange(300) % 5
    users = np.arange(300) % 30

    def drawn(seed):
        return [part.tolist() for part in split(method, labels, 10, seed=seed, users=users)]

    first = drawn(3)
    np.random.seed(99)  # noqa: NPY002
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    assert drawn(3) == first
    assert drawn(4) != first
    assert np.array_equal(np.random.get_state()[1], state)  # noqa: NPY002


@pytest.mark.parametrize("method", ["dirichlet", "dirichlet-by-class"])
def test_labels_are_the_more_unequal_the_smaller_alpha(method):
    labels = np.arange(5000) % 10
    distances = [
        describe(labels, split(method, labels, 50, seed=0, alpha=alpha)).mean_pairwise_distance
        for alpha in (0.05, 0.5, 5.0, 500.0)
    ]
    assert distances == sorted(distances, reverse=True)
    assert distances[0] > 2 * distances[-1]


def test_sizes_are_the_more_unequal_the_smaller_alpha():
    labels = np.arange(5000) % 10
    largest = [
        describe(labels, split("quantity", labels, 50, seed=0, alpha=alpha)).largest
        for alpha in (0.05, 0.5, 5.0, 500.0)
    ]
    assert largest == sorted(largest, reverse=True)


def test_dirichlet_mixtures_have_the_spread_of_concentration_alpha_per_class():
    # The variance of a share under Dir(alpha, ...) is (1/C)(1 - 1/C) / (C alpha + 1); the half of the
    # clients that draw first meet no exhausted class, and a draw of 500 adds little of its own.
    labels = np.repeat(np.arange(4), 250_000)
    for alpha in (1.0, 10.0):
        parts = split("dirichlet", labels, 2000, seed=1, alpha=alpha)[:1000]
        shares = np.stack([np.bincount(labels[part], minlength=4) / len(part) for part in parts])
        assert shares.var() == pytest.approx(0.25 * 0.75 / (4 * alpha + 1), rel=0.1)


def test_shards_give_each_client_few_labels():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 100))
    parts = split("shards", labels, 50, seed=0, shards_per_client=2)
    assert {len(part) for part in parts} == {20}
    assert max(len(set(labels[part])) for part in parts) == 2


def test_each_user_is_one_client_or_whole_within_one():
    users = np.random.default_rng(0).integers(100, 112, 400)
    labels = np.zeros(400, int)
    parts = split("by-user", labels, 12, seed=0, users=users)
    assert [set(users[part]) for part in parts] == [{user} for user in range(100, 112)]
    parts = split("by-user", labels, 5, seed=0, users=users)
    held = [set(users[part]) for part in parts]
    assert sorted(itertools.chain(*held)) == list(range(100, 112))
    assert {len(group) for group in held} == {2, 3}


def test_by_class_still_fills_every_client_when_redrawing_cannot():
    labels = np.zeros(40, int)
    parts = split("dirichlet-by-class", labels, 40, seed=0, alpha=1e-6)
    assert [len(part) for part in parts] == [1] * 40


def test_dirichlet_divides_sixty_thousand_samples_over_a_thousand_clients_within_a_second():
    labels = np.random.default_rng(0).integers(0, 10, 60_000)
    start = time.perf_counter()
    split("dirichlet", labels, 1000, seed=0, alpha=0.1)
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("iid", {"clients": 2000}, "clients is 2000, but the data set has only 1797 samples"),
        ("iid", {"clients": 0}, "clients is 0, but must be a whole number of at least 1"),
        ("iid", {"clients": 2.5}, "clients is 2.5, but must be a whole number"),
        ("iid", {"seed": -1}, "seed is -1, but must be a whole number from 0"),
        ("dirichlet", {"alpha": 0}, "alpha is 0, but must be finite and above 0"),
        ("dirichlet", {"alpha": float("nan")}, "alpha is nan, but must be finite and above 0"),
        ("dirichlet", {"alpha": "big"}, "alpha is 'big', but must be finite"),
        ("shards", {"shards_per_client": 0}, "shards_per_client is 0"),
        ("shards", {"shards_per_client": 200}, "clients \\* shards_per_client is 2000, .* only 1797 samples"),
        ("by-user", {}, "needs the user of every sample, but the data set has no users"),
        ("by-user", {"users": np.arange(1797) % 9}, "clients is 10, but the data set has only 9 users"),
        ("by-user", {"users": np.arange(5)}, "users has 5 entries, but the data set has 1797 samples"),
        ("iid", {"labels": np.zeros((4, 2))}, r"labels has the shape \(4, 2\)"),
        ("dirichlett", {}, "partition 'dirichlett' does not exist; did you mean 'dirichlet'"),
    ],
)
def test_wrong_requests_are_refused_with_the_rule(method, options, message):
    request = {"labels": np.arange(1797) % 10, "clients": 10, "seed": 0} | options
    with pytest.raises(UsageError, match=message):
        split(method, **request)


def test_statistics_of_a_partition_computed_by_hand():
    labels = np.array([0, 0, 1, 1, 2, 2])
    stats = describe(labels, [np.array([0, 1]), np.array([2, 4]), np.array([3, 5])])
    assert (stats.smallest, stats.median, stats.largest) == (2, 2.0, 2)
    assert stats.label_counts.tolist() == [[2, 0, 0], [0, 1, 1], [0, 1, 1]]
    assert stats.entropies.tolist() == [0.0, 1.0, 1.0]
    assert stats.mean_entropy == pytest.approx(2 / 3)
    assert stats.mean_pairwise_distance == pytest.approx((1 + 1 + 0) / 3)
    assert stats.mean_global_distance == pytest.approx((2 / 3 + 1 / 3 + 1 / 3) / 3)


@settings(max_examples=30, deadline=None)
@given(request=requests())
def test_pairwise_distance_is_the_mean_over_all_pairs(request):
    labels, clients, options = request
    stats = describe(labels, split("quantity", labels, clients, **options))
    shares = stats.label_counts / stats.label_counts.sum(axis=1, keepdims=True)
    gaps = [np.abs(a - b).sum() / 2 for a, b in itertools.combinations(shares, 2)]
    assert stats.mean_pairwise_distance == pytest.approx(np.mean(gaps) if gaps else 0.0, abs=1e-12)


def test_statistics_refuse_an_empty_client():
    with pytest.raises(UsageError, match="no client without samples"):
        describe(np.array([0, 1]), [np.array([0, 1]), np.array([], int)])
