"""Where the state machines of one peer put what they want done: messages, events and jobs, in order.

A plain collector. It knows no machine, and no machine sees what another put in; but one may listen to all events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gossipdp.protocol.events import Event
from gossipdp.protocol.jobs import Job
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Lane, Message
from gossipdp.protocol.wire.table import DATA_LANE


class Envelope(NamedTuple):
    """One message on its way out.

    to: the receiver's peer id, or b"" when only its address is known (a seed).
    address: where to dial if no link to `to` is up; "" for a peer that can only dial out.
    message: kept beside its frames for drivers that name what they send (logs, fault points).
    """

    to: bytes
    address: str
    lane: Lane
    frames: list[Buffer]
    message: Message


class Outputs:
    def __init__(self) -> None:
        self.messages: deque[Envelope] = deque()
        self.events: deque[Event] = deque()
        self.jobs: deque[Job] = deque()
        self.listener: Callable[[Event], None] = lambda event: None

    def send(self, to: bytes, message: Message, buffers: Sequence[Buffer] = (), *, address: str = "") -> int:
        """Queue `message`; returns its size in bytes, all frames together."""
        frames = wire.encode(message, buffers)
        lane = Lane.DATA if type(message) in DATA_LANE else Lane.CONTROL
        self.messages.append(Envelope(to, address, lane, frames, message))
        return sum(memoryview(frame).nbytes for frame in frames)

    def emit(self, event: Event) -> None:
        self.events.append(event)
        self.listener(event)

    def ask(self, job: Job) -> None:
        self.jobs.append(job)
