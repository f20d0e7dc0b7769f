import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from kedge.errors import UsageError
from kedge.problem import Federation


def pair(n: int, dim: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    return rng.normal(size=(n, dim)), rng.integers(0, 4, n)


def test_every_kind_of_client_gives_the_same_federation():
    pairs = [pair(4), pair(2), pair(5)]
    tensors = [(torch.from_numpy(X), torch.from_numpy(y)) for X, y in pairs]

    class Stream(IterableDataset):
        def __init__(self, data):
            self.data = data

        def __iter__(self):
            return iter(zip(*self.data, strict=True))

    kinds = [
        pairs,
        tensors,
        [(X.tolist(), y.tolist()) for X, y in pairs],
        [(list(X), list(y)) for X, y in tensors],
        [TensorDataset(X, y) for X, y in tensors],
        [Stream(data) for data in pairs],
    ]
    for clients in kinds:
        federation = Federation(clients, test=clients[1])
        assert len(federation) == 3
        assert tuple(federation.sizes) == (4, 2, 5)
        assert federation.features.dtype == torch.float64
        assert federation.labels.dtype == torch.int64
        for i, (X, y) in enumerate(tensors):
            assert torch.equal(federation.client(i)[0], X)
            assert torch.equal(federation.client(i)[1], y)
        assert torch.equal(federation.test[0], tensors[1][0])


def test_indices_share_the_samples_without_a_copy():
    X, y = pair(6)
    federation = Federation.from_indices(X, y, [np.array([4, 0]), [1, 2, 5]])
    assert federation.features.data_ptr() == X.ctypes.data
    assert tuple(federation.sizes) == (2, 3)
    assert all(index.dtype == torch.int64 for index in federation.indices)
    assert np.array_equal(federation.client(0)[0], X[[4, 0]])
    assert np.array_equal(federation.client(1)[1], y[[1, 2, 5]])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.uint8, np.int32])
def test_features_keep_their_dtype(dtype):
    X = np.ones((3, 2), dtype)
    federation = Federation([(X, [0, 1, 2])])
    assert federation.features.numpy().dtype == dtype


def test_float_targets_stay_float_and_integer_labels_become_int64():
    assert Federation([([[1.0]], np.array([2.5], np.float32))]).labels.dtype == torch.float32
    assert Federation([([[1.0]], np.array([2], np.uint8))]).labels.dtype == torch.int64


def test_arrays_that_torch_cannot_share_are_read_all_the_same():
    X = np.arange(6.0).reshape(3, 2)
    frozen = X.copy()
    frozen.flags.writeable = False
    for odd in (X[::-1], X.astype(">f8")[::-1], frozen[::-1], np.asfortranarray(X[::-1])):
        assert np.array_equal(Federation([(odd, [0, 1, 2])]).features, X[::-1])


def test_to_casts_floats_and_leaves_integers_and_the_original():
    X, y = pair(4)
    federation = Federation([(X, y)], test=(X, y))
    moved = federation.to(torch.float32, "cpu")
    assert moved.features.dtype == moved.test[0].dtype == torch.float32
    assert moved.labels.dtype == moved.test[1].dtype == torch.int64
    assert federation.features.dtype == torch.float64
    assert Federation([([[1]], [0.5])]).to(torch.float32).labels.dtype == torch.float32
    assert Federation([([[1]], [0])]).to(torch.float32).features.dtype == torch.int64
    assert federation.to(torch.float64).features.data_ptr() == federation.features.data_ptr()


def test_repr_counts_clients_samples_labels_and_test_samples():
    X, y = np.zeros((6, 784)), np.array([0, 1, 2, 0, 1, 2])
    federation = Federation([(X, y), (X, y)], (X, y))
    assert repr(federation) == "Federation(2 clients, 12 samples of shape (784,), 3 labels, 6 test samples)"
    real = Federation([(X, y / 2)])
    assert repr(real) == "Federation(1 client, 6 samples of shape (784,), real targets, no test set)"


class Unsized(Dataset):
    def __getitem__(self, i):
        return i, i


class NoPairs(Unsized):
    def __len__(self):
        return 2

    def __getitem__(self, i):
        return 1.0


GOOD = ([[1.0, 2.0]], [0])


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([], "a federation has 0 clients, but needs at least 1"),
        (3, "clients is of type int, but must be a list of"),
        ([GOOD, 5], "client 1 is of type int, but must be a pair"),
        ([GOOD, (1.0, 2)], "client 1 has a single number"),
        ([GOOD, GOOD, GOOD, ([], [])], "client 3 has no samples"),
        ([GOOD, (np.zeros((0, 2)), [])], "client 1 has no samples"),
        ([GOOD, ([[1.0, 2.0]], [0, 1])], "client 1 has 1 samples, but 2 labels"),
        ([GOOD, ([[1.0]], [0])], r"client 1 has features of shape \(1,\) .* but client 0 has .* \(2,\)"),
        ([GOOD, ([[1, 2]], [0])], "client 1 has features of .*int64 on cpu, but client 0 has .*float64"),
        ([GOOD, ([[1.0, 2.0]], [0.5])], "client 1 has labels of .*float64"),
        ([GOOD, ([[1.0, float("nan")]], [0]), GOOD], "client 1 has NaN in its features"),
        ([GOOD, GOOD, ([[1.0, float("inf")]], [0])], "client 2 has an infinity in its features"),
        ([([[1.0]], [0.5]), ([[1.0]], [float("nan")])], "client 1 has NaN in its labels"),
        ([([[1.0], [1.0, 2.0]], [0, 1])], "client 0's features are not an array of numbers"),
        ([([["a"]], [0])], "client 0's features are not an array of numbers"),
        ([([torch.zeros(2), torch.zeros(3)], [0, 1])], "client 0's features are not an array of numbers"),
        ([Unsized()], "client 0 is a Dataset without a length"),
        ([NoPairs()], "client 0 is a Dataset whose items are not pairs"),
    ],
)
def test_wrong_clients_are_refused_with_the_rule(clients, message):
    with pytest.raises(UsageError, match=message) as error:
        Federation(clients)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("features", "labels", "indices", "message"),
    [
        ([[1.0], [float("nan")]], [0, 1], [[0]], "sample 1 has NaN in its features"),
        ([[1.0], [2.0]], [0, 1], [], "a federation has 0 clients"),
        ([[1.0], [2.0]], [0, 1], [[0], []], "client 1 has no samples"),
        ([[1.0], [2.0]], [0, 1], [[0, 2]], "client 0 has the index 2, but the data set has only 2 samples"),
        ([[1.0], [2.0]], [0, 1], [[-1]], "client 0 has the index -1"),
        ([[1.0], [2.0]], [0, 1], [[0.5]], "client 0's indices must be a flat list of whole numbers"),
        ([[1.0], [2.0]], [0], [[0]], "the data set has 2 samples, but 1 labels"),
    ],
)
def test_wrong_indices_are_refused_with_the_rule(features, labels, indices, message):
    with pytest.raises(UsageError, match=message):
        Federation.from_indices(features, labels, indices)


def test_a_bad_value_past_the_first_block_is_found_at_its_place():
    X = np.zeros((10_000, 1))
    X[9_000] = np.nan
    with pytest.raises(UsageError, match="sample 9000 has NaN"):
        Federation.from_indices(X, np.zeros(10_000, int), [[0]])


def test_a_test_set_that_does_not_fit_is_refused():
    with pytest.raises(UsageError, match=r"the test set has features of shape \(1,\)"):
        Federation([GOOD], test=([[1.0]], [0]))
    with pytest.raises(UsageError, match="test sample 0 has NaN in its features"):
        Federation([GOOD], test=([[1.0, float("nan")]], [0]))


@pytest.mark.parametrize("i", [-1, 1])
def test_a_client_that_is_not_there_is_refused(i):
    with pytest.raises(UsageError, match=f"client is {i}, but the federation has clients 0 to 0"):
        Federation([GOOD]).client(i)
