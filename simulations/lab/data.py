"""Training data of the laboratory: the sources of the standard library, and images of digits.

Data come in parts (files, classes). A `Mixture` sets how often each peer draws from each part. A draw is a function of
the seed, the peer and the step, so this module keeps no state.
"""

from __future__ import annotations

import hashlib
import math
import os
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peers.jobs.images import load_images

__all__ = ["Digits", "Mixture", "Text", "digits", "draws", "normal", "sources", "text"]

Counts = NDArray[np.int64]

LEFT_OUT: Final = frozenset({"__pycache__", "idle_test", "lib2to3", "site-packages", "test", "tests"})
"""folders that differ between installations, or hold no library source"""
SHORTEST: Final = 2048
"""bytes of the smallest file in use"""
VALIDATION: Final = 10
"""one file in VALIDATION is held out"""

_GOLDEN: Final = np.uint64(0x9E37_79B9_7F4A_7C15)
_FIRST, _SECOND = np.uint64(0xBF58_476D_1CE4_E5B9), np.uint64(0x94D0_49BB_1331_11EB)


# -- chance ------------------------------------------------------------------------------------------------------


def draws(peers: Counts, steps: Counts, seed: int, count: int) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1), one stream per (seed, peer, step), shape (peers, count).

    SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators").
    """
    key = np.full(len(peers), seed & 0xFFFF_FFFF_FFFF_FFFF, np.uint64)
    for word in (peers, steps):
        key = _mixed(_mixed(key) ^ word.astype(np.uint64))
    bits = _mixed(_mixed(key)[:, None] + _GOLDEN * np.arange(1, count + 1, dtype=np.uint64))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def normal(peers: Counts, steps: Counts, seed: int, count: int) -> NDArray[np.float64]:
    """Normal numbers from `draws` (Box & Muller 1958), shape (peers, count)."""
    half = -(-count // 2)
    uniform = draws(peers, steps, seed, 2 * half)
    radius, angle = np.sqrt(-2.0 * np.log1p(-uniform[:, :half])), 2.0 * np.pi * uniform[:, half:]
    found: NDArray[np.float64] = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return found[:, :count]


def _mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    bits = bits + _GOLDEN
    bits = (bits ^ (bits >> np.uint64(30))) * _FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * _SECOND
    mixed: NDArray[np.uint64] = bits ^ (bits >> np.uint64(31))
    return mixed


# -- mixtures ----------------------------------------------------------------------------------------------------


class Mixture:
    """Draws indices from parts that lie one behind the other.

    Args:
        sizes: length of each part.
        dirichlet: how similar the peers' data are. Infinite: every peer draws every index with equal chance. Otherwise
            each peer's shares of the K parts come from a Dirichlet distribution of mean sizes/sum(sizes) and total
            concentration K `dirichlet` (Hsu, Qi, Brown 2019, arXiv 1909.06335). At 0.1 most draws of a peer come from a
            few parts.
    """

    def __init__(self, sizes: Sequence[int], dirichlet: float) -> None:
        if not (dirichlet > 0.0 and min(sizes, default=0) > 0):
            raise ValueError(f"dirichlet {dirichlet}, {len(sizes)} parts, the smallest of {min(sizes, default=0)}")
        self.dirichlet = dirichlet
        self._stops: NDArray[np.int64] = np.cumsum(np.array(sizes, np.int64))
        self._sizes = np.array(sizes, np.float64)
        self._known: dict[tuple[int, int], NDArray[np.float64]] = {}

    def places(self, peers: Counts, steps: Counts, seed: int, count: int) -> Counts:
        """Indices that these peers draw in these steps, shape (peers, count)."""
        uniform = draws(peers, steps, seed, count)
        if math.isinf(self.dirichlet):
            found: Counts = (uniform * self._stops[-1]).astype(np.int64)
            return found
        found = np.empty(uniform.shape, np.int64)
        for row, peer in enumerate(peers):
            stops = self._shares(int(peer), seed)
            part = np.searchsorted(stops, uniform[row], side="right")
            # The rest of a draw within its part is uniform again, so it serves as the draw of the index.
            begins = np.where(part > 0, stops[part - 1], 0.0)
            within = (uniform[row] - begins) / (stops[part] - begins) * self._sizes[part]
            first = self._stops[part] - self._sizes[part].astype(np.int64)
            found[row] = np.minimum(first + within.astype(np.int64), self._stops[part] - 1)
        return found

    def shares(self, peer: int, seed: int) -> NDArray[np.float64]:
        """The share of each part in this peer's draws, shape (parts,)."""
        if math.isinf(self.dirichlet):
            return np.asarray(self._sizes / self._sizes.sum())
        return np.asarray(np.diff(self._shares(peer, seed), prepend=0.0))

    def _shares(self, peer: int, seed: int) -> NDArray[np.float64]:
        """Cumulative shares; the last is exactly 1."""
        if (peer, seed) not in self._known:
            concentration = self.dirichlet * len(self._sizes) * self._sizes / self._sizes.sum()
            random = np.random.default_rng((seed, peer, 0x646972))
            stops = np.cumsum(random.dirichlet(concentration))
            self._known[peer, seed] = stops / stops[-1]
        return self._known[peer, seed]


# -- the standard library's sources --------------------------------------------------------------------------------


def sources(folder: Path) -> list[tuple[str, bytes]]:
    """Name and content of every .py file under `folder`, sorted by name."""
    found: dict[str, bytes] = {}
    for place, folders, files in os.walk(folder):
        folders[:] = set(folders) - LEFT_OUT
        paths = [Path(place, file) for file in files if file.endswith(".py")]
        found |= {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    return [(name, found[name]) for name in sorted(found) if len(found[name]) >= SHORTEST]


def held_out(name: str) -> bool:
    """Whether this file is held out. The name alone decides, so an extra file moves no other."""
    digest = hashlib.blake2b(name.encode(), digest_size=8, person=b"gossipdp split").digest()
    return int.from_bytes(digest, "big") % VALIDATION == 0


@dataclass(frozen=True)
class Text:
    """Files to train on and files to validate on, each concatenated."""

    train: NDArray[np.uint8]
    sizes: tuple[int, ...]
    """sizes of the files in `train`, bytes"""
    validation: NDArray[np.uint8]

    def mixture(self, length: int, dirichlet: float) -> Mixture:
        """A mixture of the first bytes of windows of `length` bytes."""
        *most, last = self.sizes
        return Mixture((*most, last - length + 1), dirichlet)

    def windows(self, first: Counts, length: int) -> Tensor:
        """The `length` bytes of `train` from each index on, shape (*first.shape, length), int64."""
        return torch.from_numpy(self.train[first[..., None] + np.arange(length)].astype(np.int64))

    def held_out(self, count: int, length: int) -> Tensor:
        """`count` windows of `validation`, evenly spaced, shape (count, length), int64."""
        first = np.linspace(0, len(self.validation) - length, count).astype(np.int64)
        return torch.from_numpy(self.validation[first[:, None] + np.arange(length)].astype(np.int64))


@cache
def text() -> Text:
    """The standard library of this interpreter, about 10 MB. Other Python versions have other files and curves."""
    parts = sources(Path(sysconfig.get_paths()["stdlib"]))
    train = [content for name, content in parts if not held_out(name)]
    validation = [content for name, content in parts if held_out(name)]
    sizes = tuple(len(content) for content in train)
    return Text(np.frombuffer(b"".join(train), np.uint8), sizes, np.frombuffer(b"".join(validation), np.uint8))


# -- digits ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Digits:
    """1,797 images of 8 x 8 pixels from 0 to 1, from scikit-learn. Every fifth is held out."""

    pixels: Tensor
    """training images, sorted by class, shape (n, 64)"""
    labels: Tensor
    sizes: tuple[int, ...]
    """images of each of the ten classes"""
    held_out_pixels: Tensor
    held_out_labels: Tensor


@cache
def digits() -> Digits:
    train, test = load_images()
    order = torch.argsort(train.labels, stable=True)
    sizes = tuple(torch.bincount(train.labels, minlength=10).tolist())
    return Digits(train.pixels[order], train.labels[order], sizes, test.pixels, test.labels)
