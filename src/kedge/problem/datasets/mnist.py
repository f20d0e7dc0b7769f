"""MNIST (LeCun et al., 1998) and Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017), in the idx format.

The files are where torchvision puts them, gzipped or not; the checksums are of the unpacked files. The means and
standard deviations are those of the training pixels.
"""

import dataclasses
import math
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
from kedge.problem.datasets.official import ANY, OVERHEAD, Official, mismatch, read_file, unpacked

Bytes = npt.NDArray[np.uint8]

DIMENSIONS = 4
"""The most dimensions an idx file may have."""


@dataclass(frozen=True)
class _Kind:
    """A data set of the family; ``system`` is where a Linux distribution puts it."""

    folder: str
    mean: float
    deviation: float
    mirror: str
    files: dict[str, Official]
    system: Path | None = None


def _files(dataset: str, *checksums: str) -> dict[str, Official]:
    sizes = {
        "train-images-idx3-ubyte": 16 + 60_000 * 784,
        "train-labels-idx1-ubyte": 8 + 60_000,
        "t10k-images-idx3-ubyte": 16 + 10_000 * 784,
        "t10k-labels-idx1-ubyte": 8 + 10_000,
    }
    return {
        name: Official(size, dataset, checksum) for (name, size), checksum in zip(sizes.items(), checksums, strict=True)
    }


KINDS = {
    "mnist": _Kind(
        "MNIST",
        0.1307,
        0.3081,
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        _files(
            "MNIST",
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    ),
    "fashion-mnist": _Kind(
        "FashionMNIST",
        0.2860,
        0.3530,
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        _files(
            "Fashion-MNIST",
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
        system=Path("/usr/share/datasets/fashion-mnist"),  # Debian's package dataset-fashion-mnist
    ),
}


def read_idx(path: Path, official: Official = ANY) -> Bytes:
    """Read an idx file of unsigned bytes, gzipped or not."""
    content = read_file(path, official)
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise UsageError(f"{path} is not an idx file of unsigned bytes, whose first bytes are 0, 0, 8")
    if content[3] > DIMENSIONS:
        raise UsageError(f"{path} has {content[3]} dimensions, but must have at most {DIMENSIONS}")
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise UsageError(f"{path} is cut off in its header, after {len(content)} bytes")
    shape = [int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4)]
    expected = start + math.prod(shape)
    if len(content) != expected:
        raise UsageError(f"{path} has {len(content)} bytes, but its header asks for {expected}")
    try:
        return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
    except ValueError:  # no samples, but each of a size that no array can have
        raise UsageError(f"{path} has the shape {tuple(shape)}, but no array can have it") from None


def load(name: str, source: Source) -> DataSet:
    """Load the data set ``name`` of ``KINDS`` as normalised images of shape (1, 28, 28)."""
    kind = dataclasses.replace(KINDS[name], system=None) if source.named else KINDS[name]
    folder = source.root / kind.folder / "raw"
    missing = [file for file in kind.files if not _find(kind, folder / file).is_file()]
    if missing:
        obtain(source, name, folder, missing, partial(_fetch, kind, folder, missing))
    train, test = (_read_pair(folder, prefix, kind) for prefix in ("train", "t10k"))
    return DataSet(name, train, test, classes=10)


def _find(kind: _Kind, path: Path) -> Path:
    packed = path.with_name(f"{path.name}.gz")
    places = [path, packed, *([] if kind.system is None else [kind.system / packed.name])]
    return next((place for place in places if place.is_file()), path)


def _fetch(kind: _Kind, folder: Path, missing: list[str], progress: Progress) -> None:
    for file in missing:
        target, official = folder / f"{file}.gz", kind.files[file]
        with downloaded(kind.mirror + target.name, target, official.most + OVERHEAD, progress) as path:
            content = path.read_bytes()
        if reason := mismatch(unpacked(content, official.most), official):
            raise ValueError(f"{target.name} {reason}")
        install(content, target)


def _read_pair(folder: Path, prefix: str, kind: _Kind) -> tuple[Tensor, Tensor]:
    names = [f"{prefix}-{rest}" for rest in ("images-idx3-ubyte", "labels-idx1-ubyte")]
    images_path, labels_path = (_find(kind, folder / name) for name in names)
    images, labels = (
        read_idx(path, kind.files[name]) for path, name in zip((images_path, labels_path), names, strict=True)
    )
    if images.ndim != 3 or images.shape[1:] != (28, 28) or len(images) == 0:
        raise UsageError(f"{images_path} has the shape {images.shape}, but must hold images of 28x28")
    if labels.shape != images.shape[:1]:
        raise UsageError(f"{labels_path} has the shape {labels.shape}, but there are {len(images)} images")
    if labels.max() > 9:
        raise UsageError(f"{labels_path} has the label {labels.max()}, but labels are 0 to 9")
    features = torch.from_numpy(images.astype(np.float32)).unsqueeze(1)
    features.div_(255).sub_(kind.mean).div_(kind.deviation)
    return features, torch.from_numpy(labels.astype(np.int64))
