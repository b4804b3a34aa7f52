"""Corrections that the daemon has put into shared memory and the live parameters do not hold yet."""

from __future__ import annotations

from gossipdp.protocol.schema import Schema, chunk_spans
from gossipdp.runtime import link as links
from gossipdp.training.orders import Drain

__all__ = ["Corrections"]


class Corrections:
    """The slot that is out, if there is one: the daemon seals no other before it is drained."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._slot: links.Slot | None = None
        self._chunks: list[slice] = []
        """elements of each chunk of the flat vector"""
        self.applied = 0
        """number of the last slot that the live parameters hold"""
        self.taken = 0
        """number of the last slot that was taken to be drained"""

    def __bool__(self) -> bool:
        """True if a slot is to be taken."""
        return self._slot is not None and self._slot.slot > self.taken

    def terms(self, chunk_parameters: int) -> None:
        """The daemon offers a session whose chunks have this many parameters."""
        self._chunks = chunk_spans(self._schema.size, self._schema.trainable, chunk_parameters)

    def begin(self) -> None:
        """A session begins: its slots are numbered from 1."""
        self.applied = self.taken = 0

    def came(self, slot: links.Slot) -> None:
        self._slot = slot

    def drained(self, number: int) -> None:
        """The live parameters hold slot `number`."""
        self.applied = number

    def clear(self) -> None:
        """The daemon is gone, and its shared memory with it."""
        self._slot = None

    def take(self, region: links.Region) -> Drain | None:
        """Take the slot to drain it. None if there is none, or it was taken."""
        drain = self.undrained(region) if self else None
        if drain is not None:
            self.taken = drain.slot
        return drain

    def undrained(self, region: links.Region) -> Drain | None:
        """The slot that the live parameters do not hold yet, whether it was taken or not."""
        slot, chunks = self._slot, self._chunks
        if slot is None or slot.slot <= self.applied:
            return None
        spans = [(chunks[first].start, chunks[last].stop) for first, last in slot.spans if last < len(chunks)]
        return Drain(slot.session, slot.slot, tuple(spans), region.buffers[slot.slot % 2])
