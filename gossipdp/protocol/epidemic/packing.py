"""One peer's increment as the payload of a broadcast: the parts, and the chunks in each part.

The payloads of all chunks follow one another, the same number of chunks in each part. A part begins with the lengths of
its payloads. The schema alone gives the number of chunks in a part. An empty payload stands for a chunk that does not
move. Nothing here knows the content of a payload.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.epidemic_messages import MAX_PART, MAX_PARTS

__all__ = ["fit", "largest", "pack", "unpack"]

EXACT: Final = 2
"""bytes a parameter of an increment that travels whole, the most that any compressor uses beside its head"""
HEAD: Final = 512
"""most bytes before a chunk's values, including the overhead of a small chunk"""


def _chunks_a_part(chunks: int) -> int:
    """Chunks in one part."""
    return -(-chunks // MAX_PARTS)


def fit(chunks: int, size: int) -> bool:
    """Whether the payloads of `chunks` chunks, of up to `size` bytes each, can be sent."""
    return _chunks_a_part(chunks) * (size + 4) <= MAX_PART


def largest(chunks: int, parameters: int) -> int:
    """Most bytes of an increment of `chunks` chunks with up to `parameters` parameters each."""
    return min(chunks * (4 + HEAD + EXACT * parameters), MAX_PARTS * MAX_PART)


def pack(payloads: Sequence[Buffer]) -> list[bytes]:
    """The parts of an increment.

    Args:
        payloads: one for each chunk of the model, in order.
    """
    width, parts = _chunks_a_part(len(payloads)), []
    for first in range(0, len(payloads), width):
        inside = payloads[first : first + width]
        head = struct.pack(f"<{len(inside)}I", *(memoryview(payload).nbytes for payload in inside))
        parts.append(b"".join((head, *inside)))
    return parts


def unpack(parts: Sequence[Buffer], chunks: int) -> list[Buffer] | None:
    """The payloads of all `chunks`. None if `pack` writes no such parts."""
    width = _chunks_a_part(chunks)
    if len(parts) != -(-chunks // width):
        return None
    payloads: list[Buffer] = []
    for number, part in enumerate(parts):
        data = memoryview(part).cast("B")
        inside = min(width, chunks - number * width)
        if data.nbytes < 4 * inside:
            return None
        at = 4 * inside
        for size in struct.unpack_from(f"<{inside}I", data):
            payloads.append(data[at : at + size])
            at += size
        if at != data.nbytes:
            return None
    return payloads
