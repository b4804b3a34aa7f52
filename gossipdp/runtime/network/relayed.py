"""Connections that a third member carries: a `Wire` whose messages travel sealed over the link with a relay.

    dialler                    relay                    listener
      Carry(listener) Begin ->   ->   Carried(dialler) Begin       a key pair for this connection alone
                            <-   <-   Began                        its counterpart: from here on all is sealed
      Sealed                ->   ->   Sealed                       the signed hello, as on any connection

`Dialling`, `Listening` and `Links` use such a connection like one of ZeroMQ. Before the hello is complete the peer at
the other end is what the relay says. A peer that sends on an unknown stream hears that the stream is over. No socket or
clock may stand here.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct

from gossipdp.errors import RemoteProtocolError
from gossipdp.protocol.budgets import TokenBucket
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import U63, Lane, printable, short
from gossipdp.runtime.network.connections import Connection
from gossipdp.runtime.network.context import LinksContext, LinkTable
from gossipdp.runtime.network.dial_causes import Cause
from gossipdp.runtime.network.sealing import KEY_BYTES, Ephemeral, Seal
from gossipdp.runtime.network.send_queues import SendQueues
from gossipdp.runtime.network.signed_hello import Carry, pack
from gossipdp.runtime.network.wire import Answered, Arrived, Closed, Ended, Failed, Opened, WireEvent

__all__ = ["MARK", "Relayed"]

MARK: Final = b"@"
"""begin of the route of an inbound stream. libzmq's routes begin with a zero byte"""
UNPROVEN: Final = 16
"""inbound streams of one relay without a proven member"""
OF_RELAY: Final = (16.0, 64.0)
"""streams that one relay may bring: a second, and at once. Each costs a key exchange"""
OF_PEER: Final = (1.0, 8.0)
"""the same, of those that the relay says are of one peer"""
LOST: Final = 2
"""Messages lost on the data lane after which the link is made anew, through another relay if there is one. An exchange
waits for each of them until its time-out."""
HELLO_MESSAGES: Final = 4
"""messages on an inbound stream before a member is proven: a hello, its proof, and some to spare"""
HELLO_BYTES: Final = 4096
"""largest of them"""

StreamId = Annotated[bytes, Meta(min_length=16, max_length=16)]
Key = Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]


class _Parcel(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of what the ends of a stream say to each other, in the first frame that a relay carries."""

    stream: StreamId


class _Begin(_Parcel, frozen=True, tag=1):
    key: Key


class _Began(_Parcel, frozen=True, tag=2):
    key: Key


class _Sealed(_Parcel, frozen=True, tag=3):
    """The frames behind are boxes."""

    number: U63


class _End(_Parcel, frozen=True, tag=4):
    """The sender has closed the stream, or does not know it."""


_Parcels: TypeAlias = _Begin | _Began | _Sealed | _End
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[_Parcels] = msgspec.msgpack.Decoder(_Parcels)


@dataclass(slots=True)
class _Stream:
    """One relayed connection at one end."""

    id: bytes
    relay: bytes
    peer: bytes
    """at the other end, as the relay says; an inbound hello must be of this peer"""
    lane: Lane
    connection: Connection | None = None
    """of a dialled stream, or of an inbound one with a proven member"""
    ephemeral: Ephemeral | None = None
    seal: Seal | None = None
    until: float = 0.0
    """when an inbound stream must have a proven member"""
    came: int = 0
    """messages on an inbound stream without one"""
    unsent: tuple[Sequence[Buffer], list[Buffer]] | None = None
    """a message that the link with the relay did not take, and what it was sealed to"""

    @property
    def inbound(self) -> bool:
        return self.until > 0.0

    @property
    def unproven(self) -> bool:
        return self.inbound and self.connection is None

    @property
    def route(self) -> bytes:
        return MARK + self.id


class Relayed:
    """The relayed connections of one peer."""

    def __init__(self, context: LinksContext, queues: SendQueues, links: LinkTable) -> None:
        self._context, self._queues, self._links = context, queues, links
        self._streams: dict[bytes, _Stream] = {}
        self._dialled: dict[Connection, _Stream] = {}
        self._budgets: dict[tuple[bytes, bytes], TokenBucket] = {}
        """(relay, peer), or (relay, b"") for all of one relay -> inbound streams that may still begin"""

    # -- what `Links` asks (see `Wire`) --------------------------------------------------------------------------

    def open(self, connection: Connection, endpoint: str) -> None:
        relay, peer = (bytes.fromhex(each) for each in endpoint[1:].split("/"))
        ephemeral = Ephemeral()
        stream = _Stream(secrets.token_bytes(16), relay, peer, connection.lane, connection, ephemeral)
        self._streams[stream.id] = self._dialled[connection] = stream
        self._send(stream, _Begin(stream.id, ephemeral.public))

    def push(self, connection: Connection, frames: Sequence[Buffer], size: int) -> bool:
        stream = self._dialled.get(connection) or self._streams.get(connection.route[1:])
        if stream is None or self._links.linked(stream.relay) is None:
            raise BrokenPipeError("the relay is gone")
        return self._push(stream, frames)

    def answer(self, route: bytes, frames: Sequence[Buffer]) -> None:
        if (stream := self._streams.get(route[1:])) is not None:
            self._push(stream, frames)

    def prove(self, connection: Connection) -> None:
        if (stream := self._streams.get(connection.route[1:])) is not None:
            stream.connection = connection

    def dismiss(self, connection: Connection) -> None:
        if (stream := self._streams.get(connection.route[1:])) is not None:
            self._end(stream)

    def shut(self, connection: Connection, linger: float) -> None:
        if (stream := self._dialled.get(connection)) is not None:
            self._end(stream)

    def _push(self, stream: _Stream, frames: Sequence[Buffer]) -> bool:
        if stream.seal is None:
            return False
        if stream.unsent is None or stream.unsent[0] is not frames:
            number, boxes = stream.seal.seal(frames)
            stream.unsent = frames, [_encoder.encode(_Sealed(stream.id, number)), *boxes]
        sent = self._write(stream, stream.unsent[1])
        if sent:
            stream.unsent = None
        return sent

    def _write(self, stream: _Stream, frames: Sequence[Buffer]) -> bool:
        link = self._links.linked(stream.relay)
        if link is None or link.via:
            return False
        link.use(self._context.turn.now)
        return self._queues.offer(link.connections[stream.lane], [*pack(Carry(stream.peer)), *frames])

    def _send(self, stream: _Stream, parcel: _Parcels) -> None:
        """Send a parcel without frames. A link with the relay is made first if there is none."""
        frames = [*pack(Carry(stream.peer)), _encoder.encode(parcel)]
        link = self._links.linked(stream.relay)
        if link is not None:
            if not link.via:
                self._queues.write(link.connections[stream.lane], frames)
        elif not stream.inbound and isinstance(parcel, _Begin):
            self._links.reach(stream.relay, stream.lane, frames)

    def _end(self, stream: _Stream) -> None:
        self._forget(stream)
        self._send(stream, _End(stream.id))

    def _forget(self, stream: _Stream) -> None:
        self._streams.pop(stream.id, None)
        if not stream.inbound and stream.connection is not None:
            self._dialled.pop(stream.connection, None)

    # -- what relays bring ---------------------------------------------------------------------------------------

    def take(self, relay: bytes, origin: bytes, lane: Lane, frames: Sequence[Buffer]) -> list[WireEvent]:
        """The linked member `relay` brings `frames` of `origin`, on this lane.

        Raises:
            RemoteProtocolError: they are malformed, or forged.
        """
        if not frames:
            raise RemoteProtocolError("nothing was carried")
        try:
            parcel = _decoder.decode(frames[0])
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise RemoteProtocolError(f"malformed parcel: {type(error).__name__}") from None
        stream = self._streams.get(parcel.stream)
        if stream is not None and (stream.relay, stream.peer, stream.lane) != (relay, origin, lane):
            raise RemoteProtocolError("a parcel of another stream")
        match parcel:
            case _Begin(_, key):
                return self._begun(_Stream(parcel.stream, relay, origin, lane), key) if stream is None else []
            case _ if stream is None:
                if not isinstance(parcel, _End):
                    self._send(_Stream(parcel.stream, relay, origin, lane), _End(parcel.stream))
                return []
            case _Began(_, key):
                return self._answered(stream, key)
            case _Sealed(_, number):
                if stream.seal is None:
                    raise RemoteProtocolError("sealed before the keys were known")
                if stream.unproven and not _may_be_hello(stream, frames):
                    self._end(stream)
                    return [Closed(stream.route)]
                events = self._opened(stream, stream.seal.open(number, frames[1:]))
                if stream.connection is not None and lane is Lane.DATA and stream.seal.lost >= LOST:
                    events.append(Ended(stream.connection, "its relay loses messages"))
                return events
        return self._ended(stream, "the other end has closed it")

    def _begun(self, stream: _Stream, key: bytes) -> list[WireEvent]:
        """A peer begins a stream."""
        if not self._links.attends(stream.relay) or not self._affords(stream):
            self._context.drop("unverified")
            return []
        closed: list[WireEvent] = []
        unproven = [each for each in self._unproven() if each.relay == stream.relay]
        if len(unproven) >= UNPROVEN:
            # The peer with the most streams loses one. So a peer cannot lock out others by its own streams.
            counts = Counter(each.peer for each in unproven)
            oldest = next(each for each in unproven if counts[each.peer] == max(counts.values()))
            self._end(oldest)
            closed.append(Closed(oldest.route))
        ephemeral = Ephemeral()
        stream.seal = ephemeral.listener(key)
        stream.until = self._context.turn.now + self._context.limits.unproven
        self._streams[stream.id] = stream
        self._send(stream, _Began(stream.id, ephemeral.public))
        return closed

    def _affords(self, stream: _Stream) -> bool:
        """Whether one more stream of this relay and peer may begin."""
        now, places = self._context.turn.now, {(stream.relay, b""): OF_RELAY, (stream.relay, stream.peer): OF_PEER}
        for place, (rate, most) in places.items():
            if self._budgets.setdefault(place, TokenBucket(rate, most, now)).left(now) < 1.0:
                return False
        for place in places:
            self._budgets[place].spend(1.0, now)
        return True

    def _answered(self, stream: _Stream, key: bytes) -> list[WireEvent]:
        if stream.ephemeral is None or stream.connection is None:
            raise RemoteProtocolError("an answer to no question")
        stream.seal, stream.ephemeral = stream.ephemeral.dialler(key), None
        stream.connection.bind(stream.seal.binding)
        return [Opened(stream.connection)]

    def _opened(self, stream: _Stream, frames: list[Buffer]) -> list[WireEvent]:
        size = sum(len(memoryview(frame)) for frame in frames)
        if not stream.inbound and stream.connection is not None:
            return [Answered(stream.connection, frames, size)]
        assert stream.seal is not None
        return [
            Arrived(
                stream.route,
                stream.seal.binding.hex(),
                frames,
                size,
                lambda: ("", -1),
                self,
                stream.relay,
                stream.peer,
                stream.lane,
            )
        ]

    def refused(self, relay: bytes, to: bytes, reason: str) -> Iterator[WireEvent]:
        """The relay does not carry to this peer. Handle each event before the next is asked for."""
        lost = [stream for stream in self._streams.values() if (stream.relay, stream.peer) == (relay, to)]
        return self._all_ended(lost, f"{short(relay)}: {printable(reason)}")

    def relay_gone(self, relay: bytes) -> Iterator[WireEvent]:
        """There is no link with `relay` any more. Handle each event before the next is asked for."""
        lost = [stream for stream in self._streams.values() if stream.relay == relay]
        return self._all_ended(lost, f"the relay {short(relay)} is gone")

    def _all_ended(self, streams: Iterable[_Stream], reason: str) -> Iterator[WireEvent]:
        for stream in streams:
            if stream.id in self._streams:  # the end of one ends others of its link
                yield from self._ended(stream, reason)

    def _ended(self, stream: _Stream, reason: str) -> list[WireEvent]:
        connection = stream.connection
        if connection is None or connection.link is None or connection.link.dial is None:
            self._forget(stream)
            return [Closed(stream.route) if connection is None else Ended(connection)]
        return [Failed(connection, Cause("GD-101", "not carried by the relay", reason), "relay")]

    # -- time ----------------------------------------------------------------------------------------------------

    def _unproven(self) -> list[_Stream]:
        return [stream for stream in self._streams.values() if stream.unproven]

    def run_timers(self) -> Iterator[WireEvent]:
        """Forget inbound streams on which no member was proven in time. Handle each event before the next is asked for.

        Budgets that are full again are forgotten, too.
        """
        now = self._context.turn.now
        self._budgets = {place: each for place, each in self._budgets.items() if each.left(now) < each.most}
        for stream in self._unproven():
            if now >= stream.until:
                self._forget(stream)
                yield Closed(stream.route)

    def worn(self, connection: Connection) -> bool:
        """Whether the keys of this dialled connection have sealed as many messages as they may."""
        stream = self._dialled.get(connection)
        return stream is not None and stream.seal is not None and stream.seal.worn


def _may_be_hello(stream: _Stream, frames: Sequence[Buffer]) -> bool:
    """Count a message on a stream without a proven member. Whether it is one of few, and short."""
    stream.came += 1
    return stream.came <= HELLO_MESSAGES and sum(memoryview(frame).nbytes for frame in frames) <= HELLO_BYTES
