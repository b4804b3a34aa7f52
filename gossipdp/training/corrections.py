"""Corrections that the daemon has put into shared memory and the live parameters do not hold yet."""

from __future__ import annotations

from collections import deque

from gossipdp.protocol.schema import Schema, chunk_spans
from gossipdp.runtime import link as links
from gossipdp.training.orders import Drain

__all__ = ["Corrections"]


class Corrections:
    """A queue of slots, in the order in which the daemon sealed them."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._slots: deque[links.Slot] = deque()
        self._chunks: list[slice] = []
        """elements of each chunk of the flat vector"""
        self._applied = 0

    def __bool__(self) -> bool:
        return bool(self._slots)

    @property
    def applied(self) -> int:
        """Number of the last slot that the live parameters hold."""
        return self._applied

    def terms(self, chunk_parameters: int) -> None:
        """The daemon offers a session whose chunks have this many parameters."""
        self._chunks = chunk_spans(self._schema.size, self._schema.trainable, chunk_parameters)

    def begin(self) -> None:
        """A session begins: its slots are numbered from 1."""
        self._applied = 0

    def came(self, slot: links.Slot) -> None:
        self._slots.append(slot)

    def drained(self, number: int) -> None:
        """The live parameters hold slot `number`."""
        self._applied = number

    def clear(self) -> None:
        """The daemon is gone, and its shared memory with it."""
        self._slots.clear()

    def next(self, region: links.Region) -> Drain:
        """Take the oldest slot from the queue."""
        slot = self._slots.popleft()
        chunks = self._chunks[: slot.spans[-1][1] + 1] if slot.spans else []
        spans = [(chunks[first].start, chunks[last].stop) for first, last in slot.spans if last < len(chunks)]
        return Drain(slot.session, slot.slot, tuple(spans), region.slots[slot.slot % 2])
