import gzip

import numpy as np
import pytest
import torch

from kedge.errors import UsageError
from kedge.problem import DATASETS, MODELS, PARTITIONS, load_dataset
from kedge.problem.datasets import mnist

from .files import cifar100_pickle, cifar_arrays, cifar_binary, cifar_pickle, idx_bytes, write_mnist

FOLDERS = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}


def test_digits_are_scaled_stratified_and_the_same_for_every_seed():
    data = load_dataset("digits")
    X, y = data.train
    X_test, y_test = data.test
    assert X.shape == (1442, 64)
    assert len(y_test) == 1797 - 1442
    assert X.dtype == torch.float32
    assert X.min() == 0
    assert X.max() == 1
    counts, test_counts = (torch.bincount(labels, minlength=10) for labels in (y, y_test))
    assert ((test_counts / (counts + test_counts) - 0.2).abs() < 0.01).all()
    assert torch.equal(load_dataset("digits", seed=9).train[0], X)
    together = torch.cat([X, X_test])
    assert len(together.unique(dim=0)) == 1797


def test_synthetic_users_have_bounded_sizes_and_a_fifth_held_out():
    data = load_dataset("synthetic", seed=1, users=40)
    X, y = data.train
    assert X.shape[1] == 60
    assert X.dtype == torch.float32
    assert data.classes == 10
    assert int(y.max()) <= 9
    sizes = np.bincount(data.users)
    assert len(sizes) == 40
    assert sizes.min() >= 40
    assert sizes.max() <= 800
    assert len(set(sizes)) > 10
    assert len(data.test[1]) == pytest.approx(len(y) / 4, rel=0.05)


def test_synthetic_features_have_the_variance_of_the_paper():
    # Within a user the variance of feature j is j^-1.2, whatever its mean.
    data = load_dataset("synthetic", seed=0, users=60)
    X = data.train[0].numpy().astype(float)
    within = np.concatenate([X[data.users == user] - X[data.users == user].mean(0) for user in range(60)])
    assert within.var(0) == pytest.approx(np.arange(1, 61) ** -1.2, rel=0.1)


def test_synthetic_users_differ_the_more_the_larger_beta():
    def spread(beta):
        data = load_dataset("synthetic", users=50, synthetic_beta=beta)
        X = data.train[0].numpy()
        return np.var([X[data.users == user].mean() for user in range(50)])

    assert spread(0.0) < 0.1 < 4 < spread(3.0)


def test_synthetic_is_decided_by_its_seed():
    first, again, other = (load_dataset("synthetic", seed=seed).train[0] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert first.shape != other.shape or not torch.equal(first, other)


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("packed", [False, True])
def test_idx_data_sets_are_read_from_torchvisions_layout(tmp_path, small_sets, name, packed):
    arrays = write_mnist(tmp_path / FOLDERS[name] / "raw", packed)
    data = load_dataset(name, tmp_path, download=False)
    assert data.train[0].shape == (30, 1, 28, 28)
    assert data.test[0].shape == (10, 1, 28, 28)
    assert data.train[0].dtype == torch.float32
    assert np.array_equal(data.train[1], arrays["train-labels-idx1-ubyte"])
    mean, deviation = {"mnist": (0.1307, 0.3081), "fashion-mnist": (0.2860, 0.3530)}[name]
    pixels = (data.test[0][:, 0] * deviation + mean) * 255
    assert np.allclose(pixels, arrays["t10k-images-idx3-ubyte"], atol=1e-3)


@pytest.mark.parametrize("version", ["bin", "py"])
def test_cifar_is_read_from_either_version(tmp_path, small_sets, version):
    folder = tmp_path / f"cifar-10-batches-{version}"
    folder.mkdir()
    arrays = cifar_arrays()
    for name, batch in arrays.items():
        if version == "bin":
            (folder / f"{name}.bin").write_bytes(cifar_binary(*batch))
        else:
            (folder / name).write_bytes(cifar_pickle(*batch))
    data = load_dataset("cifar10", tmp_path, download=False)
    assert data.train[0].shape == (20, 3, 32, 32)
    assert data.test[0].shape == (4, 3, 32, 32)
    assert np.array_equal(data.train[1][4:8], arrays["data_batch_2"][1])
    mean, deviation = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2470, 0.2435, 0.2616])
    pixels = (data.test[0] * deviation.view(3, 1, 1) + mean.view(3, 1, 1)) * 255
    assert np.allclose(pixels.flatten(1), arrays["test_batch"][0], atol=1e-3)


def test_the_folder_is_the_argument_or_the_environment_or_the_cache(tmp_path, small_sets, monkeypatch):
    write_mnist(tmp_path / "here" / "MNIST" / "raw")
    monkeypatch.setenv("KEDGE_DATA", str(tmp_path / "here"))
    assert len(load_dataset("mnist", download=False).train[1]) == 30
    with pytest.raises(UsageError, match="elsewhere"):
        load_dataset("mnist", tmp_path / "elsewhere", download=False)
    monkeypatch.delenv("KEDGE_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UsageError, match=r"/\.cache/kedge and download is off"):
        load_dataset("mnist", download=False)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("train-images-idx3-ubyte", np.zeros((30, 27, 28)), "must hold images of 28x28"),
        ("train-images-idx3-ubyte", np.zeros((0, 28, 28)), "must hold images of 28x28"),
        ("train-labels-idx1-ubyte", np.zeros(29), "but there are 30 images"),
        ("t10k-labels-idx1-ubyte", np.full(10, 11), "has the label 11, but labels are 0 to 9"),
    ],
)
def test_idx_files_that_do_not_belong_together_are_refused_by_name(
    tmp_path, small_sets, make_official, name, array, message
):
    folder = tmp_path / "MNIST" / "raw"
    write_mnist(folder)
    (folder / name).write_bytes(idx_bytes(array))
    make_official(mnist.KINDS["mnist"].files, name, idx_bytes(array))
    with pytest.raises(UsageError, match=f"{name}.*{message}"):
        load_dataset("mnist", tmp_path, download=False)


def test_a_damaged_packed_file_is_refused_by_name(tmp_path, small_sets):
    folder = tmp_path / "MNIST" / "raw"
    write_mnist(folder, packed=True)
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"x" * 99)[:-9])
    with pytest.raises(UsageError, match=r"t10k-images-idx3-ubyte\.gz cannot be read"):
        load_dataset("mnist", tmp_path, download=False)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mnits", {}, "data set 'mnits' does not exist; did you mean 'mnist'"),
        ("digits", {"users": 3}, "data set 'digits' has no option 'users'; its options are: none"),
        ("synthetic", {"alpha": 3}, "no option 'alpha'; its options are: users, synthetic_alpha, synthetic_beta"),
        ("synthetic", {"users": 0}, "users is 0, but must be a whole number of at least 1"),
        ("synthetic", {"synthetic_beta": -1}, "synthetic_beta is -1, but must be finite and at least 0"),
        ("synthetic", {"seed": "one"}, "seed is 'one', but must be a whole number"),
    ],
)
def test_wrong_requests_are_refused_with_the_rule(name, options, message):
    with pytest.raises(UsageError, match=message):
        load_dataset(name, **options)


def test_the_table_names_every_data_set():
    assert set(DATASETS) == {
        "digits", "synthetic", "mnist", "fashion-mnist", "cifar10", "cifar100", "quadratics"
    }  # fmt: skip


@pytest.mark.parametrize("name", ["digits", "synthetic"])
def test_the_facts_of_a_data_set_are_those_of_its_samples(name):
    entry, data = DATASETS[name], load_dataset(name)
    assert entry.shape == data.train[0].shape[1:]
    assert entry.classes == data.classes
    assert entry.train in (None, len(data.train[1]))
    assert entry.test in (None, len(data.test[1]))
    assert (entry.partition == "by-user") == (data.users is not None)


@pytest.mark.parametrize("name", DATASETS)
def test_the_usual_model_and_partition_of_a_data_set_exist(name):
    assert DATASETS[name].model in MODELS
    assert DATASETS[name].partition in PARTITIONS
    assert (DATASETS[name].load is None) != (DATASETS[name].make is None)


def test_quadratics_is_no_set_of_samples():
    with pytest.raises(
        UsageError, match=r"quadratics brings its own clients, model and loss: use kedge.quadratics\(\)"
    ):
        load_dataset("quadratics")


def test_the_labels_of_cifar100_are_the_fine_ones(tmp_path, small_sets):
    (tmp_path / "cifar-100-python").mkdir()
    arrays = cifar_arrays(["train", "test"], classes=100)
    for name, batch in arrays.items():
        (tmp_path / "cifar-100-python" / name).write_bytes(cifar100_pickle(*batch))
    data = load_dataset("cifar100", tmp_path, download=False)
    assert data.classes == 100
    assert data.train[0].shape == data.test[0].shape == (4, 3, 32, 32)
    assert np.array_equal(data.train[1], arrays["train"][1])
    assert np.array_equal(data.test[1], arrays["test"][1])
    mean, deviation = torch.tensor([0.5071, 0.4865, 0.4409]), torch.tensor([0.2673, 0.2564, 0.2762])
    pixels = (data.test[0] * deviation.view(3, 1, 1) + mean.view(3, 1, 1)) * 255
    assert np.allclose(pixels.flatten(1), arrays["test"][0], atol=1e-3)


def test_a_user_without_a_home_is_asked_for_a_folder(monkeypatch):
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("KEDGE_DATA", raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda number: {}[number])
    with pytest.raises(
        UsageError, match="there is no home directory to look for data in; set --data-dir or KEDGE_DATA"
    ):
        load_dataset("mnist", download=False)


@pytest.mark.parametrize("users", [10**9, 10**12])
def test_more_users_than_fit_into_memory_are_refused_at_once(users):
    with pytest.raises(UsageError, match=r"synthetic of .* users needs .* of memory, but this machine has"):
        load_dataset("synthetic", users=users)
