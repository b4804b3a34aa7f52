"""The dialling half of a peer's links: which addresses are being dialled, what waits for them, what came of them.

A dial tries every IP address of its name in turn, and needs a signed hello on both connections (see `handshake`). When
it has one there is a link; when it has none, an event says what came of each address. Links that are up, connections
that come in and sockets may not stand here.
"""

from __future__ import annotations

import math
import secrets
from collections import deque
from collections.abc import Sequence
from typing import Final

from gossipdp.errors import ConfigError, GossipdpError, RemoteProtocolError
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Lane, printable, short
from gossipdp.runtime.network import handshake
from gossipdp.runtime.network.connections import Connection, Dial, Link, Links
from gossipdp.runtime.network.dial_causes import SILENT, Cause, Looks, timed_out, unreachable, unresolved
from gossipdp.runtime.network.events import CopyMet, DialFailed
from gossipdp.runtime.network.handshake import DiallerHello
from gossipdp.runtime.network.identity import split_address
from gossipdp.runtime.network.resolver import Resolver, Target

__all__ = ["Dialling"]

MAX_DIAL_BACKS: Final = 4
"""dials at one time that others asked for"""
OWN: Final = 600.0
"""Seconds for which a member's address that led back to this peer is not dialled. A seed's still is: its name may stand
for several hosts."""
MAX_OWN: Final = 64


class Dialling:
    def __init__(self, links: Links) -> None:
        self._links = links
        self._limits, self._counters = links.limits, links.counters
        self._dials: dict[str, Dial] = {}
        self._failed: dict[str, float] = {}
        self._own: dict[str, float] = {}
        """Addresses that led back to this peer, and when."""
        self._resolver = Resolver()
        self._looks = Looks(links.limits.connect)

    @property
    def queued_bytes(self) -> int:
        return sum(dial.queued_bytes for dial in self._dials.values())

    def send(self, to: bytes, address: str, lane: Lane, frames: Sequence[Buffer], size: int) -> bool:
        """Queue a message for the link that dialling `address` will bring."""
        dial = self._dials.get(address) or self._start(address, to)
        if dial is None:
            return False
        if not self._links.fits(len(dial.queue), dial.queued_bytes, size):
            return self._links.drop("queue")
        dial.wanted.add(to)
        dial.queue.append((to, lane, frames, size))
        dial.queued_bytes += size
        return True

    def dial_back(self, asker: bytes, address: str) -> None:
        """See whether `asker` is met at the `address` that it says is its own; it is told if it is not.

        If it is, the link that comes in there tells it. Nobody else's dials have to wait for this one.
        """
        dial = self._dials.get(address)
        if dial is None:
            if self._failed_lately(address):
                self._links.tell_in_vain(asker, address)
                return
            asked = sum(bool(dial.askers) for dial in self._dials.values())
            if asked >= MAX_DIAL_BACKS or len(self._dials) >= self._limits.dials:
                return
            dial = Dial(address)
            dial.askers.add(asker)
            self._look_up(dial)
        else:
            dial.askers.add(asker)

    def said(self, nonce: bytes) -> bool:
        """Is the hello of this `nonce` one of this peer's own? Then the address it dialled leads back to itself."""
        own = [dial for dial in self._dials.values() if dial.nonce == nonce]
        for dial in own:
            dial.leads_back = True
        return bool(own)

    # -- one address after the other -----------------------------------------------------------------------------

    def _failed_lately(self, address: str) -> bool:
        return self._links.now < self._failed.get(address, -math.inf) + self._limits.redial

    def _start(self, address: str, to: bytes) -> Dial | None:
        own = bool(to) and self._links.now < self._own.get(address, -math.inf) + OWN
        if own or self._failed_lately(address):
            self._links.drop("redial")
            return None
        if len(self._dials) >= self._limits.dials or not self._links.room():
            self._links.drop("links")
            return None
        dial = Dial(address)
        dial.wanted.add(to)
        self._look_up(dial)
        if address not in self._dials:
            self._links.drop("unreachable")
            return None
        return dial

    def _look_up(self, dial: Dial) -> None:
        self._dials[dial.address] = dial
        try:
            host, port = split_address(dial.address)
        except ConfigError as error:
            dial.failures.append(Cause(error.code, f"{dial.address} is not host:port"))
            self._give_up(dial)
            return
        found = self._resolver.look_up(dial.address, host, port)
        if found is not None:
            self._resolved(dial, found)

    def _resolved(self, dial: Dial, found: list[Target] | str) -> None:
        if isinstance(found, str):
            dial.failures.append(unresolved(found).at(dial.address))
        else:
            dial.targets.extend(found)
        self._dial_next(dial)

    def _dial_next(self, dial: Dial) -> None:
        """Try the next address of those the name stands for."""
        while dial.targets:
            target = dial.targets.popleft()
            dial.target = target.text
            if not target.routable:
                dial.failures.append(unreachable("no route").at(target.text))
                continue
            dial.link = link = Link(dial.address, inbound=False, now=self._links.now)
            link.dial = dial
            dial.nonce = secrets.token_bytes(32)
            dial.began, dial.opened, dial.looking = self._links.now, False, ""
            dial.deadline = self._links.now + self._limits.connect + self._limits.handshake
            try:
                for lane in Lane:
                    self._open(link, lane, target.endpoint, dial.nonce)
            except OSError as error:
                self._links.close_connections(link)
                dial.failures.append(Cause("GD-104", f"{target.text} no socket here: {error.strerror}"))
                continue
            return
        self._give_up(dial)

    def _give_up(self, dial: Dial) -> None:
        del self._dials[dial.address]
        self._failed[dial.address] = self._links.now
        if dial.leads_back and len(self._own) < MAX_OWN:
            self._own[dial.address] = self._links.now
        first = min(dial.failures, key=lambda cause: cause.code == "GD-101", default=Cause("GD-101", ""))
        reason = "; ".join(cause.text for cause in dial.failures)
        self._links.events.extend(
            DialFailed(to, dial.address, reason, first.code, dial.ours, first.do) for to in sorted(dial.wanted)
        )
        self._links.drop("unreachable", len(dial.queue))
        for asker in sorted(dial.askers):
            self._links.tell_in_vain(asker, dial.address)

    def _open(self, link: Link, lane: Lane, endpoint: str, nonce: bytes) -> None:
        connection = Connection(lane, DiallerHello(self._links.me, nonce, lane))
        connection.link = link
        link.connections[lane] = connection
        self._links.wire.open(connection, endpoint)

    # -- what happens on its connections -------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        """CURVE is done: the hello is next."""
        if connection.link is not None and (dial := connection.link.dial) is not None:
            assert isinstance(connection.hello, DiallerHello)
            dial.opened = True
            dial.deadline = self._links.now + self._limits.hello
            self._links.write(connection, connection.hello.hello())

    def failed(self, dial: Dial, code: str, reason: str, result: str = "") -> None:
        """The address tried now is none. `result` is the word it is counted under, the code if there is none."""
        assert dial.link is not None
        hellos = [connection.hello for connection in dial.link.connections.values()]
        copies = [x for x in hellos if isinstance(x, DiallerHello) and x.peer == self._links.me.identity.id]
        # Not before the other side has had the proof, or has gone.
        self._links.events.extend(CopyMet(dial.target, x.incarnation, x.start) for x in copies[:1])
        self._links.close_connections(dial.link)
        dial.link = None
        found: Cause | str = Cause(code, reason, SILENT if result == "timeout" else "")
        unmade, broke_off = result == "unreachable", result in ("GD-201", "broken") and not dial.opened
        # Members that only ask to be dialled back do not hear why they are not met.
        if dial.wanted and (unmade or broke_off):
            elapsed = self._links.now - dial.began
            found = self._looks.begin(dial.target, Cause(code, reason), broke_off, elapsed, self._links.now)
        if isinstance(found, Cause):
            self._failed_for(dial, found, result)
        else:
            dial.looking, dial.deadline = found, math.inf

    def _failed_for(self, dial: Dial, cause: Cause, result: str) -> None:
        self._counters.handshakes[cause.code if cause.code != "GD-101" else result or cause.code] += 1
        dial.failures.append(cause.at(dial.target))
        self._dial_next(dial)

    def answered(self, connection: Connection, link: Link, dial: Dial, frames: list[Buffer]) -> None:
        """A message came during the hello."""
        hello = connection.hello
        assert isinstance(hello, DiallerHello)
        try:
            message = handshake.unpack(frames)
            if isinstance(message, handshake.Answer) and not connection.proof_sent:
                proof = hello.answer(message)
                handshake.check_alone(hello.peer, self._links.live(hello.peer), hello.incarnation, hello.start)
                connection.proof_sent = self._links.write(connection, proof)
                self._links.learn_run(hello.run, hello.peer)
            elif isinstance(message, handshake.Welcome):
                handshake.check_other(self._links.me.identity.id, hello.peer)
                self._welcomed(link, dial)
            elif isinstance(message, handshake.Refuse):
                self.failed(dial, message.code, f"said no: {printable(message.reason)}")
            else:
                raise RemoteProtocolError("not an answer to a hello")
        except GossipdpError as error:
            dial.ours = dial.ours or error.code == "GD-204"
            self.failed(dial, error.code, error.cause)
        except RemoteProtocolError as error:
            self._links.drop("malformed")
            self.failed(dial, "GD-101", f"answered out of order: {error}", "broken")

    def _welcomed(self, link: Link, dial: Dial) -> None:
        """The listener has verified both connections; so has this side, or the other lies."""
        hellos = [connection.hello for connection in link.connections.values()]
        peers = {hello.peer for hello in hellos if isinstance(hello, DiallerHello)}
        if len(peers) != 1 or b"" in peers:
            raise RemoteProtocolError("welcome before the answer")
        first = hellos[0]
        assert isinstance(first, DiallerHello)
        link.peer, link.told_run = first.peer, first.said_run
        link.incarnation, link.start = first.incarnation, first.start
        link.dial = None
        del self._dials[dial.address]
        self._failed.pop(dial.address, None)
        stays = self._links.bring_up(link)
        strangers = dial.wanted - {link.peer, b""}
        reason = f"{dial.target} is another peer now, {short(link.peer)}"
        self._links.events.extend(DialFailed(to, dial.address, reason, "GD-101") for to in sorted(strangers))
        for to, lane, frames, size in dial.queue:
            if to in strangers:
                self._links.drop("unreachable")
            else:
                self._links.write(stays.connections[lane], frames, size)
        for asker in sorted(dial.askers - {link.peer}):
            self._links.tell_in_vain(asker, dial.address)

    def take_over(self, link: Link) -> None:
        """`link` came up while others were being dialled: what waits there for the same peer need not wait."""
        for dial in [dial for dial in self._dials.values() if link.peer in dial.wanted]:
            waiting, dial.queue, dial.queued_bytes = dial.queue, deque(), 0
            for to, lane, frames, size in waiting:
                if to == link.peer:
                    self._links.write(link.connections[lane], frames, size)
                else:
                    dial.queue.append((to, lane, frames, size))
                    dial.queued_bytes += size
            proven = dial.link is not None and any(x.proof_sent for x in dial.link.connections.values())
            if dial.wanted == {link.peer} and self._links.me.identity.id > link.peer and not proven:
                del self._dials[dial.address]  # the lower id's dial stays; one that may be up over there is let finish
                if dial.link is not None:
                    self._links.close_connections(dial.link)

    # -- time ----------------------------------------------------------------------------------------------------

    def next_timer(self) -> float:
        if not self._dials:
            return math.inf
        due = min(dial.deadline for dial in self._dials.values())
        return min(due, self._links.now + 0.02) if self._resolver.pending or self._looks.pending else due

    def run_timers(self) -> None:
        if not self._dials and not self._resolver.pending and not self._looks.pending:
            return
        for address, found in self._resolver.collect():
            if (dial := self._dials.get(address)) and dial.link is None:
                self._resolved(dial, found)
        for key, cause in self._looks.collect(self._links.now):
            for dial in [dial for dial in self._dials.values() if dial.looking == key]:
                self._failed_for(dial, cause, "unreachable")
        for dial in list(self._dials.values()):
            if self._links.now >= dial.deadline and dial.link is not None:
                self._timed_out(dial, dial.link)

    def _timed_out(self, dial: Dial, link: Link) -> None:
        if any(connection.proof_sent for connection in link.connections.values()):
            reason = f"no welcome in {self._limits.hello:g} s"
        elif dial.opened:
            reason = f"connected, then silent for {self._limits.hello:g} s"
        else:
            reason = timed_out(dial.target, self._limits.connect).text
        self.failed(dial, "GD-101", reason, "timeout")

    def sweep(self) -> None:
        oldest = self._links.now - self._limits.redial
        self._failed = {address: when for address, when in self._failed.items() if when > oldest}
        self._own = {address: when for address, when in self._own.items() if when > self._links.now - OWN}
        self._looks.sweep(self._links.now)
