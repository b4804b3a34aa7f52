"""Bytes that travel with a model and are not averaged: the reference of its buffers, and the state.

For each buffer element, the vector holds the difference to a *reference*: the value that the founder had. So a constant
is 0 in every vector, and exact on every peer with the reference. The reference never changes. Its digest is part of the
schema, so peers with different references exchange nothing. The *state* is all that is not exchanged: integer buffers,
excluded buffers, frozen parameters that move. The training process sends it with its snapshots. A joiner, a peer that
fetches the model anew and a restart get the newest. Both are opaque bytes here (`codecs.named`), cut into pieces that
follow the vector's chunks in a state transfer.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from gossipdp.protocol.wire.encoding import Buffer

__all__ = ["NOTHING", "PIECE", "Carried", "pieces", "reference_digest"]

PIECE: Final = 1 << 20
"""bytes of a piece; the last may be shorter"""


@dataclass(frozen=True, slots=True)
class Carried:
    """The reference and the state; empty where there is none."""

    reference: Buffer = b""
    state: Buffer = b""

    def piece(self, number: int) -> memoryview | None:
        """Piece `number`, counting those of the reference first; None past the last."""
        own = pieces(memoryview(self.reference).nbytes)
        data, at = (self.reference, number) if number < own else (self.state, number - own)
        part = memoryview(data).cast("B")[at * PIECE : (at + 1) * PIECE]
        return part if part.nbytes else None


NOTHING: Final = Carried()


def pieces(size: int) -> int:
    """Number of pieces of `size` bytes."""
    return -(-size // PIECE)


def reference_digest(hashes: bytes) -> bytes:
    """Digest of a reference, from the hashes of its pieces; b"" without one."""
    return hashlib.blake2b(hashes, digest_size=16, person=b"gossipdp ref").digest() if hashes else b""
