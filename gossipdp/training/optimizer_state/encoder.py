"""Encodes Adam's moments into shared memory, some blocks at each step boundary, so that no step is held up.

Both moments of a block are of one step. Blocks may be of steps that follow each other. Nothing here knows the daemon.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossipdp.codecs.blocks import BLOCK
from gossipdp.training.optimizer_state.encoding import Encoded, encode
from gossipdp.training.tensors.arithmetic import Flat
from gossipdp.training.tensors.blocks import Spans, joined, overlaps, parts, whole
from gossipdp.training.tensors.layout import Layout
from gossipdp.training.tensors.schema import local
from gossipdp.training.tensors.streams import Fence, passed

__all__ = ["KEYS", "Bytes", "MomentsEncoder", "Torn", "piece_of", "spans_of", "torn_values"]

Bytes: TypeAlias = NDArray[np.uint8]

KEYS: Final = ("exp_avg_sq", "exp_avg")
"""the moments' names in the optimizer's state, in the order in which they are encoded"""
DEVICE_PIECE: Final = 1 << 22
"""parameters that a device encodes at once: 40 kernels, and 18 bytes each beside the model"""
CPU_PIECE: Final = 1 << 18
"""the same on the CPU, whose caches hold them"""
DEVICE_LEAST: Final = 1 << 26
CPU_LEAST: Final = 1 << 21
"""fewest parameters at one step boundary"""
BOUNDARIES: Final = 16
"""step boundaries over which one transfer is spread, at most"""
TORN_AT_ONCE: Final = 256
"""torn blocks at one step boundary: each takes four copies"""


class Source(Protocol):
    """The moments that are encoded."""

    replaced: int
    """times that others took their place"""

    def moment(self, index: int, key: str) -> Tensor | None:
        """A moment of one tensor, by its index in the schema; None counts as zeros."""


class Torn(NamedTuple):
    """Blocks that no rank holds whole, with their elements from all ranks."""

    starts: Sequence[int]
    """first parameter of each"""
    values: Tensor
    """both moments, fp32, shape (2, blocks, 256)"""


def piece_of(device: torch.device) -> int:
    """Parameters that are encoded or decoded at once; a multiple of 256."""
    return DEVICE_PIECE if device.type == "cuda" else CPU_PIECE


def spans_of(layout: Layout, rank: int, ranks: int) -> Spans:
    """The parameters whose moments one of `ranks` writes."""
    return joined(layout.schema, ((start, stop) for _, _, start, stop in layout.shares(rank, ranks)))


@torch.no_grad()
def torn_values(layout: Layout, source: Source, spans: Spans, starts: Sequence[int]) -> Tensor:
    """What one rank writes of torn blocks, and 0 elsewhere: `Torn.values` is the sum over all ranks.

    Args:
        spans: as `spans_of`.
        starts: first parameter of each block.
    """
    found = torch.zeros(2, len(starts), BLOCK, dtype=torch.float32, device=layout.device)
    for row, start in enumerate(starts):
        for lower, upper in overlaps(spans, start, min(start + BLOCK, layout.schema.trainable)):
            for key, target in zip(KEYS, found[:, row], strict=True):
                _read(layout, source, key, lower, upper, target[lower - start : upper - start])
    return found


class MomentsEncoder:
    """One transfer of both moments to the daemon. `step` encodes the next part.

    Args:
        layout: the model's exchanged tensors.
        source: their moments.
        into: the free shared buffer.
        spans: parameters that this rank encodes, as far as they are whole blocks.
        torn: on the rank that encodes them.
    """

    def __init__(self, layout: Layout, source: Source, into: Bytes, spans: Spans, torn: Torn | None = None) -> None:
        self._layout, self._source, self._into = layout, source, torch.from_numpy(into)
        self._spans, self._torn = spans, torn
        least = DEVICE_LEAST if layout.device.type == "cuda" else CPU_LEAST
        self._at_once = max(least, layout.schema.trainable // BOUNDARIES)
        self.fence: Fence = passed
        """behind everything encoded so far"""
        self._plan()

    def _plan(self) -> None:
        self._replaced = self._source.replaced
        self._pieces: deque[tuple[int, Callable[[], None]]] = deque()
        """parameters of each, and what encodes them"""
        most = piece_of(self._layout.device)
        for start, stop in whole(self._layout.schema, self._spans):
            for begin in range(start, stop, most):
                end = min(begin + most, stop)
                self._pieces.append((end - begin, partial(self._encode, begin, end)))
        if self._torn is not None:
            for first in range(0, len(self._torn.starts), TORN_AT_ONCE):
                self._pieces.append((self._at_once, partial(self._encode_torn, first)))

    @torch.no_grad()
    def step(self, *, everything: bool = False) -> bool:
        """Encode as much as a step boundary has time for, or `everything`. Returns True once there is no more.

        On CUDA it runs beside the training, until `Layout.before_step`.
        """
        if self._replaced != self._source.replaced:
            self._plan()  # a tensor's moments must not be of two optimizers
        streams, left = self._layout.streams, self._at_once
        streams.begin()
        while self._pieces and (everything or left > 0):
            size, encode_piece = self._pieces.popleft()
            encode_piece()
            left -= size
        self.fence = streams.end()
        return not self._pieces

    def _encode(self, start: int, stop: int) -> None:
        device = self._device(start, stop)
        with self._layout.streams.on(device):
            size = -(-(stop - start) // BLOCK) * BLOCK
            v, m = (torch.zeros(size, dtype=torch.float32, device=device) for _ in KEYS)
            for key, target in zip(KEYS, (v, m), strict=True):
                _read(self._layout, self._source, key, start, stop, target, self._layout.streams.beside)
            self._store(encode(v, m), start, stop)

    def _encode_torn(self, first: int) -> None:
        assert self._torn is not None
        streams, trainable = self._layout.streams, self._layout.schema.trainable
        values = self._torn.values[:, first : first + TORN_AT_ONCE]
        with streams.beside(values):
            encoded = encode(*(each.reshape(-1).clone() for each in values))
            for row, start in enumerate(self._torn.starts[first : first + TORN_AT_ONCE]):
                elements, block = slice(row * BLOCK, (row + 1) * BLOCK), slice(row, row + 1)
                one = Encoded(*(each[at] for each, at in zip(encoded, (elements, block) * 2, strict=True)))
                self._store(one, start, min(start + BLOCK, trainable))

    def _device(self, start: int, stop: int) -> torch.device:
        """Where the first of these parameters is."""
        piece = next(self._layout.pieces(start, stop - start, shards=True, rest=True), None)
        return self._layout.device if piece is None else self._layout.tensors[piece.entry].device

    def _store(self, encoded: Encoded, start: int, stop: int) -> None:
        """Write the parts of [start, stop), whole blocks, to their places in shared memory."""
        for part in parts(self._layout.schema, start, stop):
            elements = slice(part.start - start, part.stop - start)
            blocks = slice(elements.start // BLOCK, -(-elements.stop // BLOCK))
            for values, place, of in zip(encoded, part.places, (elements, blocks) * 2, strict=True):
                self._layout.streams.store(values[of].view(torch.uint8), self._into[place])


def _read(
    layout: Layout,
    source: Source,
    key: str,
    start: int,
    stop: int,
    into: Tensor,
    context: Callable[[Tensor], AbstractContextManager[object]] = nullcontext,
) -> None:
    """into := what this rank holds of a moment of [start, stop), each tensor's part in its `context`."""
    for piece in layout.pieces(start, stop - start, shards=True, rest=True):
        tensor = source.moment(piece.entry, key)
        if tensor is not None:
            here = local(tensor)
            with context(here):
                into[piece.start : piece.stop].copy_(Flat(here, piece.first, piece.last).read())
