"""Collects what the state machines of one peer ask for: messages, events and jobs, each kind in order.

No machine sees what another one put in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from gossipdp.protocol.events import Event
from gossipdp.protocol.jobs import Job
from gossipdp.protocol.wire import encoding
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Lane, Message
from gossipdp.protocol.wire.table import DATA_LANE

__all__ = ["Envelope", "Outputs"]


class Envelope(NamedTuple):
    """One message on its way out."""

    to: bytes
    """the receiver's peer id, or b"" when only its address is known (a seed)"""
    address: str
    """where to dial if no link to `to` is up; "" for a peer that can only dial out"""
    lane: Lane
    frames: list[Buffer]
    message: Message
    """for drivers that name what they send (logs, fault points)"""
    others: tuple[str, ...] = ()
    """further addresses of the receiver; the driver decides which to dial first"""


class Outputs:
    """Messages, events and jobs that wait for the driver, in the order in which they were made."""

    def __init__(self) -> None:
        self.messages: deque[Envelope] = deque()
        self.events: deque[Event] = deque()
        self.unjudged: list[Event] = []
        """the events that `Peer` has not yet shown to `Strikes`"""
        self.jobs: deque[Job[object]] = deque()

    def send(self, to: bytes, message: Message, buffers: Sequence[Buffer] = (), *, address: str = "") -> int:
        """Queue `message`. Returns its size in bytes, all frames together."""
        frames = encoding.encode(message, buffers)
        lane = Lane.DATA if type(message) in DATA_LANE else Lane.CONTROL
        self.messages.append(Envelope(to, address, lane, frames, message))
        return sum(memoryview(frame).nbytes for frame in frames)

    def emit(self, event: Event) -> None:
        """Queue `event`."""
        self.events.append(event)
        self.unjudged.append(event)

    def ask(self, job: Job[object]) -> None:
        """Queue `job`."""
        self.jobs.append(job)
