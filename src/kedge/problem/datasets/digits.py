"""The 8x8 digits of scikit-learn: Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits" (UCI, 1998)."""

import numpy as np
import torch

from kedge.problem.datasets.base import DataSet, Source


def load(source: Source) -> DataSet:
    """Load the 1797 digits, scaled to [0, 1]; every fifth of each class is a test sample."""
    # Importing scikit-learn takes about a second that no other data set needs.
    from sklearn.datasets import load_digits

    pixels, digits = load_digits(return_X_y=True)
    held_out = np.zeros(len(digits), bool)
    for digit in range(10):
        held_out[np.flatnonzero(digits == digit)[4::5]] = True
    features = torch.from_numpy((pixels / 16).astype(np.float32))
    labels = torch.from_numpy(digits.astype(np.int64))
    test = torch.from_numpy(held_out)
    return DataSet("digits", (features[~test], labels[~test]), (features[test], labels[test]), classes=10)
