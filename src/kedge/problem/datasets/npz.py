"""Samples from a NumPy archive: `data.npz` with the arrays of a data set, read without running anything.

The arrays are features and labels, test_features and test_labels (optional), and users (optional: whose each training
sample is). x_train, y_train, x_test and y_test, as Keras calls them, and X and y, as scikit-learn does, are understood.
"""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kedge.checks import affordable, tensor
from kedge.errors import UsageError
from kedge.problem.datasets.base import DataSet

NAMES = {
    "features": ("features", "x_train", "X"),
    "labels": ("labels", "y_train", "y"),
    "test_features": ("test_features", "x_test"),
    "test_labels": ("test_labels", "y_test"),
    "users": ("users",),
}
"""What an array is called here, and in an archive."""


def load(path: Path) -> DataSet:
    """Load an archive."""
    arrays = read(path)
    found = {name: next((arrays[each] for each in known if each in arrays), None) for name, known in NAMES.items()}
    for name in ("features", "labels"):
        if found[name] is None:
            there = ", ".join(sorted(arrays)) or "none"
            raise UsageError(f"{path} has no array {' or '.join(NAMES[name])}; it has {there}")
    if (found["test_features"] is None) != (found["test_labels"] is None):
        raise UsageError(f"{path} has only one of test_features and test_labels")
    train = _pair(path, found["features"], found["labels"])
    test = None if found["test_features"] is None else _pair(path, found["test_features"], found["test_labels"])
    users = found["users"]
    if users is not None and users.shape != (len(train[1]),):
        raise UsageError(f"{path} has users of shape {users.shape}, but there are {len(train[1])} samples")
    classes = 0 if train[1].is_floating_point() or train[1].ndim > 1 else int(train[1].max()) + 1
    return DataSet(path.stem, train, test, classes, users)


def read(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of an archive, which must fit in memory and hold nothing but numbers and text."""
    try:
        with zipfile.ZipFile(path) as archive:
            affordable(f"{path}", sum(each.file_size for each in archive.infolist()))
        with np.load(path, allow_pickle=False) as content:
            arrays = {name: content[name] for name in content.files}
    except FileNotFoundError:
        raise UsageError(f"the data set {path} does not exist") from None
    except UsageError:
        raise
    except Exception as error:  # damaged bytes make zipfile, zlib and NumPy's parser fail in a dozen ways
        raise UsageError(f"the data set {path} cannot be read: {error}") from None
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise UsageError(f"the data set {path} cannot be read: {name} is not an array")
    return arrays


def _pair(path: Path, features: Any, labels: Any) -> tuple[Tensor, Tensor]:
    x, y = tensor(features, f"the features of {path}"), tensor(labels, f"the labels of {path}")
    if x.is_complex() or y.is_complex():
        raise UsageError(f"{path} has complex numbers, but features and labels must be real")
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y) or not len(y):
        shapes = f"{tuple(x.shape)} and {tuple(y.shape)}"
        raise UsageError(f"{path} has features and labels of shapes {shapes}, but needs one label per sample")
    if x.dtype == torch.uint8:  # images
        x = x.to(torch.float32) / 255
    elif x.dtype == torch.float64:
        x = x.to(torch.float32)
    return x, y if y.is_floating_point() else y.to(torch.int64)
