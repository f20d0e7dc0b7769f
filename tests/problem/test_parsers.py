import gzip
import os
import pickle
import struct
import tracemalloc
import zlib
from contextlib import suppress
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from kedge.errors import UsageError
from kedge.problem.datasets.cifar import read_binary, read_pickled
from kedge.problem.datasets.mnist import read_idx
from kedge.problem.datasets.official import Official

from .files import cifar100_pickle, cifar_arrays, cifar_binary, cifar_pickle, idx_bytes

PIXELS, LABELS = cifar_arrays(count=2)["test_batch"]

HUGE_IDX = bytes([0, 0, 8, 3]) + b"\xff" * 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


def refused(read, path, content):
    path.write_bytes(content)
    with pytest.raises(UsageError, match=path.name) as error:
        read(path)
    assert "\n" not in str(error.value)


@settings(max_examples=40, deadline=None)
@given(array=arrays(np.uint8, array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)))
def test_idx_files_are_read_back_packed_or_not(folder, array):
    (folder / "a").write_bytes(idx_bytes(array))
    (folder / "a.gz").write_bytes(gzip.compress(idx_bytes(array)))
    for path in (folder / "a", folder / "a.gz"):
        assert read_idx(path).shape == array.shape
        assert np.array_equal(read_idx(path), array)


def test_an_idx_file_cut_off_anywhere_is_refused(folder):
    content = idx_bytes(np.arange(24).reshape(2, 3, 4))
    packed = gzip.compress(content)
    for length in range(len(content)):
        refused(read_idx, folder / "cut", content[:length])
    for length in range(len(packed)):
        refused(read_idx, folder / "cut.gz", packed[:length])
    refused(read_idx, folder / "long", content + b"\0")


@settings(max_examples=80, deadline=None)
@given(content=st.binary(max_size=64))
@example(content=HUGE_IDX)
@example(content=bytes([0, 0, 9, 1]) + b"\0\0\0\1a")
def test_random_bytes_are_never_read_as_idx(folder, content):
    if content[:4] == b"\0\0\x08\0":
        content = b"\1" + content
    refused(read_idx, folder / "random", content)
    refused(read_idx, folder / "packed.gz", gzip.compress(content))
    refused(read_idx, folder / "random.gz", content)


def test_a_file_that_cannot_be_opened_is_refused_by_name(folder):
    for read in (read_idx, read_binary, read_pickled):
        with pytest.raises(UsageError, match="not-there"):
            read(folder / "not-there")


WRITERS = [
    (read_binary, cifar_binary),
    (read_pickled, cifar_pickle),
    (partial(read_pickled, key="fine_labels", classes=100), cifar100_pickle),
]


@pytest.mark.parametrize(("read", "write"), WRITERS)
def test_cifar_batches_are_read_back(folder, read, write):
    path = folder / "batch"
    path.write_bytes(write(PIXELS, LABELS))
    found, labels = read(path)
    assert np.array_equal(found, PIXELS)
    assert np.array_equal(labels, LABELS)


@pytest.mark.parametrize(("read", "write"), WRITERS)
def test_a_cifar_batch_cut_off_is_refused(folder, read, write):
    content = write(PIXELS, LABELS)
    for length in [*range(300), *range(300, len(content), 97), len(content) - 1]:
        # The binary format has no header: a cut between two images cannot be seen.
        if read is not read_binary or length != 3073:
            refused(read, folder / "batch", content[:length])


@settings(max_examples=80, deadline=None)
@given(content=st.binary(max_size=64))
def test_random_bytes_are_never_read_as_cifar(folder, content):
    refused(read_binary, folder / "random", content)
    refused(read_pickled, folder / "random", content)


@settings(max_examples=80, deadline=None)
@given(place=st.integers(0, 150), byte=st.integers(0, 255))
def test_a_damaged_pickle_gives_a_batch_or_a_usage_error(folder, place, byte):
    content = bytearray(cifar_pickle(PIXELS, LABELS))
    content[place] = byte
    path = folder / "damaged"
    path.write_bytes(content)
    with suppress(UsageError):
        pixels, labels = read_pickled(path)
        assert pixels.shape == PIXELS.shape
        assert set(labels) <= set(range(10))


class Calls:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def test_a_pickle_that_runs_a_command_is_refused_and_not_run(folder):
    flag = folder / "flag"
    for harm in (
        Calls(os.system, f"touch {flag}"),
        Calls(eval, "1"),
        Calls(getattr, np.ndarray, "dump"),
        Calls(np.load, "x"),
    ):
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            content = pickle.dumps({b"data": PIXELS, b"labels": harm}, protocol)
            refused(read_pickled, folder / "evil", content)
    assert not flag.exists()
    refused(read_pickled, folder / "evil", b"cposix\nsystem\n(Vtouch flag\ntR.")


CLAIMS = {
    "BYTEARRAY8": b"\x80\x05\x96" + struct.pack("<Q", 3 << 30) + b"ab.",
    "BINBYTES8": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"ab.",
    "BINUNICODE8": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b"ab.",
    "BINSTRING": b"\x80\x02T" + struct.pack("<i", (1 << 31) - 1) + b"ab.",
    "LONG4": b"\x80\x02\x8b" + struct.pack("<i", (1 << 31) - 1) + b"ab.",
    "FRAME": b"\x80\x04\x95" + struct.pack("<Q", 1 << 40) + b"ab.",
    "LONG_BINPUT": b"\x80\x02}r" + struct.pack("<I", (1 << 32) - 1) + b"q\xff.",
    "INT": b"I" + b"9" * 5000 + b"\n.",
}


@pytest.mark.parametrize("name", CLAIMS)
def test_a_pickle_that_claims_much_memory_gets_none(folder, name):
    tracemalloc.start()
    try:
        refused(read_pickled, folder / "claim", CLAIMS[name])
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


BOMB = zlib.compress(b"\0" * 50_000_000, 9, wbits=31)


@pytest.mark.parametrize("read", [read_idx, read_binary, read_pickled])
def test_a_packed_bomb_is_unpacked_no_further_than_a_file_may_be_long(folder, read):
    tracemalloc.start()
    try:
        (folder / "bomb.gz").write_bytes(BOMB)
        with pytest.raises(UsageError, match=r"bomb\.gz holds more than 1000000 bytes"):
            read(folder / "bomb.gz", Official(1_000_000))
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("dimensions", [5, 64, 65, 255])
def test_an_idx_file_of_many_dimensions_is_refused(folder, dimensions):
    content = bytes([0, 0, 8, dimensions]) + b"\0\0\0\1" * dimensions + b"x"
    refused(read_idx, folder / "deep", content)
    with pytest.raises(UsageError, match=f"has {dimensions} dimensions, but must have at most 4"):
        read_idx(folder / "deep")


def test_an_idx_file_without_samples_of_an_impossible_size_is_refused(folder):
    refused(read_idx, folder / "empty", bytes([0, 0, 8, 4]) + b"\0\0\0\0" + b"\xff" * 12)


@pytest.mark.parametrize(
    ("pixels", "labels"),
    [
        (PIXELS[:, :5], LABELS),
        (PIXELS[:, :-1], LABELS),
        (PIXELS[:0], LABELS[:0]),
        (PIXELS, LABELS[:1]),
        (PIXELS, np.array([0, 10])),
        (PIXELS, np.array([0, -1])),
    ],
)
def test_a_pickle_of_another_content_is_refused(folder, pixels, labels):
    refused(read_pickled, folder / "other", cifar_pickle(pixels, labels))


def test_a_binary_batch_with_an_eleventh_label_is_refused(folder):
    refused(read_binary, folder / "label", cifar_binary(PIXELS, np.array([3, 10])))
