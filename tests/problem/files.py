"""Small data files in the official formats."""

import gzip
import pickle
from pathlib import Path

import numpy as np

CIFAR_NAMES = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]


def idx_bytes(array: np.ndarray) -> bytes:
    sides = b"".join(side.to_bytes(4, "big") for side in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sides + array.astype(np.uint8).tobytes()


def mnist_arrays(train: int = 30, test: int = 10) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    arrays = {}
    for prefix, count in (("train", train), ("t10k", test)):
        arrays[f"{prefix}-images-idx3-ubyte"] = rng.integers(0, 256, (count, 28, 28))
        arrays[f"{prefix}-labels-idx1-ubyte"] = np.arange(count) % 10
    return arrays


def write_mnist(folder: Path, packed: bool = False) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True)
    arrays = mnist_arrays()
    for name, array in arrays.items():
        content = idx_bytes(array)
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)
    return arrays


def cifar_arrays(count: int = 4) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(2)
    return {
        name: (rng.integers(0, 256, (count, 3072), dtype=np.uint8), rng.integers(0, 10, count)) for name in CIFAR_NAMES
    }


def cifar_binary(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    return np.hstack([labels[:, None].astype(np.uint8), pixels]).tobytes()


def cifar_pickle(pixels: np.ndarray, labels: np.ndarray, protocol: int = 2) -> bytes:
    return pickle.dumps({b"data": pixels, b"labels": labels.tolist(), b"batch_label": b"x"}, protocol)


def cifar_pickle_of_python_2(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    """The opcodes of the official files, whose strings are the 8-bit strings of Python 2."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    def integer(value: int) -> bytes:
        return b"J" + value.to_bytes(4, "little", signed=True)

    data = pixels.tobytes()
    dtype = b"cnumpy\ndtype\n" + text(b"u1") + integer(0) + integer(1) + b"\x87R"
    dtype += b"(" + integer(3) + text(b"|") + b"NNN" + integer(-1) + integer(-1) + integer(0) + b"tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n" + b"cnumpy\nndarray\n" + integer(0) + b"\x85"
    array += text(b"b") + b"\x87R"
    shape = integer(pixels.shape[0]) + integer(pixels.shape[1]) + b"\x86"
    array += b"(" + integer(1) + shape + dtype + b"\x89" + b"T" + len(data).to_bytes(4, "little") + data + b"tb"
    numbers = b"](" + b"".join(integer(int(label)) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + numbers + b"u."
