"""One broadcast machine among peers that a test plays, and increments as their origins make them."""

from __future__ import annotations

from random import Random

from gossipdp.protocol.epidemic.broadcast import Broadcast
from gossipdp.protocol.epidemic.config import BroadcastConfig
from gossipdp.protocol.epidemic.events import RumourReceived
from gossipdp.protocol.epidemic.signing import make, name_of
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.strikes import QuarantineConfig, Strikes
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.epidemic_messages import NO_RUN, Rumour, RumourPart
from tests.protocol.epidemic.broadcast_network import peer, signature, verify

ME, STRANGER = peer(0), peer(99)
EPOCH, SPAN = 7, 100


class Rig:
    """The machine of peer 0 with three neighbours and some further members, in epoch 7.

    Args:
        applies: apply each increment that is handed out at once.
    """

    def __init__(self, members=4, *, applies=True, **config):
        self.now, self.applies = 0.0, applies
        self.strikes = Strikes(QuarantineConfig(), ME, lambda peer: True)
        self.out = Outputs(self.strikes.observe)
        self.members = {peer(number) for number in range(members)}
        self.machine = Broadcast(
            BroadcastConfig(**({"span": SPAN, "sync": 1e9, "again": 4.0, "patience": 6.0} | config)),
            ME,
            incarnation=1,
            random=Random(1),
            outputs=self.out,
            report=self.out.emit,
            sign=lambda data: signature(ME, data),
            verify=verify,
            knows=lambda origin: origin in self.members,
            shuns=self.strikes.shuns,
            now=0.0,
        )
        self.machine.found(0.0)
        self.machine.advance(EPOCH * SPAN, 0.0)
        self.machine.neighbours(self.members, 0.0)
        self.near = sorted(link.peer for link in self.machine._links.neighbours())
        self.take()
        self.events()

    def take(self, kind=object, to=None):
        """Remove and return the messages sent since the last call: (receiver, message)."""
        sent = []
        while self.out.messages:
            envelope = self.out.messages.popleft()
            assert wire.decode(envelope.frames)[0] == envelope.message
            if isinstance(envelope.message, kind) and to in (None, envelope.to):
                sent.append((envelope.to, envelope.message))
        return sent

    def events(self, kind=object):
        found = [event for event in self.out.events if isinstance(event, kind)]
        self.out.events.clear()
        return found

    def say(self, source, message, *buffers):
        self.machine.receive(message, buffers, source, self.now)
        for event in self.out.events if self.applies else ():
            if isinstance(event, RumourReceived):
                self.machine.applied(event.name)
        if any(struck.pause for struck in self.strikes.judge(self.now)):
            self.machine.neighbours(self.members - {*self.strikes.aside(self.now)}, self.now)

    def wait(self, seconds):
        until = self.now + seconds
        while (at := self.machine.timer()) is not None and at <= until:
            self.now = max(self.now, at)
            self.machine.handle_timer(self.now)
        self.now = until

    def tell(self, source, told, parts=None):
        """`source` pushes a whole increment."""
        self.say(source, told.header, told.table)
        for number in range(len(told.parts)) if parts is None else parts:
            self.say(source, RumourPart(told.name, number), told.parts[number])


class Told:
    """An increment as its origin made it."""

    def __init__(
        self,
        origin,
        *,
        sequence=0,
        epoch=EPOCH,
        incarnation=1,
        parts=(b"one", b"two", b"six"),
        by=None,
        run=NO_RUN,
        **kw,
    ):
        fields = {"weight": 0.5, "clock": epoch * SPAN, "samples": 10} | kw
        draft = Rumour(
            origin, incarnation, epoch, sequence, fields["weight"], fields["clock"], fields["samples"], 1, 1, bytes(32),
            bytes(64), run=run,
        )  # fmt: skip
        self.parts = list(parts)
        self.header, self.table = make(draft, self.parts, run, lambda data: signature(by or origin, data))
        self.name = name_of(self.header, run)


def publish(rig, payload=b"payload", clock=EPOCH * SPAN):
    return rig.machine.publish([payload], weight=0.5, clock=clock, samples=10, now=rig.now)
