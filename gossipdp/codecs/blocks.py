"""Where the blocks of a chunk begin. A block shares one range and one check of a codec.

Since protocol version 5 no block spans two tensors (`Blocks.within`). Earlier versions cut the flat vector every 256
parameters, whatever tensors it holds there (`Blocks.across`). A codec takes either. Nothing here may know a codec.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["BLOCK", "Blocks"]

BLOCK = 256
"""most parameters of a block"""

Indices = NDArray[np.int64]

_WHOLE = 8
"""the codes of a block take whole bytes at every width if their number is a multiple of this"""


class Blocks:
    """The blocks of one chunk of n parameters.

    Args:
        starts: first parameter of each block, then n; ascending, shape (blocks + 1,).
        places: number of codes before each block in a frame, then their total; shape (blocks + 1,).
    """

    __slots__ = ("places", "starts")

    def __init__(self, starts: Indices, places: Indices) -> None:
        self.starts, self.places = starts, places

    @classmethod
    def within(cls, size: int, borders: Sequence[int] | Indices = ()) -> Blocks:
        """Blocks of at most 256 that end at each border.

        Args:
            size: n.
            borders: first parameters of the tensors that begin inside the chunk, ascending, each in 1 .. n - 1.
        """
        edges = np.concatenate(([0], np.asarray(borders, np.int64), [size])).astype(np.int64)
        counts = -(-np.diff(edges) // BLOCK)
        before = np.cumsum(counts) - counts
        total = int(counts.sum())
        starts = np.empty(total + 1, np.int64)
        starts[:total] = np.repeat(edges[:-1] - before * BLOCK, counts) + np.arange(total) * BLOCK
        starts[total] = size
        return cls(starts, _places(-(-np.diff(starts) // _WHOLE) * _WHOLE))

    @classmethod
    def across(cls, size: int) -> Blocks:
        """Blocks of 256 parameters of the flat vector. The last block's codes are padded to 256."""
        starts = np.append(np.arange(0, size, BLOCK, dtype=np.int64), size).astype(np.int64)
        return cls(starts, np.arange(len(starts), dtype=np.int64) * BLOCK)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def size(self) -> int:
        """n."""
        return int(self.starts[-1])

    @property
    def sizes(self) -> Indices:
        """Parameters of each block, shape (blocks,)."""
        return np.diff(self.starts)

    @property
    def codes(self) -> int:
        """Codes of a frame, padding included."""
        return int(self.places[-1])

    def take(self, chosen: Indices) -> Blocks:
        """The chosen blocks alone, one after another."""
        return Blocks(_places(self.sizes[chosen]), _places(np.diff(self.places)[chosen]))

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """The value of each parameter's block, shape (n,)."""
        return np.repeat(values, self.sizes)

    def widest(self, values: NDArray[np.float32], of: Blocks) -> NDArray[np.float32]:
        """Largest of `values`, which belong to the blocks `of`, among those that overlap each of these blocks."""
        first = np.searchsorted(of.starts, self.starts[:-1], "right") - 1
        last = np.searchsorted(of.starts, self.starts[1:], "left")
        between = np.stack((first, last), 1).reshape(-1)
        widest: NDArray[np.float32] = np.maximum.reduceat(np.append(values, values[-1:]), between)[::2]
        return widest


def _places(sizes: Indices) -> Indices:
    places = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=places[1:])
    return places
