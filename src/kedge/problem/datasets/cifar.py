"""CIFAR-10 (Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009).

Read from the binary version, or else from the Python version by an unpickler that builds nothing but byte
arrays. The means and standard deviations are those of the training pixels of each channel.
"""

import io
import pickle
import tarfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kedge.errors import UsageError
from kedge.problem.datasets.base import DataSet, Progress, Source
from kedge.problem.datasets.download import downloaded, install, obtain

Bytes = npt.NDArray[np.uint8]
Batch = tuple[Bytes, npt.NDArray[np.int64]]

MIRROR = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
CHECKSUMS = {
    "data_batch_1": "sha256:cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2": "sha256:a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3": "sha256:bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4": "sha256:014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5": "sha256:755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch": "sha256:8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}

_PIXELS = 3 * 32 * 32
_MEAN = (0.4914, 0.4822, 0.4465)
_DEVIATION = (0.2470, 0.2435, 0.2616)


def read_binary(path: Path) -> Batch:
    """Read a batch of the binary version: per image one label byte and 3072 pixel bytes."""
    content = _content(path)
    if not content or len(content) % (1 + _PIXELS):
        raise UsageError(f"{path} has {len(content)} bytes, but must hold one or more images of 3073 bytes")
    rows = np.frombuffer(content, np.uint8).reshape(-1, 1 + _PIXELS)
    return _checked(path, rows[:, 1:], rows[:, 0])


def read_pickled(path: Path) -> Batch:
    """Read a batch of the Python version without running anything that the file asks for."""
    content = _content(path)
    try:
        batch = _Unpickler(io.BytesIO(content), encoding="latin1").load()
        named = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
        pixels, labels = named["data"].array, np.asarray(named["labels"])
    except Exception as error:  # a damaged pickle can raise nearly every exception that there is
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"{path} is not a batch of CIFAR-10's Python version ({reason})") from None
    return _checked(path, pixels, labels)


class _Array:
    """Stands for numpy.ndarray, so that no code of numpy runs on what an untrusted pickle says."""

    array: Bytes

    def __setstate__(self, state: tuple[int, tuple[int, ...], object, bool, str | bytes]) -> None:
        _, shape, _, by_column, data = state
        content = data.encode("latin1") if isinstance(data, str) else data
        self.array = np.frombuffer(content, np.uint8).reshape(shape, order="F" if by_column else "C")


class _UnsignedByte:
    """Stands for numpy.dtype("u1"), the only type of these files."""

    def __init__(self, name: str, *rest: object) -> None:
        if name != "u1":
            raise UsageError(f"the type {name!r} is not the unsigned byte of CIFAR-10")

    def __setstate__(self, state: object) -> None:
        pass


def _reconstruct(*arguments: object) -> _Array:
    return _Array()


def _encode(text: str, encoding: str) -> bytes:
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Callable[..., object]] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _UnsignedByte,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("_codecs", "encode"): _encode,
}


# The one written in Python: that in C allocates whatever memory a damaged file names.
class _Unpickler(pickle._Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise UsageError(f"it asks for {module}.{name}, which a CIFAR-10 batch never does")
        return _ALLOWED[module, name]


def load(source: Source) -> DataSet:
    """Load CIFAR-10 as normalised images of shape (3, 32, 32)."""
    binary = {name: source.root / "cifar-10-batches-bin" / f"{name}.bin" for name in CHECKSUMS}
    pickled = {name: source.root / "cifar-10-batches-py" / name for name in CHECKSUMS}
    read, paths = read_binary, binary
    if not _there(binary) and _there(pickled):
        read, paths = read_pickled, pickled
    elif not _there(binary):
        missing = [path for path in binary.values() if not path.is_file()]
        folder = source.root / "cifar-10-batches-bin"
        obtain(source, "cifar10", folder, [path.name for path in missing], partial(_fetch, source.root, missing))
    batches = {name: read(path) for name, path in paths.items()}
    test = batches.pop("test_batch")
    train = tuple(np.concatenate(column) for column in zip(*batches.values(), strict=True))
    return DataSet("cifar10", _normalised(*train), _normalised(*test), classes=10)


def _there(paths: dict[str, Path]) -> bool:
    return all(path.is_file() for path in paths.values())


def _fetch(root: Path, missing: list[Path], progress: Progress) -> None:
    archive = root / MIRROR.rsplit("/", 1)[1]
    with downloaded(MIRROR, archive, progress) as path:
        try:
            with tarfile.open(path) as tar:
                for target in missing:
                    member = tar.extractfile(f"cifar-10-batches-bin/{target.name}")
                    install(member.read() if member else b"", target, CHECKSUMS[target.stem])
        except (tarfile.TarError, KeyError, EOFError, zlib.error) as error:
            raise ValueError(f"{archive.name} is not the archive of CIFAR-10: {error}") from error


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def _checked(path: Path, pixels: Bytes, labels: npt.NDArray[Any]) -> Batch:
    if pixels.ndim != 2 or pixels.shape[1] != _PIXELS or labels.shape != pixels.shape[:1] or not len(labels):
        raise UsageError(f"{path} has pixels {pixels.shape} and labels {labels.shape}, but needs (n, 3072) and (n,)")
    if labels.dtype.kind not in "iu" or not 0 <= labels.min() <= labels.max() <= 9:
        raise UsageError(f"{path} has a label that is not one of 0 to 9")
    return pixels, labels.astype(np.int64)


def _normalised(pixels: Bytes, labels: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    features = torch.from_numpy(pixels.astype(np.float32)).view(-1, 3, 32, 32)
    mean, deviation = (torch.tensor(values).view(3, 1, 1) for values in (_MEAN, _DEVIATION))
    return features.div_(255).sub_(mean).div_(deviation), torch.from_numpy(labels)
