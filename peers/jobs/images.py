"""Images of handwritten digits from scikit-learn, for the job `digits` and the laboratory.

Nothing of this project may be imported here: kept results of the laboratory depend on this file.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Images(NamedTuple):
    pixels: Tensor
    """(n, 64), 0 to 1"""
    labels: Tensor


def load_images() -> tuple[Images, Images]:
    """Training and test images. Every fifth is a test image, the same on every host."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise SystemExit("digits: scikit-learn is missing: pip install scikit-learn") from None
    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.from_numpy(pixels).float() / 16, torch.from_numpy(labels).long()
    test = torch.arange(len(y)) % 5 == 0
    return Images(x[~test], y[~test]), Images(x[test], y[test])
