"""CIFAR-10 and CIFAR-100 (Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009).

CIFAR-10 is read from its binary version or from the Python version, which is what torchvision downloads for both; the
labels of CIFAR-100 are the 100 fine ones. Pickles are never loaded: pixels and labels are picked from their tokens. The
means and standard deviations are those of the training pixels of each channel.
"""

import gzip
import pickletools
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kedge.errors import UsageError
from kedge.problem.datasets.base import DataSet, Progress, Source
from kedge.problem.datasets.download import downloaded, install, obtain
from kedge.problem.datasets.official import ANY, Official, mismatch, read_file

Bytes = npt.NDArray[np.uint8]
Batch = tuple[Bytes, npt.NDArray[np.int64]]

_PIXELS = 3 * 32 * 32
_KEYS = frozenset({"batch_label", "coarse_labels", "data", "filenames", "fine_labels", "labels"})
_STRINGS = frozenset({"BINSTRING", "SHORT_BINSTRING"})
_NUMBERS = frozenset({"BININT", "BININT1", "BININT2"})


def read_binary(path: Path, official: Official = ANY) -> Batch:
    """Read a batch of the binary version: per image one label byte and 3072 pixel bytes."""
    content = read_file(path, official)
    if not content or len(content) % (1 + _PIXELS):
        raise UsageError(f"{path} has {len(content)} bytes, but must hold one or more images of 3073 bytes")
    rows = np.frombuffer(content, np.uint8).reshape(-1, 1 + _PIXELS)
    return _checked(path, rows[:, 1:], rows[:, 0], 10)


def read_pickled(path: Path, official: Official = ANY, *, key: str = "labels", classes: int = 10) -> Batch:
    """Read a batch of the Python version, whose labels are at ``key``, without loading the pickle."""
    content = read_file(path, official)
    try:
        pixels, labels = _picked(content, key)
    except Exception as error:  # a damaged pickle can raise almost any exception
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"{path} is not a batch of CIFAR's Python version ({reason[:200]})") from None
    return _checked(path, pixels, labels, classes)


def _picked(content: bytes, key: str) -> tuple[Bytes, npt.NDArray[Any]]:
    """Return the pixels and labels of the official files: a dictionary of an array, lists and Python 2 strings."""
    pixels, labels, at = "", [], ""
    for opcode, value, _ in pickletools.genops(content):
        if opcode.name in _STRINGS:
            assert isinstance(value, str)
            at = value if value in _KEYS else at
            if at == "data" and len(value) >= _PIXELS:
                pixels = value
        elif opcode.name in _NUMBERS and at == key:
            labels.append(value)
    if not pixels or len(pixels) % _PIXELS:
        raise ValueError(f"it has no data of {_PIXELS} bytes per image")
    return np.frombuffer(pixels.encode("latin1"), np.uint8).reshape(-1, _PIXELS), np.array(labels)


@dataclass(frozen=True)
class _Version:
    """The files of a data set, of which the last is the test set, and how to read them."""

    folder: str
    files: dict[str, Official]
    read: Callable[[Path, Official], Batch]


@dataclass(frozen=True)
class _Kind:
    """A data set; ``mirror`` has the first of its ``versions``."""

    mirror: str
    versions: tuple[_Version, ...]
    classes: int
    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]


KINDS = {
    "cifar10": _Kind(
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        (
            _Version(
                "cifar-10-batches-bin",
                {
                    f"{name}.bin": Official(30_730_000, "CIFAR-10", checksum)
                    for name, checksum in {
                        "data_batch_1": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                        "data_batch_2": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                        "data_batch_3": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                        "data_batch_4": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                        "data_batch_5": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
                        "test_batch": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
                    }.items()
                },
                read_binary,
            ),
            _Version(
                "cifar-10-batches-py",
                {
                    name: Official(31_100_000, "CIFAR-10", checksum)
                    for name, checksum in {
                        "data_batch_1": "54636561a3ce25bd3e19253c6b0d8538147b0ae398331ac4a2d86c6d987368cd",
                        "data_batch_2": "766b2cef9fbc745cf056b3152224f7cf77163b330ea9a15f9392beb8b89bc5a8",
                        "data_batch_3": "0f00d98ebfb30b3ec0ad19f9756dc2630b89003e10525f5e148445e82aa6a1f9",
                        "data_batch_4": "3f7bb240661948b8f4d53e36ec720d8306f5668bd0071dcb4e6c947f78e9682b",
                        "data_batch_5": "d91802434d8376bbaeeadf58a737e3a1b12ac839077e931237e0dcd43adcb154",
                        "test_batch": "f53d8d457504f7cff4ea9e021afcf0e0ad8e24a91f3fc42091b8adef61157831",
                    }.items()
                },
                read_pickled,
            ),
        ),
        10,
        (0.4914, 0.4822, 0.4465),
        (0.2470, 0.2435, 0.2616),
    ),
    "cifar100": _Kind(
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        (
            _Version(
                "cifar-100-python",
                {
                    name: Official(155_300_000, "CIFAR-100", checksum)
                    for name, checksum in {
                        "train": "735e79b04f092ca3d2e6d07f368c0a7d70d48c48d28865950cc24454cf45129b",
                        "test": "4b67687d9933c4db8f0831104447f15b93774f4f464bd0516f0f0f2ac83b7864",
                    }.items()
                },
                partial(read_pickled, key="fine_labels", classes=100),
            ),
        ),
        100,
        (0.5071, 0.4865, 0.4409),
        (0.2673, 0.2564, 0.2762),
    ),
}


def load(name: str, source: Source) -> DataSet:
    """Load the data set ``name`` of ``KINDS`` as normalised images of shape (3, 32, 32)."""
    kind = KINDS[name]
    version = next((version for version in kind.versions if not _missing(version, source.root)), kind.versions[0])
    missing = _missing(version, source.root)
    if missing:
        folder = source.root / version.folder
        obtain(source, name, folder, missing, partial(_fetch, kind.mirror, version, source.root, missing))
    batches = [version.read(source.root / version.folder / file, known) for file, known in version.files.items()]
    test = batches.pop()
    train = tuple(np.concatenate(column) for column in zip(*batches, strict=True))
    return DataSet(name, _normalised(kind, *train), _normalised(kind, *test), kind.classes)


def _missing(version: _Version, root: Path) -> list[str]:
    return [file for file in version.files if not (root / version.folder / file).is_file()]


def _fetch(mirror: str, version: _Version, root: Path, missing: list[str], progress: Progress) -> None:
    archive = root / mirror.rsplit("/", 1)[1]
    most = 2 * sum(official.most for official in version.files.values())
    wanted = {f"{version.folder}/{file}": file for file in missing}
    with downloaded(mirror, archive, most, progress) as path:
        try:
            # As a stream, so that no more is unpacked than the official archive holds.
            with gzip.open(path) as packed, tarfile.open(mode="r|", fileobj=cast("Any", _Bounded(packed, most))) as tar:
                for member in tar:
                    if member.name in wanted and member.isreg():
                        target = root / version.folder / wanted.pop(member.name)
                        official, file = version.files[target.name], tar.extractfile(member)
                        content = file.read(official.most + 1) if file else b""
                        if reason := mismatch(content, official):
                            raise ValueError(f"{target.name} {reason}")
                        install(content, target)
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{archive.name} is not the official archive: {error}") from error
    if wanted:
        raise ValueError(f"{archive.name} is not the official archive: {min(wanted)} is missing")


class _Bounded:
    """A stream that ends with an error after ``most`` bytes."""

    def __init__(self, file: gzip.GzipFile, most: int) -> None:
        self._file, self._left = file, most

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes."""
        content = self._file.read(size)
        self._left -= len(content)
        if self._left < 0:
            raise EOFError("it is too large")
        return content


def _checked(path: Path, pixels: Bytes, labels: npt.NDArray[Any], classes: int) -> Batch:
    if labels.shape != pixels.shape[:1]:
        raise UsageError(f"{path} has {len(pixels)} images, but {len(labels)} labels")
    if labels.dtype.kind not in "iu" or not 0 <= labels.min() <= labels.max() < classes:
        raise UsageError(f"{path} has a label that is not one of 0 to {classes - 1}")
    return pixels, labels.astype(np.int64)


def _normalised(kind: _Kind, pixels: Bytes, labels: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    features = torch.from_numpy(pixels.astype(np.float32)).view(-1, 3, 32, 32)
    mean, deviation = (torch.tensor(values).view(3, 1, 1) for values in (kind.mean, kind.deviation))
    return features.div_(255).sub_(mean).div_(deviation), torch.from_numpy(labels)
