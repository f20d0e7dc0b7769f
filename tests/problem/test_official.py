"""Files of known data sets are the official ones, or are refused."""

import dataclasses
import gzip
import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.errors import UsageError
from kedge.problem import load_dataset
from kedge.problem.datasets import mnist, official

from .files import idx_bytes, write_mnist

NAME = "train-images-idx3-ubyte"


@pytest.fixture
def counted(monkeypatch):
    """The contents that were checked, by their lengths."""
    lengths = []

    def counting(content, known):
        lengths.append(len(content))
        return mismatch(content, known)

    mismatch = official.mismatch
    monkeypatch.setattr(official, "mismatch", counting)
    return lengths


def noise(folder: Path, packed: bool) -> Path:
    content = idx_bytes(np.random.default_rng(7).integers(0, 256, (30, 28, 28)))
    path = folder / (f"{NAME}.gz" if packed else NAME)
    path.write_bytes(gzip.compress(content) if packed else content)
    return path


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_random_images_under_a_known_name_are_refused(tmp_path, small_sets, name, packed):
    folder = tmp_path / mnist.KINDS[name].folder / "raw"
    write_mnist(folder, packed)
    path = noise(folder, packed)
    with pytest.raises(UsageError) as error:
        load_dataset(name, tmp_path, download=False)
    title = mnist.KINDS[name].files[NAME].dataset
    assert str(error.value).startswith(f"{path} has the SHA-256 ")
    assert f"so it is not the official file of {title}; put that in its place, or make a kedge.Federation" in str(
        error.value
    )


def test_small_images_under_the_name_of_mnist_are_refused(tmp_path):
    write_mnist(tmp_path / "MNIST" / "raw")
    with pytest.raises(UsageError, match=f"{NAME} has the SHA-256 .* and not ba891046"):
        load_dataset("mnist", tmp_path, download=False)


def test_a_file_is_checked_once_and_again_when_it_changes(tmp_path, small_sets, counted):
    folder = tmp_path / "MNIST" / "raw"
    write_mnist(folder)
    load_dataset("mnist", tmp_path, download=False)
    assert len(counted) == 4
    load_dataset("mnist", tmp_path, download=False)
    assert len(counted) == 4
    found = (folder / NAME).stat()
    noise(folder, packed=False)
    os.utime(folder / NAME, ns=(found.st_atime_ns, found.st_mtime_ns))  # as old and as long as before
    with pytest.raises(UsageError, match="not the official file"):
        load_dataset("mnist", tmp_path, download=False)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b'{"files": 3}', b'{"files": {"a": {"size": "1"}}}', b"\xff", b"[" * 100_000, b"0" * 3_000_000],
)
def test_a_damaged_memory_is_forgotten_and_replaced(tmp_path, small_sets, own_cache, counted, content):
    write_mnist(tmp_path / "MNIST" / "raw")
    own_cache.parent.mkdir(parents=True)
    own_cache.write_bytes(content)
    load_dataset("mnist", tmp_path, download=False)
    load_dataset("mnist", tmp_path, download=False)
    assert len(counted) == 4
    assert len(json.loads(own_cache.read_text())["files"]) == 4
    assert [path.name for path in own_cache.parent.iterdir()] == [own_cache.name]


@given(content=st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_memory_makes_noise_official(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("memory")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        (folder / "kedge").mkdir()
        (folder / "kedge" / "verified.json").write_bytes(content)
        with pytest.raises(UsageError, match="not the official file"):
            official.read_file(noise(folder, packed=False), mnist.KINDS["mnist"].files[NAME])


def test_the_memory_is_replaced_and_never_written_through_a_link(tmp_path, small_sets, own_cache):
    write_mnist(tmp_path / "MNIST" / "raw")
    precious = tmp_path / "precious"
    precious.write_text("mine")
    own_cache.parent.mkdir(parents=True)
    own_cache.symlink_to(precious)
    load_dataset("mnist", tmp_path, download=False)
    assert precious.read_text() == "mine"
    assert stat.S_ISREG(own_cache.lstat().st_mode)


def test_a_user_without_a_cache_is_served_all_the_same(tmp_path, small_sets, monkeypatch, counted):
    write_mnist(tmp_path / "MNIST" / "raw")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda number: {}[number])
    load_dataset("mnist", tmp_path, download=False)
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    load_dataset("mnist", tmp_path, download=False)
    assert len(counted) == 8


def test_fashion_mnist_is_found_where_debian_has_it(tmp_path, small_sets, monkeypatch):
    write_mnist(tmp_path / "system", packed=True)
    kind = dataclasses.replace(mnist.KINDS["fashion-mnist"], system=tmp_path / "system")
    monkeypatch.setitem(mnist.KINDS, "fashion-mnist", kind)
    monkeypatch.setenv("KEDGE_DATA", str(tmp_path / "nowhere"))
    assert len(load_dataset("fashion-mnist", download=False).train[1]) == 30
    with pytest.raises(UsageError, match=r"fashion-mnist is not in .*nowhere"):  # asked for by name, only that counts
        load_dataset("fashion-mnist", tmp_path / "nowhere", download=False)


def test_a_folder_whose_name_is_not_text_is_served_all_the_same(tmp_path, small_sets, counted):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    write_mnist(folder / "MNIST" / "raw")
    for _ in range(2):
        load_dataset("mnist", folder, download=False)
    write_mnist(tmp_path / "MNIST" / "raw")
    before = len(counted)
    for _ in range(2):
        load_dataset("mnist", tmp_path, download=False)
    assert len(counted) == before + 4  # what is remembered of the others is not lost
