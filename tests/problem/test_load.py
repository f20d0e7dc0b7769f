import numpy as np
import pytest
import torch

from kedge.errors import UsageError
from kedge.problem import load_dataset, load_federation

from .files import write_mnist


def test_a_named_data_set_is_divided_between_the_clients(tmp_path):
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
