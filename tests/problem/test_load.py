import numpy as np
import pytest
import torch

from kedge.errors import UsageError
from kedge.problem import load_dataset, load_federation

from .files import write_mnist


def test_a_named_data_set_is_divided_between_the_clients(tmp_path, small_sets):
    write_mnist(tmp_path / "MNIST" / "raw")
    federation = load_federation("mnist", clients=7, partition="dirichlet", alpha=0.2, seed=0, data_dir=tmp_path)
    assert len(federation) == 7
    assert sum(federation.sizes) == 30
    assert max(federation.sizes) - min(federation.sizes) <= 1
    assert len(federation.test[1]) == 10


def test_the_default_partition_is_by_user_where_there_are_users_and_else_dirichlet():
    federation = load_federation("synthetic", clients=12, seed=3)
    data = load_dataset("synthetic", seed=3, users=12)
    assert tuple(federation.sizes) == tuple(np.bincount(data.users))
    assert torch.equal(federation.client(4)[0], data.train[0][torch.from_numpy(data.users == 4)])
    default = load_federation("digits", clients=10, alpha=0.1)
    named = load_federation("digits", clients=10, alpha=0.1, partition="dirichlet")
    assert all(torch.equal(a, b) for a, b in zip(default.indices, named.indices, strict=True))


def test_options_reach_the_data_set_and_the_partition():
    federation = load_federation("synthetic", clients=5, users=20, synthetic_alpha=0.0)
    assert len(federation) == 5
    assert sum(federation.sizes) > 20 * 40
    dealt = load_federation("digits", clients=10, partition="shards", shards_per_client=1)
    assert max(len(dealt.client(i)[1].unique()) for i in range(10)) <= 2


def test_seed_decides_the_division():
    first, again, other = (load_federation("digits", clients=5, seed=seed).indices for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mnist", {"clients": 10**12}, "clients is 1000000000000, but the data set has only 60000 samples"),
        ("quadratics", {}, "quadratics brings its own clients"),
        ("digits", {"clients": 2000}, "clients is 2000, but the data set has only 1442 samples"),
        ("digits", {"partition": "by-user"}, "the data set has no users"),
        ("digits", {"partition": "iidd"}, "partition 'iidd' does not exist; did you mean 'iid'"),
        ("digits", {"shard": 3}, "data set 'digits' has no option 'shard'"),
        ("synthetic", {"clients": 0}, "clients is 0, but must be a whole number of at least 1"),
    ],
)
def test_wrong_requests_are_refused_with_the_rule(name, options, message):
    with pytest.raises(UsageError, match=message):
        load_federation(name, **options)


def test_a_holdout_is_taken_from_the_training_samples_before_they_are_divided():
    plain, held = (load_federation("digits", clients=5, alpha=0.2, seed=4, holdout=h) for h in (0.0, 0.1))
    out = round(0.1 * len(plain.labels))
    assert len(held.test[1]) == out
    assert sum(held.sizes) == len(plain.labels) - out
    given = torch.cat(list(held.indices))
    assert len(given.unique()) == len(given)
    rest = np.setdiff1d(np.arange(len(plain.labels)), given.numpy())
    assert torch.equal(held.test[0], plain.features[rest])
    assert torch.equal(held.test[1], plain.labels[rest])


def test_the_seed_decides_what_is_held_out():
    first, again, other = (load_federation("digits", clients=5, seed=s, holdout=0.2).test[0] for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_holdout_respects_users():
    federation = load_federation("synthetic", clients=6, seed=1, holdout=0.1)
    data = load_dataset("synthetic", seed=1, users=6)
    for client, index in enumerate(federation.indices):
        assert set(data.users[index.numpy()]) == {client}


@pytest.mark.parametrize(
    ("share", "message"),
    [
        (1.0, "holdout is 1, but must be at least 0 and below 1"),
        (-0.1, "holdout is -0.1, but must be finite and at least 0"),
        (1e-9, "holdout is 1e-09, but of 1442 samples that is 0"),
    ],
)
def test_a_wrong_holdout_is_refused(share, message):
    with pytest.raises(UsageError, match=message):
        load_federation("digits", clients=5, holdout=share)


def test_test_samples_draws_that_many():
    federation = load_federation("digits", clients=5, test_samples=50)
    assert len(federation.test[1]) == 50
    assert len(torch.unique(federation.test[0], dim=0)) == 50
    with pytest.raises(UsageError, match="test_samples is 5000, but there are only 355"):
        load_federation("digits", clients=5, test_samples=5000)


def test_what_is_held_out_takes_the_place_of_the_clients_own_test_sets_too():
    options = {"clients": 5, "partition": "iid", "client_tests": 0.2}
    whole, tuning = (load_federation("digits", holdout=share, **options) for share in (0.0, 0.1))
    assert len(whole.test[1]) == 355
    apart = [tuning.client(i)[0] for i in range(5)] + [tuning.client_tests.client(i)[0] for i in range(5)]
    trained = torch.cat([whole.client(i)[0] for i in range(5)])
    assert len(torch.cat(apart)) == len(trained)
    assert torch.equal(torch.cat(apart).sort(0).values, trained.sort(0).values)
    assert len(tuning.test[1]) == int(tuning.client_tests.sizes.sum())
    assert len(load_federation("digits", holdout=0.1, test_samples=50, **options).test[1]) == 50
