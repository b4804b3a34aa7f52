"""Images of handwritten digits, as they come with scikit-learn: what the job `digits` and the laboratory learn from.

Nothing of this project may be imported here: results that are kept depend on this file and on nothing that trains.
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
    """Training and test images: every fifth is a test image, on every host the same."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise SystemExit("digits: scikit-learn is missing; pip install 'gossipdp[demo]'") from None
    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.from_numpy(pixels).float() / 16, torch.from_numpy(labels).long()
    test = torch.arange(len(y)) % 5 == 0
    return Images(x[~test], y[~test]), Images(x[test], y[test])
