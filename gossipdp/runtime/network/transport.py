"""The links of one peer, as its driver sees them: send, poll, and read what happened.

`Transport` puts `Links` (which links there are) on `ZmqWire` (the sockets). Calls go down only: transport, links, wire.
Events come back up as values. A transport belongs to the one thread that calls it. Only `poll` blocks, and nothing a
remote does becomes an exception. No message of the protocol is read here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Lane
from gossipdp.runtime.descriptors import shares
from gossipdp.runtime.network.context import LinksContext, Turn
from gossipdp.runtime.network.events import Crowded, InviteShown, LinkStatus, TransportCounters, TransportEvent
from gossipdp.runtime.network.identity import Identity, NetworkSecret, known_curve_keys
from gossipdp.runtime.network.incarnation import draw_start
from gossipdp.runtime.network.limits import TransportLimits
from gossipdp.runtime.network.links import Links
from gossipdp.runtime.network.local_peer import LocalPeer
from gossipdp.runtime.network.proxy import Proxy
from gossipdp.runtime.network.zmq_wire import ZmqWire

__all__ = ["Transport"]

TELL_AGAIN: Final = 60.0
"""seconds between two `Crowded` events"""


class Transport:
    """All links of one peer.

    Args:
        identity: this peer's key.
        secret: the network's secret, which admits this peer and all others.
        network: the network's name.
        run: 16 bytes, or b"" while unknown; see `found`.
        incarnation: number of this start (`identity.next_incarnation`).
        listen: ``tcp://*:4710`` or the like, port 0 for a free one; None for a peer that only dials out.
        admission: who may have a link; by default every peer with the secret. See `admission_changed`.
        limits: see `TransportLimits`.
        proxy: through which to dial; None: directly.
        wall: seconds since 1970. It decides when the previous secret expires.

    Raises:
        UnreachableError: GD-104, the port is busy; that may pass.
        ConfigError: `listen` is no address of this host.
    """

    def __init__(
        self,
        identity: Identity,
        secret: NetworkSecret,
        *,
        network: str,
        run: bytes,
        incarnation: int,
        listen: str | None,
        admission: Admission | None = None,
        limits: TransportLimits | None = None,
        proxy: Proxy | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.identity = identity
        self.counters = TransportCounters()
        self.start = draw_start(time.time())
        """mark of this start, 8 bytes"""
        wanted, files = limits or TransportLimits(), shares()
        self.limits = limits = replace(wanted, links=min(wanted.links, files.links))
        self.scarce = ""
        """text of a notice if too few descriptors leave fewer links than wanted"""
        if limits.links < wanted.links:
            self.scarce = f"{files.limit} open files are enough for {limits.links} links of {wanted.links}"
        self._admission = Admission(identity.id) if admission is None else admission
        self._me = LocalPeer(identity, network, run, incarnation, self.start, self._admission, secret, wall)
        self._turn = Turn(time.monotonic())
        self._allowed_keys, self._banned_keys = map(known_curve_keys, self._admission.lists)
        self._wire = ZmqWire(
            limits,
            secret.curve_server_keys(),
            identity.curve,
            admits=self._admits_key,
            unproven=files.unproven,
            proxy=proxy,
            counters=self.counters,
            clock=time.monotonic,
        )
        self._links = Links(LinksContext(self._me, self._wire, limits, self.counters, self._turn, proxy is not None))
        self._crowd_told = -math.inf
        if listen is not None:
            try:
                self._wire.listen(listen)
            except BaseException:
                self._wire.close(linger=0)
                raise

    @property
    def port(self) -> int:
        """The port bound, 0 without one."""
        return self._wire.port

    @property
    def address_bound(self) -> str:
        return self._wire.address_bound

    def admission_changed(self) -> None:
        """Close the links with peers that are not admitted any longer."""
        self._allowed_keys, self._banned_keys = map(known_curve_keys, self._admission.lists)
        self._links.close_excluded()

    @property
    def secret(self) -> NetworkSecret:
        """The network's secret."""
        return self._me.secret

    def renew(self, secret: NetworkSecret) -> None:
        """The network has a new secret. Links that prove the old one stay as long as it is taken."""
        self._me.renew(secret)
        self._links.close_excluded()

    def answer_invite(self, shown: InviteShown, why_not: str) -> None:
        """Answer a host that has shown an invite: with the secret, or why it may not come in."""
        self._links.answer_invite(shown, why_not)

    def _admits_key(self, key: bytes) -> bool:
        return key not in self._banned_keys and (not self._allowed_keys or key in self._allowed_keys)

    @property
    def run(self) -> bytes:
        """The network's run, or b"" while unknown."""
        return self._me.run

    def found(self, run: bytes) -> None:
        """This peer founds `run`, once.

        A peer without a run takes that of the first verified peer that has one, and tells of it by `RunLearned`. Both
        pass it on to linked peers without a run.

        Raises:
            LocalProtocolError: not 16 bytes, or this peer has another run.
        """
        self._links.found(run)

    def know(self, known: Mapping[bytes, float], aside: Collection[bytes] = ()) -> None:
        """Tell what the peer knows of others.

        Args:
            known: seconds for which it has known each member; infinite for a proven one. They decide who loses a place
                when all places for links are taken (`places`).
            aside: members that it has set aside. Nothing is carried for them.
        """
        self._links.know(known, aside)

    def carry(self, rate: float) -> None:
        """Be a relay: carry at most `rate` bytes a second between members from now on; 0: carry nothing."""
        self._links.carry(rate)

    def attend(self, relays: Collection[bytes], addresses: Mapping[bytes, Sequence[str]]) -> None:
        """Ask members to carry to this peer what others send it. `CarriedBy` tells their answers.

        Args:
            relays: members that are to carry. One that is left out is told so.
            addresses: of every member that may carry, for this peer or for another, and where it can be dialled.
        """
        self._links.attend(relays, addresses)

    def dial(self, peer: bytes, addresses: Sequence[str]) -> None:
        """Dial `peer` directly, although a relay carries its link. The direct link takes the place of that one."""
        self._links.dial(peer, addresses)

    def advertise(self, addresses: Sequence[str], *, search: bool = False) -> None:
        """Other peers are told to dial `addresses`. Find out whether they can; `Dialable` tells if they cannot.

        An inbound link proves that one of them works. Members are asked to dial back at the others.

        Args:
            search: also find out whether members can dial this peer's port at the public address that they see it
                come from, as on a cloud's VM, whose provider translates the address.
        """
        self._links.advertise(addresses, self.port if search else 0)

    @property
    def seen(self) -> str:
        """The IP address that the member dialled last sees this peer come from; "" before the first link."""
        return self._links.seen

    def ask_to_dial_back(self, peer: bytes, address: str) -> bool:
        """Ask the linked member `peer` to dial this peer at `address`. `DialledBack` tells its answer, if it comes.

        Returns:
            False if the question was dropped, as without a link.
        """
        link = self._links.linked(peer)
        return link is not None and self._links.examining.ask_to_dial_back(link, address)

    def measure(self, peer: bytes, lane: Lane, number: int, *, send: int = 0, back: int = 0) -> bool:
        """Ask the linked member `peer` for its clock and `back` bytes, with `send` bytes. `Measured` has the answer.

        Args:
            number: the answer repeats it.
            send: bytes of filler, at most `signed_hello.MAX_FILLER`.
            back: bytes of filler, at most `signed_hello.MAX_FILLER`. A member whose budget is spent sends none.

        Returns:
            False if the question was dropped.
        """
        link = self._links.linked(peer)
        return link is not None and self._links.examining.measure(link, lane, number, send, back)

    def send(self, to: bytes, address: str, lane: Lane, frames: Sequence[Buffer], others: Sequence[str] = ()) -> bool:
        """Send `frames` to the peer `to`, dialling `address` if no link is up; never blocks.

        Args:
            to: peer id, or b"" if only the address is known.
            address: ``host:port``, or "" for a peer that can only dial out.
            frames: contiguous; they belong to the transport from now on and must not be written to again.
            others: further addresses of the peer. `reach` decides which is dialled first.

        Returns:
            False if the message was dropped; `counters.drops` has the reason. True promises no arrival.
        """
        return self._links.send(to, address, lane, frames, others)

    def poll(self, timeout: float, readable: Collection[int] = ()) -> tuple[list[TransportEvent], set[int]]:
        """One turn: wait at most `timeout` seconds for the network or for one of the descriptors `readable`.

        Returns:
            What happened, and the descriptors of `readable` that can be read.
        """
        turn, links, wire = self._turn, self._links, self._wire
        turn.begin(time.monotonic())
        due = min(links.next_timer(), wire.unproven.next_timer(), wire.unproven.next_look())
        wait = 0.0 if turn.events or wire.unread else max(0.0, min(timeout, due - turn.now))
        ready = wire.wait(wait, readable)
        turn.begin(time.monotonic())
        for event in wire.events():
            links.handle(event)
        for event in wire.endless():
            links.handle(event)
        self._close_unproven()
        links.run_timers()
        return turn.take(), ready

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait for a connection."""
        return self._links.queued_bytes

    def links(self) -> list[LinkStatus]:
        return self._links.statuses()

    def close(self, linger: float = 0.5) -> None:
        """Close everything. Messages handed to libzmq still have `linger` seconds to leave."""
        self._wire.close(linger)

    def _close_unproven(self) -> None:
        """Close inbound connections that are too many, sent too much, or took too long to prove a member."""
        unproven, now = self._wire.unproven, self._turn.now
        crowd = unproven.crowd()
        for connection in crowd + unproven.large(now) + unproven.late(now):
            if route := self._links.route_on(connection.descriptor):  # libzmq reported late that it was accepted
                unproven.readmitted(connection, route)
            else:
                self._wire.hang_up(connection)
        if crowd:
            self.counters.handshakes["crowded"] += len(crowd)
            if now >= self._crowd_told + TELL_AGAIN:
                self._crowd_told = now
                self._turn.tell(Crowded(crowd[0].origin, unproven.most))
