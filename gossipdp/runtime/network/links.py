"""The links of one peer: which are up, which are replaced, full or unused, and what is sent on them.

What happens on the sockets comes in through `handle`. What is to happen on them goes out through a `Wire`. Two
connections, one for each lane, are a link; `Dialling` and `Listening` make links. No socket may stand here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from gossipdp.errors import GossipdpError, LocalProtocolError, RefusedError, RemoteProtocolError
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import MAX_FRAMES, Lane, printable, through
from gossipdp.runtime.network import signed_hello
from gossipdp.runtime.network.carrying import Carrier
from gossipdp.runtime.network.connections import Connection, Link
from gossipdp.runtime.network.context import LinksContext
from gossipdp.runtime.network.dial_backs import DialBacks, Examining
from gossipdp.runtime.network.dial_causes import Cause
from gossipdp.runtime.network.dialling import Dialling
from gossipdp.runtime.network.events import (
    CarriedBy,
    Flooded,
    InviteShown,
    LinkDown,
    LinkStatus,
    LinkUp,
    Received,
    RunLearned,
)
from gossipdp.runtime.network.listening import Listening
from gossipdp.runtime.network.places import loser
from gossipdp.runtime.network.relay_checks import RelayChecks
from gossipdp.runtime.network.relayed import Relayed
from gossipdp.runtime.network.send_queues import RETRY, SendQueues
from gossipdp.runtime.network.signed_hello import pack
from gossipdp.runtime.network.wire import (
    Answered,
    Arrived,
    Closed,
    Ended,
    Failed,
    Gone,
    Opened,
    Overflowed,
    Refused,
    WireEvent,
)

__all__ = ["Links"]

KEYS_HOLD: Final = 3600.0
"""seconds after which a relayed link gets new keys; one that has none after twice this time is closed"""
RELAYED_DRAIN: Final = 30
"""A replaced relayed link is read 30 times longer than a direct one, because messages may still wait at the relay."""
MAX_MET: Final = 1024
"""dialled addresses whose peer is remembered"""


class Links:
    """All links of one peer, without their sockets."""

    def __init__(self, context: LinksContext) -> None:
        self._context, self._turn, self._limits = context, context.turn, context.limits
        self._links: dict[bytes, Link] = {}
        self._retired: list[Link] = []
        self._queues = SendQueues(context, self._waiting_elsewhere)
        self._relayed = Relayed(context, self._queues, self)
        self._carrier = Carrier(context, self._queues, self)
        self._dialling = Dialling(context, self._queues, self, self._relayed)
        self._listening = Listening(context, self._queues, self, self._dialling.said)
        self._dial_backs = DialBacks(context, self._queues)
        self.examining = Examining(context, self._queues)
        self._relay_checks = RelayChecks(context, self._queues)
        self._known: Mapping[bytes, float] = {}
        """seconds for which this peer has known each member"""
        self._relays: Mapping[bytes, Sequence[str]] = {}
        """members that may carry -> where each can be dialled"""
        self._attended: set[bytes] = set()
        """those of them that are to carry to this peer"""
        self.seen = ""
        """the IP address that the member dialled last sees this peer come from"""
        self._shunned: dict[bytes, float] = {}
        """until when a peer gets no link"""
        self._met: dict[str, bytes] = {}
        """peer last met at each dialled address, the newest last"""
        self._swept = self._beaten = self._turn.now

    # -- what the driver asks ------------------------------------------------------------------------------------

    def found(self, run: bytes) -> None:
        """The peer belongs to `run` from now on; every linked peer hears of it."""
        if len(run) != 16 or self._context.me.run not in (b"", run):
            raise LocalProtocolError("a run has 16 bytes and is set once")
        self._context.me.belong(run)
        for link in self._all_links():
            self._tell_run(link)

    def advertise(self, addresses: Sequence[str], port: int) -> None:
        self._dial_backs.advertise(addresses, port)

    def know(self, known: Mapping[bytes, float], aside: Collection[bytes]) -> None:
        """See `Transport.know`."""
        self._known = known
        self._carrier.set_aside(aside)

    def carry(self, rate: float) -> None:
        """See `Transport.carry`."""
        self._carrier.allow(rate)

    def attend(self, relays: Collection[bytes], addresses: Mapping[bytes, Sequence[str]]) -> None:
        """See `Transport.attend`."""
        self._relays = addresses
        before, self._attended = self._attended, {*relays}
        self._relay_checks.keep(self._attended)
        for relay in sorted(self._attended ^ before):
            link = self._links.get(relay)
            if link is not None:
                self._queues.write(link.connections[Lane.CONTROL], pack(signed_hello.Attend(relay in self._attended)))

    def attends(self, relay: bytes) -> bool:
        return relay in self._attended

    def reach(self, peer: bytes, lane: Lane, frames: Sequence[Buffer]) -> None:
        if places := self._relays.get(peer, ()):
            self.send(peer, places[0], lane, frames, places[1:])

    def dial(self, peer: bytes, addresses: Sequence[str]) -> None:
        """See `Transport.dial`."""
        link = self._links.get(peer)
        if addresses and (link is None or link.via):
            self._dialling.dial(peer, addresses)

    def send(self, to: bytes, address: str, lane: Lane, frames: Sequence[Buffer], others: Sequence[str] = ()) -> bool:
        """See `Transport.send`."""
        size = sum(memoryview(frame).nbytes for frame in frames)
        link = self._links.get(to) if to else self._linked_at(address)
        if link is not None:
            link.use(self._turn.now)
            return self._queues.write(link.connections[lane], frames, size)
        if not address:
            return self._context.drop("unroutable")
        return self._dialling.send(to, address, lane, frames, size, others)

    def close_excluded(self) -> None:
        """Close the links with peers that are not admitted any longer."""
        for link in self._all_links():
            try:
                self._context.me.check_linked(link.peer, link.generation)
            except RefusedError as error:
                self._close_link(link, error.cause)

    def answer_invite(self, shown: InviteShown, why_not: str) -> None:
        self._listening.answer_invite(shown, why_not)

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait for a connection."""
        return self._queues.queued_bytes

    def statuses(self) -> list[LinkStatus]:
        return [
            LinkStatus(
                link.peer,
                link.address,
                link.inbound,
                link.incarnation,
                idle=self._turn.now - link.used,
                age=self._turn.now - link.opened,
                queued=sum(len(connection.queue) for connection in link.connections.values()),
                generation=link.generation,
                via=link.via,
            )
            for link in self._links.values()
        ]

    def route_on(self, descriptor: int) -> bytes:
        """The route of the link's inbound connection with this descriptor; b"" if no link has it."""
        return self._listening.route_on(descriptor)

    # -- what happens on connections -----------------------------------------------------------------------------

    def handle(self, event: WireEvent) -> None:
        match event:
            case Answered(connection, frames, size):
                self._answered(connection, frames, size)
            case Arrived():
                self._listening.arrived(event)
            case Opened(connection):
                self._dialling.opened(connection)
            case Failed(connection, cause, result):
                if connection.link is not None and connection.link.dial is not None:
                    self._dialling.failed(connection.link.dial, cause, result)
            case Ended(connection, reason):
                self._ended(connection, reason)
            case Gone(descriptor):
                self._listening.descriptor_closed(descriptor)
            case Closed(route):
                self._listening.closed(route)
            case Overflowed(over, unread):
                self._overflowed(over, unread)
            case Refused(origin, code, reason):
                self._listening.refused(origin, code, reason)

    def _answered(self, connection: Connection, frames: list[Buffer], size: int) -> None:
        link = connection.link
        assert link is not None
        if link.dial is None:
            self.take(connection, link, frames, size)
        else:
            self._dialling.answered(connection, link, link.dial, frames)

    def _ended(self, connection: Connection, reason: str) -> None:
        link = connection.link
        if link is None:
            return
        if link.dial is None:
            self._close_link(link, reason)
        else:
            self._dialling.failed(link.dial, Cause("GD-101", "closed the connection during the hello"), "broken")

    def _overflowed(self, over: bytes | Connection, unread: int) -> None:
        self._context.drop("flood", unread)
        connection = over if isinstance(over, Connection) else self._listening.connection(over)
        link = None if connection is None else connection.link
        if link is None:
            return
        if link.dial is not None:
            self._dialling.failed(link.dial, Cause("GD-101", "sent more than a hello"), "broken")
        elif self._is_open(link):
            if link.peer not in self._attended:  # a relay brings what others send
                self._shunned[link.peer] = self._turn.now + self._limits.shun
            self._turn.tell(Flooded(link.peer, unread))
            self._close_link(link, f"{unread} of its messages were unread")

    # -- links ---------------------------------------------------------------------------------------------------

    def linked(self, peer: bytes) -> Link | None:
        return self._links.get(peer)

    def live(self, peer: bytes) -> tuple[int, bytes] | None:
        link = self._links.get(peer)
        return None if link is None else (link.incarnation, link.start)

    def shunned(self, peer: bytes) -> bool:
        return self._turn.now < self._shunned.get(peer, -math.inf)

    def _all_links(self) -> list[Link]:
        return [*self._links.values(), *self._retired]

    def _is_open(self, link: Link) -> bool:
        return self._links.get(link.peer) is link or link in self._retired

    def _linked_at(self, address: str) -> Link | None:
        """The link with the peer that this peer last met at `address`; it may have come up at another address."""
        return self._links.get(self._met.get(address, b""))

    def _waiting_elsewhere(self) -> int:
        return self._dialling.queued_bytes + self._carrier.held

    def room(self, host: str = "") -> bool:
        return len(self._links) < self._limits.links or self._loser(host) is not None

    def _loser(self, host: str) -> Link | None:
        return loser(self._links.values(), host, self._known, self._turn.now, self._limits.idle)

    def bring_up(self, link: Link) -> Link:
        self._context.counters.handshakes["ok"] += 1
        for connection in link.connections.values():
            connection.hear(self._turn.now)
        me, peer = self._context.me.identity.id, link.peer
        full = peer not in self._links and len(self._links) >= self._limits.links
        if full and (other := self._loser(link.host)) is not None:
            self._close_link(other, "made room for another link")
        if not link.inbound and not link.via:
            self._meet(link.address, peer)
        old = self._links.get(peer)
        if old is None or link.rank(me) >= old.rank(me):
            self._links[peer] = link
            restarted = old is not None and old.incarnation != link.incarnation
            if restarted:
                self._turn.tell(LinkDown(peer, "the peer was started again"))
            if old is None or restarted:
                self._turn.tell(LinkUp(peer, link.address, link.inbound, link.incarnation, link.via))
            if old is not None:
                self._retire(old, link)
        else:
            self._retire(link, old)
        self._tell_run(link)
        stays = self._links[peer]
        self._dialling.take_over(stays)
        if not link.via:
            self._dial_backs.link_up(link.inbound)
            if peer in self._attended:
                self._queues.write(stays.connections[Lane.CONTROL], pack(signed_hello.Attend(True)))
        return stays

    def _meet(self, address: str, peer: bytes) -> None:
        self._met.pop(address, None)
        self._met[address] = peer
        if len(self._met) > MAX_MET:
            del self._met[next(iter(self._met))]

    def _retire(self, link: Link, better: Link) -> None:
        """Send on `better` from now on. Still read `link` for a while: the other side may have sent on it."""
        link.retire(self._turn.now + self._limits.drain * (RELAYED_DRAIN if link.via else 1))
        self._retired.append(link)
        for lane, connection in link.connections.items():
            for frames, size in connection.queue:
                self._queues.write(better.connections[lane], frames, size)
            connection.clear_queue()
            self._queues.forget(connection)

    def take(self, connection: Connection, link: Link, frames: list[Buffer], size: int) -> None:
        connection.hear(self._turn.now)
        if not frames:
            self._context.drop("malformed")
            return
        if signed_hello.is_service(frames[0]):
            self._on_service(link, connection, frames, size)
            return
        if len(frames) > MAX_FRAMES:
            self._context.drop("malformed")
            return
        link.use(self._turn.now)
        self._context.counters.count_received(link.peer, connection.lane, size)
        if link.via:
            self._context.counters.count_relayed(connection.lane, size)
        self._turn.tell(Received(link.peer, connection.lane, frames))

    def _on_service(self, link: Link, connection: Connection, frames: list[Buffer], size: int) -> None:
        try:
            message, filler = signed_hello.unpack(frames[:1]), frames[1:]
            if isinstance(message, signed_hello.Carry | signed_hello.Carried) and len(filler) <= MAX_FRAMES + 1:
                self._on_carriage(link, connection.lane, message, filler, size)
            elif isinstance(message, signed_hello.Measure | signed_hello.Measured) and len(filler) < 2:
                self.examining.take(link, connection, message, sum(memoryview(each).nbytes for each in filler))
            elif filler:
                raise RemoteProtocolError("frames after a service message")
            elif isinstance(message, signed_hello.Attend):
                self._carrier.attend(link, message.wanted)
            elif isinstance(message, signed_hello.Attended):
                if link.peer in self._attended:
                    if message.taken:
                        self._relay_checks.begin(link.peer)
                    self._turn.tell(CarriedBy(link.peer, message.taken, printable(message.reason)))
            elif isinstance(message, signed_hello.NotCarried) and message.once:
                self._context.drop("queue")
            elif isinstance(message, signed_hello.NotCarried):
                for event in self._relayed.refused(link.peer, message.to, message.reason):
                    self.handle(event)
            elif isinstance(message, signed_hello.Learned):
                signed_hello.check_run(self._context.me.run, message.run)
                self.learn_run(message.run, link.peer)
            elif isinstance(message, signed_hello.Bye):
                self._close_link(link, printable(message.reason))
            elif isinstance(message, signed_hello.DialBack):
                if (until := self._dial_backs.asked(link.peer, message.address)) is not None:
                    self._dialling.dial_back(link.peer, link.host, message.address, until)
            elif isinstance(message, signed_hello.InVain):
                self._dial_backs.in_vain(link.peer, message.address, tried=message.tried)
                self._relay_checks.answered(link.peer, message.address, met=False, tried=message.tried)
                self.examining.dialled_back(link.peer, message.address, met=False, tried=message.tried)
            elif isinstance(message, signed_hello.Met):
                self._dial_backs.met(link.peer, message.address)
                self._relay_checks.answered(link.peer, message.address, met=True, tried=True)
                self.examining.dialled_back(link.peer, message.address, met=True, tried=True)
            elif not isinstance(message, signed_hello.Welcome | signed_hello.Probe):
                raise RemoteProtocolError("a hello on a link that is up")
        except RemoteProtocolError:
            self._context.drop("malformed")
        except GossipdpError as error:
            self._listening.refused(link.address, error.code, error.cause)
            self._close_link(link, error.cause)

    def _on_carriage(
        self,
        link: Link,
        lane: Lane,
        message: signed_hello.Carry | signed_hello.Carried,
        frames: list[Buffer],
        size: int,
    ) -> None:
        if link.via:
            raise RemoteProtocolError("carried through a relayed link")
        if isinstance(message, signed_hello.Carry):
            self._carrier.carry(link, lane, message.to, frames, size)
            return
        link.use(self._turn.now)
        for event in self._relayed.take(link.peer, message.origin, lane, frames):
            self.handle(event)

    def learn_run(self, run: bytes, peer: bytes) -> None:
        if run and not self._context.me.run:
            self.found(run)
            self._turn.tell(RunLearned(run, peer))

    def _tell_run(self, link: Link) -> None:
        run = self._context.me.run
        if link.told_run != run:
            link.tell_run(run)
            self._queues.write(link.connections[Lane.CONTROL], pack(signed_hello.Learned(run)))

    def seen_at(self, host: str) -> None:
        self.seen = host
        self._dial_backs.seen_at(host)

    def dialled_back(self, asker: bytes, address: str, *, met: bool, tried: bool) -> None:
        if self._dial_backs.dialled(asker, address, met=met, tried=tried):
            self._tell_dialled(asker, signed_hello.Met(address))

    def _tell_dialled(self, asker: bytes, answer: signed_hello.Met | signed_hello.InVain) -> None:
        link = self._links.get(asker)
        if link is not None:
            self._queues.write(link.connections[Lane.CONTROL], pack(answer))

    def _close_link(self, link: Link, reason: str) -> None:
        if self._links.get(link.peer) is link:
            del self._links[link.peer]
            if link.via:
                self._dialling.avoid(link.peer, link.via)
            self._turn.tell(LinkDown(link.peer, reason))
            self._carrier.link_down(link.peer)
            for event in self._relayed.relay_gone(link.peer):
                self.handle(event)
        elif link in self._retired:
            self._retired.remove(link)
        if link.inbound:
            for connection in link.connections.values():
                connection.wire.answer(connection.route, pack(signed_hello.Bye(reason[:160])))
        self.close_connections(link, linger=1.0)

    def close_connections(self, link: Link, linger: float = 0.0) -> None:
        for connection in link.connections.values():
            self._context.drop("link down", sum(size > 0 for _, size in connection.queue))
            connection.clear_queue()
            self._queues.forget(connection)
            self._listening.unroute(connection)
            if link.inbound:
                connection.wire.dismiss(connection)
            else:
                connection.wire.shut(connection, linger)

    # -- time ----------------------------------------------------------------------------------------------------

    def next_timer(self) -> float:
        now = self._turn.now
        if self._queues.has_dead:
            return now
        due = min(
            self._swept + min(1.0, self._limits.idle / 4),
            self._beaten + self._limits.heartbeat,
            self._dialling.next_timer(),
            self._listening.next_timer(),
            self._dial_backs.next_timer(),
            self._relay_checks.next_timer(),
            self._carrier.next_timer(),
        )
        if self._queues.waiting:
            due = min(due, now + RETRY)
        if self._retired:
            due = min(due, *(link.retired for link in self._retired))
        return due

    def run_timers(self) -> None:
        now = self._turn.now
        self._queues.flush()
        self._carrier.flush()
        self._listening.probe()
        for connection in self._queues.take_dead():
            if connection.link is not None and self._is_open(connection.link):
                self._close_link(connection.link, "closed by the other side")
            else:
                self._listening.gone(connection)
        self._dialling.run_timers()
        self._listening.run_timers()
        for link in list(self._retired):
            if now >= link.retired:
                self._close_link(link, "a better link is up")
        for asker, address, tried in self._dial_backs.overdue():
            self._tell_dialled(asker, signed_hello.InVain(address, tried))
        self._dial_backs.run_timers(self._links.values())
        self._relay_checks.run_timers(self._links.values())
        if now >= self._beaten + self._limits.heartbeat:
            self._beat()
        if now >= self._swept + min(1.0, self._limits.idle / 4):
            self._sweep()

    def _beat(self) -> None:
        """Probe quiet connections. Close a link if one of its connections was silent for too long.

        A probe queues behind the payload of its own connection, so the data lane gets more patience on a slow line.
        """
        now, heartbeat = self._turn.now, self._limits.heartbeat
        pause, self._beaten = now - self._beaten, now
        for link in self._all_links():
            for lane, connection in link.connections.items():
                if pause > 3 * heartbeat:
                    connection.hear(now)  # this process was held up and has not read what arrived meanwhile
                if now - connection.heard > _patience(lane, link) * heartbeat:
                    self._close_link(link, f"silent for {now - connection.heard:.0f} s")
                    break
                if now - connection.said >= heartbeat / 2 and not connection.queue:
                    self._queues.probe(connection)

    def _sweep(self) -> None:
        """Close links that are not used."""
        self._swept = now = self._turn.now
        for link in list(self._links.values()):
            idle = now - link.used
            if idle >= self._limits.idle * (2 if link.inbound else 1):
                self._close_link(link, f"unused for {idle:.0f} s")
        self._renew_keys()
        self.close_excluded()  # a link may have come up while the lists changed
        self._dialling.sweep()
        self._dial_backs.sweep()
        for event in self._relayed.run_timers():
            self.handle(event)
        self._carrier.sweep()
        self._shunned = {peer: until for peer, until in self._shunned.items() if until > now}

    def _renew_keys(self) -> None:
        """Make relayed links anew whose keys are old or worn. The end that dialled does so."""
        for link in [link for link in self._links.values() if link.via]:
            if self._turn.now >= link.opened + 2 * KEYS_HOLD:
                self._close_link(link, "its keys are too old")
            if link.inbound:
                continue
            worn = any(self._relayed.worn(connection) for connection in link.connections.values())
            if worn or self._turn.now >= link.opened + KEYS_HOLD:
                self._dialling.dial(link.peer, [through(link.via, link.peer)])


def _patience(lane: Lane, link: Link) -> int:
    """Heartbeats that a connection may be silent. A chunk of 4 MiB takes 34 s at 1 Mbit/s, and shares the line."""
    if lane is Lane.DATA:
        return 64
    return 11 if link.inbound else 4
