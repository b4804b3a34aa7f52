"""The mean of several checkpoints of one model, as one checkpoint. Nothing here may write, or import torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from gossipdp.errors import MismatchError
from gossipdp.protocol.schema import Schema
from gossipdp.runtime.storage.checkpoint import Checkpoint

__all__ = ["Averaged"]

REFERENCE = "reference"


class Averaged(Checkpoint):
    """Reads as the first of `parts`, except that its model is the mean of all, computed in pieces.

    State that peers do not exchange is the first one's.

    Raises:
        MismatchError: GD-301, a checkpoint is of another model, or of another founder's buffers.
    """

    def __init__(self, parts: Sequence[Checkpoint]) -> None:
        first, *others = parts
        super().__init__(first.path, first.manifest, first.schema)
        self._parts = parts
        for other in others:
            if other.schema != first.schema:
                one, another = Schema.from_bytes(first.schema), Schema.from_bytes(other.schema)
                raise _differs(first, other, one.first_difference(another))
            if _reference(other) != _reference(first):
                raise _differs(first, other, "their buffers refer to the values of different founders")

    def model(self, start: int, stop: int) -> Iterator[NDArray[np.float32]]:
        for pieces in zip(*(part.model(start, stop) for part in self._parts), strict=True):
            total = np.zeros(len(pieces[0]), np.float64)
            for piece in pieces:
                total += piece
            yield (total / len(pieces)).astype(np.float32)


def _reference(checkpoint: Checkpoint) -> bytes:
    return bytes(checkpoint.read(REFERENCE).data) if REFERENCE in checkpoint.shapes() else b""


def _differs(first: Checkpoint, other: Checkpoint, seen: str) -> MismatchError:
    return MismatchError(
        "GD-301",
        "checkpoints of different models cannot be averaged",
        seen=f"{first.path} and {other.path}: {seen}",
        do="name homes of one network, whose peers train the same model",
    )
