"""Small data sets in the place of the official ones: the same code, other sizes and checksums."""

import hashlib

import pytest

from kedge.problem.datasets import cifar, mnist
from kedge.problem.datasets.official import Official

from .files import cifar100_pickle, cifar_arrays, cifar_binary, cifar_pickle, idx_bytes, mnist_arrays


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """What the tests verify is remembered nowhere else."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder / "kedge" / "verified.json"


@pytest.fixture
def make_official(monkeypatch):
    """Let this be the official content of a file."""

    def make(files: dict[str, Official], name: str, content: bytes) -> None:
        known = Official(len(content), files[name].dataset, hashlib.sha256(content).hexdigest())
        monkeypatch.setitem(files, name, known)

    return make


@pytest.fixture
def small_sets(make_official):
    """Let the files of `files.py` be the official ones."""
    for kind in mnist.KINDS.values():
        for name, array in mnist_arrays().items():
            make_official(kind.files, name, idx_bytes(array))
    binary, pickled = cifar.KINDS["cifar10"].versions
    for name, batch in cifar_arrays().items():
        make_official(binary.files, f"{name}.bin", cifar_binary(*batch))
        make_official(pickled.files, name, cifar_pickle(*batch))
    (fine,) = cifar.KINDS["cifar100"].versions
    for name, batch in cifar_arrays(["train", "test"], classes=100).items():
        make_official(fine.files, name, cifar100_pickle(*batch))
