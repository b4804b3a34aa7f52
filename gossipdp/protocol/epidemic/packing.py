"""One peer's increment as the payload of a rumour: what of it stands in which part.

The chunks' payloads stand one behind the other, so many chunks a part; each part begins with the lengths of its
payloads. How many chunks that are follows from the schema alone. An empty payload stands for a chunk that does not
move. What a payload says is not known here.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.epidemic_messages import MAX_PART, MAX_PARTS

__all__ = ["fit", "largest", "pack", "unpack"]

EXACT: Final = 2
"""bytes a parameter of an increment that travels whole: no compressor takes more, but for its head"""
HEAD: Final = 512
"""bytes before a chunk's values, at the most, and what a small chunk takes more than its share"""


def _chunks_a_part(chunks: int) -> int:
    return -(-chunks // MAX_PARTS)


def fit(chunks: int, size: int) -> bool:
    """Can payloads of so many chunks, of up to `size` bytes each, be sent?"""
    return _chunks_a_part(chunks) * (size + 4) <= MAX_PART


def largest(chunks: int, parameters: int) -> int:
    """Bytes of the parts of an increment of so many chunks, of up to so many parameters each, at the most."""
    return min(chunks * (4 + HEAD + EXACT * parameters), MAX_PARTS * MAX_PART)


def pack(payloads: Sequence[Buffer]) -> list[bytes]:
    """The parts of a rumour; `payloads` are of all chunks of the model, in order."""
    width, parts = _chunks_a_part(len(payloads)), []
    for first in range(0, len(payloads), width):
        inside = payloads[first : first + width]
        head = struct.pack(f"<{len(inside)}I", *(memoryview(payload).nbytes for payload in inside))
        parts.append(b"".join((head, *inside)))
    return parts


def unpack(parts: Sequence[Buffer], chunks: int) -> list[Buffer] | None:
    """The payloads of all `chunks`; None if `pack` does not write this."""
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
