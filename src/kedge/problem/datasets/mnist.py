"""MNIST (LeCun et al., 1998) and Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017), in the idx format.

The files lie where torchvision puts them, the mirrors and the MD5 sums of the compressed files are the ones it
publishes, and the means and standard deviations are those of the training pixels.
"""

import gzip
import math
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kedge.errors import UsageError
from kedge.problem.datasets.base import DataSet, Progress, Source
from kedge.problem.datasets.download import downloaded, install, obtain

Bytes = npt.NDArray[np.uint8]

_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


@dataclass(frozen=True)
class _Kind:
    """A data set of the family; ``checksums`` are those of the compressed files, in the order of _FILES."""

    folder: str
    mean: float
    deviation: float
    mirror: str
    checksums: tuple[str, ...]


KINDS = {
    "mnist": _Kind(
        "MNIST",
        0.1307,
        0.3081,
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        (
            "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "md5:d53e105ee54ea40749a09fcbcd1e9432",
            "md5:9fb629c4189551a2d022fa330f9573f3",
            "md5:ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    "fashion-mnist": _Kind(
        "FashionMNIST",
        0.2860,
        0.3530,
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        (
            "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "md5:25c81989df183df01b3e8a0aad5dffbe",
            "md5:bef4ecab320f06d8554ea6380940ec79",
            "md5:bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
}


def read_idx(path: Path) -> Bytes:
    """Read an idx file of unsigned bytes, compressed if its name ends in ``.gz``."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise UsageError(f"{path} is not an idx file of unsigned bytes, whose first bytes are 0, 0, 8")
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise UsageError(f"{path} is cut off in its header, after {len(content)} bytes")
    shape = [int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4)]
    expected = start + math.prod(shape)
    if len(content) != expected:
        raise UsageError(f"{path} has {len(content)} bytes, but its header asks for {expected}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def load(name: str, source: Source) -> DataSet:
    """Load the data set ``name`` of ``KINDS`` as normalised images of shape (1, 28, 28)."""
    kind = KINDS[name]
    folder = source.root / kind.folder / "raw"
    missing = [i for i, file in enumerate(_FILES) if not _find(folder / file).is_file()]
    if missing:
        obtain(source, name, folder, [_FILES[i] for i in missing], partial(_fetch, kind, folder, missing))
    train, test = (_read_pair(folder, prefix, kind) for prefix in ("train", "t10k"))
    return DataSet(name, train, test, classes=10)


def _find(path: Path) -> Path:
    packed = path.with_name(f"{path.name}.gz")
    return packed if packed.is_file() and not path.is_file() else path


def _fetch(kind: _Kind, folder: Path, missing: list[int], progress: Progress) -> None:
    for i in missing:
        target = folder / f"{_FILES[i]}.gz"
        with downloaded(kind.mirror + target.name, target, progress) as path:
            content = path.read_bytes()
        install(content, target, kind.checksums[i])


def _read_pair(folder: Path, prefix: str, kind: _Kind) -> tuple[Tensor, Tensor]:
    images_path, labels_path = (
        _find(folder / f"{prefix}-{rest}") for rest in ("images-idx3-ubyte", "labels-idx1-ubyte")
    )
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.ndim != 3 or images.shape[1:] != (28, 28) or len(images) == 0:
        raise UsageError(f"{images_path} has the shape {images.shape}, but must hold images of 28x28")
    if labels.shape != images.shape[:1]:
        raise UsageError(f"{labels_path} has the shape {labels.shape}, but there are {len(images)} images")
    if labels.max() > 9:
        raise UsageError(f"{labels_path} has the label {labels.max()}, but labels are 0 to 9")
    features = torch.from_numpy(images.astype(np.float32)).unsqueeze(1)
    features.div_(255).sub_(kind.mean).div_(kind.deviation)
    return features, torch.from_numpy(labels.astype(np.int64))
