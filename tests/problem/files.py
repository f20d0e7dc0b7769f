"""Small data files in the official formats."""

import gzip
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


def cifar_arrays(
    names: list[str] = CIFAR_NAMES, count: int = 4, classes: int = 10
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(2)
    return {
        name: (rng.integers(0, 256, (count, 3072), dtype=np.uint8), rng.integers(0, classes, count)) for name in names
    }


def cifar_binary(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    return np.hstack([labels[:, None].astype(np.uint8), pixels]).tobytes()


def cifar_pickle(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    """The opcodes of the official files, whose strings are the 8-bit strings of Python 2."""
    return (
        b"\x80\x02}("
        + _text(b"batch_label")
        + _text(b"batch 1 of 5")
        + _text(b"labels")
        + _numbers(labels)
        + (_text(b"data") + _array(pixels) + _text(b"filenames") + b"](" + _text(b"a.png") + b"eu.")
    )


def cifar100_pickle(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    coarse = _text(b"coarse_labels") + _numbers(labels // 5)
    return b"\x80\x02}(" + _text(b"fine_labels") + _numbers(labels) + coarse + _text(b"data") + _array(pixels) + b"u."


def _text(value: bytes) -> bytes:
    return b"U" + bytes([len(value)]) + value


def _integer(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + bytes([value])
    return b"J" + value.to_bytes(4, "little", signed=True)


def _numbers(labels: np.ndarray) -> bytes:
    return b"](" + b"".join(_integer(int(label)) for label in labels) + b"e"


def _array(pixels: np.ndarray) -> bytes:
    data = pixels.tobytes()
    dtype = b"cnumpy\ndtype\n" + _text(b"u1") + _integer(0) + _integer(1) + b"\x87R"
    dtype += b"(" + _integer(3) + _text(b"|") + b"NNN" + _integer(-1) + _integer(-1) + _integer(0) + b"tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n" + b"cnumpy\nndarray\n" + _integer(0) + b"\x85"
    array += _text(b"b") + b"\x87R"
    shape = _integer(pixels.shape[0]) + _integer(pixels.shape[1]) + b"\x86"
    return array + b"(" + _integer(1) + shape + dtype + b"\x89T" + len(data).to_bytes(4, "little") + data + b"tb"
