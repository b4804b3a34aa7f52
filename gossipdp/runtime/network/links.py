"""The links of one peer: which are up, given up, full, unused, and what is sent on them. No socket may stand here.

`Transport` owns the sockets; what happens on them comes in through `opened`, `answered`, `arrived`, `failed`, `ended`
and `descriptor_closed`, and what is to be done on them goes out through a `Wire`. Two connections, one a lane, are a
link; how one comes to be is the matter of two halves, `Dialling` and `Listening`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from gossipdp.errors import GossipdpError, LocalProtocolError, RemoteProtocolError
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import MAX_FRAMES, Lane, printable
from gossipdp.runtime.network import handshake
from gossipdp.runtime.network.connections import Connection, Link, Wire
from gossipdp.runtime.network.dialling import Dialling
from gossipdp.runtime.network.events import (
    Dialable,
    Flooded,
    LinkDown,
    LinkStatus,
    LinkUp,
    Received,
    RunLearned,
    TransportCounters,
    TransportEvent,
    TransportLimits,
)
from gossipdp.runtime.network.handshake import Self, pack
from gossipdp.runtime.network.listening import Listening
from gossipdp.runtime.network.reachability import Reachability

__all__ = ["Peering"]

_RETRY: Final = 0.005
"""seconds between tries to empty a queue: POLLOUT of a ROUTER is true even for a full peer"""


class Peering:
    """All links of one peer, without their sockets. See `Transport` for the arguments."""

    def __init__(self, me: Self, wire: Wire, limits: TransportLimits, counters: TransportCounters, now: float) -> None:
        self.me, self.wire, self.limits, self.counters, self.now = me, wire, limits, counters, now
        self.events: list[TransportEvent] = []
        self._links: dict[bytes, Link] = {}
        self._retired: list[Link] = []
        self._queued: dict[Connection, None] = {}
        self._dead: list[Connection] = []
        self._dialling = Dialling(self)
        self._listening = Listening(self, self._dialling.said)
        self._reachability = Reachability("", limits.dial_back)
        self._dialled_back: dict[bytes, float] = {}
        """when each peer last asked for it"""
        self._shunned: dict[bytes, float] = {}
        """until when a peer gets no link"""
        self._swept = self._beaten = now

    @property
    def run(self) -> bytes:
        return self.me.run

    @run.setter
    def run(self, run: bytes) -> None:
        if len(run) != 16 or self.me.run not in (b"", run):
            raise LocalProtocolError("a run has 16 bytes and is set once")
        self.me.run = run
        for link in self._all_links():
            self._tell_run(link)

    def advertise(self, address: str) -> None:
        self._reachability = Reachability(address, self.limits.dial_back)

    def send(self, to: bytes, address: str, lane: Lane, frames: Sequence[Buffer]) -> bool:
        size = sum(memoryview(frame).nbytes for frame in frames)
        link = self._links.get(to) if to else self._linked_at(address)
        if link is not None:
            link.used = self.now
            return self.write(link.connections[lane], frames, size)
        if not address:
            return self.drop("unroutable")
        return self._dialling.send(to, address, lane, frames, size)

    def statuses(self) -> list[LinkStatus]:
        return [
            LinkStatus(
                link.peer,
                link.address,
                link.inbound,
                link.incarnation,
                idle=self.now - link.used,
                age=self.now - link.opened,
                queued=sum(len(connection.queue) for connection in link.connections.values()),
            )
            for link in self._links.values()
        ]

    # -- what happens on connections -----------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        """CURVE is done on a dialled connection."""
        self._dialling.opened(connection)

    def answered(self, connection: Connection, frames: list[Buffer], size: int) -> None:
        """A message came on a dialled connection."""
        link = connection.link
        assert link is not None
        if link.dial is None:
            self.take(connection, link, frames, size)
        else:
            self._dialling.answered(connection, link, link.dial, frames)

    def failed(self, connection: Connection, code: str, reason: str, result: str) -> None:
        """A dialled connection was not made. `result` is the word it is counted under."""
        if connection.handle is not None and connection.link is not None and connection.link.dial is not None:
            self._dialling.failed(connection.link.dial, code, reason, result)

    def ended(self, connection: Connection) -> None:
        """A dialled connection was closed, and what had arrived on it is taken."""
        link = connection.link
        if link is None or connection.handle is None:
            return
        if link.dial is None:
            self._close_link(link, "closed by the other side")
        else:
            self._dialling.failed(link.dial, "GD-101", "closed the connection during the hello", "broken")

    def arrived(
        self, route: bytes, user: str, frames: list[Buffer], size: int, source: Callable[[], tuple[str, int]]
    ) -> None:
        """A message came on an inbound connection.

        Args:
            route: libzmq's name for the connection.
            user: the CURVE key it was made with, as hexadecimal digits; "" if unknown.
            size: of all frames together, in bytes.
            source: tells the IP address it came from, and the descriptor as `descriptor_closed` will name it.
        """
        self._listening.arrived(route, user, frames, size, source)

    def descriptor_closed(self, descriptor: int) -> None:
        """The inbound connection of this number is gone."""
        self._listening.descriptor_closed(descriptor)

    def route_on(self, descriptor: int) -> bytes:
        """The route of the inbound link connection with this descriptor; b"" if no link has it."""
        return self._listening.route_on(descriptor)

    def flooded(self, over: bytes | Connection, unread: int) -> None:
        """A connection, or the inbound one of this route, sent more than this peer could read: `unread` messages."""
        self.drop("flood", unread)
        connection = over if isinstance(over, Connection) else self._listening.connection(over)
        link = None if connection is None else connection.link
        if link is None:
            return
        if link.dial is not None:
            self._dialling.failed(link.dial, "GD-101", "sent more than a hello", "broken")
        elif self._is_open(link):
            self._shunned[link.peer] = self.now + self.limits.shun
            self.events.append(Flooded(link.peer, unread))
            self._close_link(link, f"{unread} of its messages were unread")

    def refused(self, origin: str, code: str, reason: str) -> None:
        """Somebody who dialled in was refused."""
        self._listening.refused(origin, code, reason)

    # -- sending -------------------------------------------------------------------------------------------------

    def write(self, connection: Connection, frames: Sequence[Buffer], size: int = 0) -> bool:
        try:
            if not connection.queue and self._push(connection, frames, size):
                return True
        except BrokenPipeError:
            self._dead.append(connection)
            return self.drop("link down", int(size > 0))  # a word of this layer's own is no message lost
        if not self.fits(len(connection.queue), connection.queued_bytes, size):
            return self.drop("queue")
        connection.queue.append((frames, size))
        connection.queued_bytes += size
        self._queued[connection] = None
        self.counters.full += 1
        return True

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait here for connections to take them."""
        return self._dialling.queued_bytes + sum(connection.queued_bytes for connection in self._queued)

    def fits(self, messages: int, queued: int, size: int) -> bool:
        limits = self.limits
        if messages >= limits.queue_messages or queued + size > limits.queue_bytes:
            return False
        return self.queued_bytes + size <= limits.total_bytes

    def _push(self, connection: Connection, frames: Sequence[Buffer], size: int) -> bool:
        if not self.wire.push(connection, frames, size):
            return False
        connection.said = self.now
        if size and connection.link is not None:
            self.counters.count_sent(connection.link.peer, connection.lane, size)
        return True

    def _flush(self, connection: Connection) -> None:
        try:
            while connection.queue:
                frames, size = connection.queue[0]
                if not self._push(connection, frames, size):
                    return
                connection.queue.popleft()
                connection.queued_bytes -= size
        except BrokenPipeError:
            self._dead.append(connection)
        self._queued.pop(connection, None)

    def unqueue(self, connection: Connection) -> None:
        self._queued.pop(connection, None)

    def probe(self, connection: Connection) -> None:
        try:
            self._push(connection, pack(handshake.Probe()), 0)
        except BrokenPipeError:
            self._dead.append(connection)

    def drop(self, reason: str, count: int = 1) -> bool:
        if count:
            self.counters.drops[reason] += count
        return False

    # -- links ---------------------------------------------------------------------------------------------------

    def linked(self, peer: bytes) -> Link | None:
        return self._links.get(peer)

    def live(self, peer: bytes) -> tuple[int, bytes] | None:
        link = self._links.get(peer)
        return None if link is None else (link.incarnation, link.start)

    def shunned(self, peer: bytes) -> bool:
        return self.now < self._shunned.get(peer, -math.inf)

    def _all_links(self) -> list[Link]:
        return [*self._links.values(), *self._retired]

    def _linked_at(self, address: str) -> Link | None:
        return next((x for x in self._links.values() if not x.inbound and x.address == address), None)

    def room(self) -> bool:
        if len(self._links) < self.limits.links:
            return True
        oldest = min(self._links.values(), key=lambda link: link.used)
        if self.now - oldest.used < min(5.0, self.limits.idle):
            return False
        self._close_link(oldest, "made room for another link")
        return True

    def bring_up(self, link: Link) -> Link:
        self.counters.handshakes["ok"] += 1
        for connection in link.connections.values():
            connection.heard = self.now
        me, peer = self.me.identity.id, link.peer
        old = self._links.get(peer)
        if old is None or link.rank(me) >= old.rank(me):
            self._links[peer] = link
            restarted = old is not None and old.incarnation != link.incarnation
            if restarted:
                self.events.append(LinkDown(peer, "the peer was started again"))
            if old is None or restarted:
                self.events.append(LinkUp(peer, link.address, link.inbound, link.incarnation))
            if old is not None:
                self._retire(old, link)
        else:
            self._retire(link, old)
        self._tell_run(link)
        stays = self._links[peer]
        self._dialling.take_over(stays)
        if self._reachability.link_up(link.inbound, self.now):
            self._tell_dialable(True)
        return stays

    def _retire(self, link: Link, better: Link) -> None:
        """Send on `better` from now on, and read `link` for a while: the other side may still have used it."""
        link.retired = self.now + self.limits.drain
        self._retired.append(link)
        for lane, connection in link.connections.items():
            for frames, size in connection.queue:
                self.write(better.connections[lane], frames, size)
            connection.queue.clear()
            connection.queued_bytes = 0
            self.unqueue(connection)

    def take(self, connection: Connection, link: Link, frames: list[Buffer], size: int) -> None:
        connection.heard = self.now
        if handshake.is_service(frames[0]):
            self._on_service(link, frames)
            return
        if len(frames) > MAX_FRAMES:
            self.drop("malformed")
            return
        link.used = self.now
        self.counters.count_received(link.peer, connection.lane, size)
        self.events.append(Received(link.peer, connection.lane, frames))

    def _on_service(self, link: Link, frames: list[Buffer]) -> None:
        try:
            message = handshake.unpack(frames)
            if isinstance(message, handshake.Learned):
                handshake.check_run(self.me.run, message.run)
                self.learn_run(message.run, link.peer)
            elif isinstance(message, handshake.Bye):
                self._close_link(link, printable(message.reason))
            elif isinstance(message, handshake.DialBack):
                self._dial_back(link.peer, message.address)
            elif isinstance(message, handshake.InVain):
                self._reachability.in_vain(link.peer, message.address, self.now)
            elif not isinstance(message, handshake.Welcome | handshake.Probe):
                raise RemoteProtocolError("a hello on a link that is up")
        except RemoteProtocolError:
            self.drop("malformed")
        except GossipdpError as error:
            self.refused(link.address, error.code, error.cause)
            self._close_link(link, error.cause)

    def learn_run(self, run: bytes, peer: bytes) -> None:
        if run and not self.me.run:
            self.run = run
            self.events.append(RunLearned(run, peer))

    def _tell_run(self, link: Link) -> None:
        if link.told_run != self.me.run:
            link.told_run = self.me.run
            self.write(link.connections[Lane.CONTROL], pack(handshake.Learned(self.me.run)))

    def _close_link(self, link: Link, reason: str) -> None:
        if self._links.get(link.peer) is link:
            del self._links[link.peer]
            self.events.append(LinkDown(link.peer, reason))
        elif link in self._retired:
            self._retired.remove(link)
        if link.inbound:
            for connection in link.connections.values():
                self.wire.answer(connection.route, pack(handshake.Bye(reason[:160])))
        self.close_connections(link, linger=1.0)

    def close_connections(self, link: Link, linger: float = 0.0) -> None:
        for connection in link.connections.values():
            self.drop("link down", sum(size > 0 for _, size in connection.queue))
            connection.queue.clear()
            self.unqueue(connection)
            self._listening.unroute(connection)
            if link.inbound:
                self.wire.dismiss(connection)
            if connection.handle is not None:
                self.wire.shut(connection, linger)
                connection.handle = None

    # -- can this peer be dialled? -------------------------------------------------------------------------------

    def _dial_back(self, asker: bytes, address: str) -> None:
        """A member asks to be dialled at the address that it says is its own.

        Rarely, and only to say hello: not what a member can have others do anyway by advertising an address.
        """
        if self.now >= self._dialled_back.get(asker, -math.inf) + self.limits.dial_back / 2:
            self._dialled_back[asker] = self.now
            self._dialling.dial_back(asker, address)

    def tell_in_vain(self, asker: bytes, address: str) -> None:
        link = self._links.get(asker)
        if link is not None:
            self.write(link.connections[Lane.CONTROL], pack(handshake.InVain(address)))

    def _ask_for_dial_backs(self) -> None:
        if self._reachability.end_round(self.now):
            self._tell_dialable(False)
        links = sorted(self._links.values(), key=lambda link: link.used, reverse=True)
        question = pack(handshake.DialBack(self._reachability.address))
        for peer in self._reachability.begin_round((link.peer for link in links), self.now):
            self.write(self._links[peer].connections[Lane.CONTROL], question)

    def _tell_dialable(self, dialable: bool) -> None:
        self.events.append(Dialable(self._reachability.address, dialable, self._reachability.opinions))

    # -- time ----------------------------------------------------------------------------------------------------

    def next_timer(self) -> float:
        if self._dead:
            return self.now
        due = min(
            self._swept + min(1.0, self.limits.idle / 4),
            self._beaten + self.limits.heartbeat,
            self._dialling.next_timer(),
            self._listening.next_timer(),
            self._reachability.timer(),
        )
        if self._queued:
            due = min(due, self.now + _RETRY)
        if self._retired:
            due = min(due, *(link.retired for link in self._retired))
        return due

    def run_timers(self) -> None:
        for connection in list(self._queued):
            self._flush(connection)
        self._listening.probe()
        dead, self._dead = self._dead, []
        for connection in dead:
            if connection.link is not None and self._is_open(connection.link):
                self._close_link(connection.link, "closed by the other side")
            else:
                self._listening.gone(connection)
        self._dialling.run_timers()
        self._listening.run_timers()
        for link in list(self._retired):
            if self.now >= link.retired:
                self._close_link(link, "a better link is up")
        if self.now >= self._reachability.timer():
            self._ask_for_dial_backs()
        if self.now >= self._beaten + self.limits.heartbeat:
            self._beat()
        if self.now >= self._swept + min(1.0, self.limits.idle / 4):
            self._sweep()

    def _is_open(self, link: Link) -> bool:
        return self._links.get(link.peer) is link or link in self._retired

    def _beat(self) -> None:
        """Say a word on quiet connections, and close links of which a connection has been silent for too long.

        A word queues behind the payload of its own connection, so the data lane gets more patience on a slow line.
        """
        pause, self._beaten = self.now - self._beaten, self.now
        for link in self._all_links():
            for lane, connection in link.connections.items():
                if pause > 3 * self.limits.heartbeat:
                    connection.heard = self.now  # this process was held up, and has not read what came meanwhile
                if self.now - connection.heard > _patience(lane, link) * self.limits.heartbeat:
                    self._close_link(link, f"silent for {self.now - connection.heard:.0f} s")
                    break
                if self.now - connection.said >= self.limits.heartbeat / 2 and not connection.queue:
                    self.probe(connection)

    def _sweep(self) -> None:
        """Close links that nobody uses."""
        self._swept = self.now
        for link in list(self._links.values()):
            idle = self.now - link.used
            if idle >= self.limits.idle * (2 if link.inbound else 1):
                self._close_link(link, f"unused for {idle:.0f} s")
        self._dialling.sweep()
        self._shunned = {peer: until for peer, until in self._shunned.items() if until > self.now}
        recent = self.now - self.limits.dial_back
        self._dialled_back = {peer: when for peer, when in self._dialled_back.items() if when > recent}


def _patience(lane: Lane, link: Link) -> int:
    """Heartbeats that a connection may be silent. A chunk of 4 MiB takes 34 s at 1 Mbit/s, and shares the line."""
    if lane is Lane.DATA:
        return 64
    return 11 if link.inbound else 4
