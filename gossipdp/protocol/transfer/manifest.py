"""What a source signs of a state, and how a joiner checks it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgpack

from gossipdp.errors import RemoteProtocolError
from gossipdp.protocol.carried_state import pieces, reference_digest
from gossipdp.protocol.causes import Fault
from gossipdp.protocol.schema import Schema, chunk_parameters
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import StateManifest

__all__ = ["HASH", "Contents", "hash_of", "read_manifest", "signed_part"]

HASH: Final = 16
"""Bytes of the hash of a chunk or piece."""


def hash_of(hashes: bytes, chunk: int) -> bytes:
    """The hash of one chunk or piece."""
    return hashes[HASH * chunk : HASH * (chunk + 1)]


def signed_part(manifest: StateManifest, schema: Buffer, hashes: Buffer) -> bytes:
    """The digest that the source signs."""
    fields = (
        manifest.snapshot,
        manifest.parameters,
        manifest.chunk_parameters,
        manifest.clock,
        manifest.rounds,
        manifest.schema,
        manifest.settings,
        manifest.reference,
        manifest.state,
    )
    digest = hashlib.blake2b(digest_size=32, person=b"gossipdp state")
    for part in (msgpack.packb(fields), hashlib.blake2b(schema).digest(), hashlib.blake2b(hashes).digest()):
        digest.update(part)
    return digest.digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """A manifest whose parts agree with each other. Its signature is not checked."""

    schema: Schema
    schema_bytes: bytes
    hashes: bytes
    """Of the vector's chunks, then of the pieces that go with it."""
    signature: bytes
    spans: Sequence[slice]
    """The parameters of each chunk."""
    width: int
    """Parameters of a chunk."""
    reference: int
    """Pieces of the reference."""

    @property
    def chunks(self) -> int:
        """Chunks of the vector."""
        return len(self.spans)

    @property
    def total(self) -> int:
        """Chunks and pieces."""
        return len(self.hashes) // HASH


def read_manifest(manifest: StateManifest, buffers: Sequence[Buffer]) -> Contents | Fault:
    """Check that the parts of a manifest agree.

    Args:
        buffers: Schema, hashes, signature.

    Returns:
        The parts, or why the manifest is refused.
    """
    schema_bytes, hashes, signature = (bytes(buffer) for buffer in buffers)
    try:
        schema = Schema.from_bytes(schema_bytes)
    except (ValueError, RemoteProtocolError):
        return Fault.SCHEMA
    width, spans = chunk_parameters(schema.size), schema.spans()
    chunks, reference = len(spans), pieces(manifest.reference)
    agrees = (
        schema.size == manifest.parameters
        and schema.digest == manifest.schema
        and width == manifest.chunk_parameters
        and len(hashes) == HASH * (chunks + reference + pieces(manifest.state))
        and schema.reference == reference_digest(hashes[HASH * chunks : HASH * (chunks + reference)])
    )
    if not agrees:
        return Fault.MANIFEST
    return Contents(
        schema=schema,
        schema_bytes=schema_bytes,
        hashes=hashes,
        signature=signature,
        spans=spans,
        width=width,
        reference=reference,
    )
