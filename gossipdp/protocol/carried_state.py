"""What travels with a model and is not averaged: the reference of its buffers, and state.

The vector holds, of each buffer element, the difference to a *reference*: the value that the founder had. So a constant
is 0 in every vector, and exact wherever the reference is. The reference never changes; its digest is part of the
schema, so peers with different references exchange nothing. The *state* is all that is not exchanged (integer buffers,
excluded buffers, frozen parameters that move); the training process tells it with its snapshots, and a joiner, a peer
that fetches the model anew and a restart get the newest. Both are opaque bytes here (`codecs.named`), cut into pieces
that follow the vector's chunks in a state transfer.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from gossipdp.protocol.wire.encoding import Buffer

__all__ = ["NOTHING", "PIECE", "Carried", "pieces", "reference_digest"]

PIECE: Final = 1 << 20
"""bytes of a piece, but for the last"""


@dataclass(frozen=True, slots=True)
class Carried:
    """Empty where there is nothing to carry."""

    reference: Buffer = b""
    state: Buffer = b""

    def piece(self, number: int) -> memoryview | None:
        """Piece `number`, those of the reference first; None past the last."""
        own = pieces(memoryview(self.reference).nbytes)
        data, at = (self.reference, number) if number < own else (self.state, number - own)
        part = memoryview(data).cast("B")[at * PIECE : (at + 1) * PIECE]
        return part if part.nbytes else None


NOTHING: Final = Carried()


def pieces(size: int) -> int:
    """Pieces that `size` bytes make."""
    return -(-size // PIECE)


def reference_digest(hashes: bytes) -> bytes:
    """What a schema says of its reference, from the hashes of its pieces; b"" for no reference."""
    return hashlib.blake2b(hashes, digest_size=16, person=b"gossipdp ref").digest() if hashes else b""
