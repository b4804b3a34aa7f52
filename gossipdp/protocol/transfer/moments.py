"""The inner optimizer's moments as joiners fetch them: content, chunks and signature."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TypeAlias

import msgpack

from gossipdp.protocol import jobs
from gossipdp.protocol.schema import Schema, chunk_parameters
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import (
    MomentsAsk,
    MomentsChunk,
    MomentsManifest,
    MomentsRefuse,
    MomentsRequest,
)

__all__ = ["Asked", "Given", "Moments", "MomentsMessage", "chunk_sizes", "signed_moments"]

Asked: TypeAlias = MomentsRequest | MomentsAsk
Given: TypeAlias = MomentsManifest | MomentsChunk | MomentsRefuse
MomentsMessage: TypeAlias = Asked | Given


@dataclass(frozen=True, slots=True)
class Moments:
    """Both moments of a whole model, encoded, and the number of steps of their optimizer."""

    steps: int
    chunks: tuple[jobs.Frozen, ...]


def chunk_sizes(schema: Schema) -> list[int]:
    """Parameters with moments, of each chunk that has any."""
    width = chunk_parameters(schema.size)
    return [min(width, schema.trainable - start) for start in range(0, schema.trainable, width)]


def signed_moments(manifest: MomentsManifest, hashes: Buffer) -> bytes:
    """The digest that the source signs."""
    fields = (manifest.number, manifest.parameters, manifest.chunk_parameters, manifest.steps, manifest.schema)
    digest = hashlib.blake2b(digest_size=32, person=b"gossipdp moments")
    digest.update(msgpack.packb(fields))
    digest.update(hashlib.blake2b(hashes).digest())
    return digest.digest()
