"""Dialling: which peers are being dialled, which messages wait for them, and what came of each address.

A dial tries the addresses of a peer in the order of `reach`, and the IP addresses of each name in turn. It needs a
hello on both connections (see `signed_hello`). With both there is a link; otherwise an event says what came of each
address. No socket may stand here.

An address that names a relay (`messages.through`) leads through that member. Others are dialled before it.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from typing import Final

from gossipdp.errors import ConfigError, GossipdpError, RemoteProtocolError
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Lane, printable, relay_of, short, through
from gossipdp.runtime.network import signed_hello
from gossipdp.runtime.network.connections import Connection, Dial, Link
from gossipdp.runtime.network.context import LinksContext, LinkTable
from gossipdp.runtime.network.dial_causes import SILENT, Cause, DialFault, Looks, timed_out, unreachable
from gossipdp.runtime.network.events import CopyMet, DialFailed
from gossipdp.runtime.network.host_port import split_address
from gossipdp.runtime.network.reach import Reach
from gossipdp.runtime.network.relayed import Relayed
from gossipdp.runtime.network.resolver import Resolver, Target, unresolved_target
from gossipdp.runtime.network.send_queues import SendQueues
from gossipdp.runtime.network.signed_hello import DiallerHello

__all__ = ["Dialling"]

OWN: Final = 600.0
"""Seconds for which a member's address that led back to this peer is not dialled. A seed's address still is: its name
may stand for several hosts."""
MAX_OWN: Final = 64
NEAR: Final = 1.5
"""Seconds for a connection in a network that this host seems to share, while other addresses are left. Other numbers of
the same private network may belong to another one."""
AVOID: Final = 60.0
"""seconds for which a relay comes last whose link with a peer was lost"""
POLL: Final = 0.02
"""seconds between looks for answers of the resolver and of second looks"""


class Dialling:
    def __init__(self, context: LinksContext, queues: SendQueues, links: LinkTable, relayed: Relayed) -> None:
        self._context, self._queues, self._links, self._relayed = context, queues, links, relayed
        self._limits, self._turn = context.limits, context.turn
        self._dials: dict[tuple[str, str], Dial] = {}
        self._failed: dict[str, float] = {}
        """until when each address is not dialled, after a dial that failed"""
        self._own: dict[str, float] = {}
        """when each address that led back to this peer was found"""
        self._resolver, self._reach = Resolver(), Reach()
        self._proxied = context.proxied
        self._looks = Looks(context.limits.connect)

    @property
    def queued_bytes(self) -> int:
        return sum(dial.queued_bytes for dial in self._dials.values())

    def send(
        self, to: bytes, address: str, lane: Lane, frames: Sequence[Buffer], size: int, others: Sequence[str] = ()
    ) -> bool:
        """Queue a message for the link that dialling `address`, or one of the `others`, will bring."""
        places = _exact(to, [address, *others])
        if not places:
            return self._context.drop("unroutable")
        dial = self._dials.get((places[0], "")) or self._start(to, places)
        if dial is None:
            return False
        if not self._queues.fits(len(dial.queue), dial.queued_bytes, size):
            return self._context.drop("queue")
        dial.enqueue(to, lane, frames, size)
        return True

    def dial(self, peer: bytes, addresses: Sequence[str]) -> None:
        """Dial `peer` at one of `addresses`, without a message for it."""
        places = _exact(peer, addresses)
        if places and (places[0], "") not in self._dials:
            self._start(peer, places)

    def avoid(self, peer: bytes, relay: bytes) -> None:
        """The link with `peer` through `relay` was lost: another relay comes first for a while."""
        for place in _exact(peer, [through(relay, peer)]):
            self._reach.avoid(peer, place, self._turn.now + AVOID)

    def dial_back(self, asker: bytes, host: str, address: str, until: float) -> None:
        """Find out until then whether `asker`, whose link comes from the IP address `host`, is met at `address`.

        These dials make no link, and never delay this peer's own. They lead to `host`, or through a relay to `asker`,
        alone: a member must not choose what others connect to.
        """
        place = next(iter(_exact(asker, [address])), "")
        if relay := relay_of(place):
            host = "" if relay == self._context.me.identity.id else relay.hex()
        if not place or not host:
            return
        if (dial := self._dials.get((place, host))) is not None:
            dial.askers.add(asker)
        elif self._failed_lately(place):
            self._links.dialled_back(asker, address, met=False, tried=True)
        elif len(self._dials) < self._limits.dials:
            dial = Dial(place, [place], asked=host, until=until)
            dial.askers.add(asker)
            self._begin(dial)

    def said(self, nonce: bytes) -> bool:
        """Whether this peer itself sent the hello with this `nonce`. Then the dialled address leads back to it."""
        own = [dial for dial in self._dials.values() if dial.nonce == nonce]
        for dial in own:
            dial.lead_back()
            if dial.place in self._own or len(self._own) < MAX_OWN:
                self._own[dial.place] = self._turn.now
        return bool(own)

    # -- one address after the other -----------------------------------------------------------------------------

    def _failed_lately(self, address: str) -> bool:
        return self._turn.now < self._failed.get(address, -math.inf)

    def _start(self, to: bytes, addresses: Sequence[str]) -> Dial | None:
        address, me = addresses[0], self._context.me.identity.id
        places = [each for each in addresses if relay_of(each) != me]
        if not places:
            self._context.drop("unroutable")  # this peer is the relay, and has no link with that peer any more
            return None
        places = self._reach.order(to, places, self._turn.now)
        if to:
            places = [each for each in places if self._turn.now >= self._own.get(each, -math.inf) + OWN]
        if not places or self._failed_lately(address):
            self._context.drop("redial")
            return None
        if len(self._dials) >= self._limits.dials or not self._links.room():
            self._context.drop("links")
            return None
        dial = Dial(address, places)
        dial.wanted.add(to)
        self._begin(dial)
        if dial.key not in self._dials:
            self._context.drop("unreachable")
            return None
        return dial

    def _begin(self, dial: Dial) -> None:
        self._dials[dial.key] = dial
        self._dial_next(dial)

    def _look_up(self, dial: Dial, place: str) -> None:
        """Find the IP addresses of `place`. A name takes until `collect` of the resolver returns it."""
        if relay := relay_of(place):
            peer = bytes.fromhex(place.partition("/")[2])
            dial.targets.append(Target(f"{short(peer)} through {short(relay)}", place, True, relay))
            return
        try:
            host, port = split_address(place)
        except ConfigError as error:
            dial.failures.append(Cause(error.code, "is not host:port").at(place))
            return
        found = [unresolved_target(place)] if self._proxied else self._resolver.look_up(place, host, port)
        dial.await_name(found is None)
        if found is not None:
            self._resolved(dial, found)

    def _resolved(self, dial: Dial, found: list[Target] | Cause) -> None:
        dial.await_name(False)
        if isinstance(found, Cause):
            dial.failures.append(found.at(dial.place))
        else:
            dial.targets.extend(target for target in found if dial.asked in ("", target.host))

    def _dial_next(self, dial: Dial) -> None:
        """Try the next IP address."""
        while dial.more:
            if not dial.targets:
                self._look_up(dial, dial.next_place())
                if dial.resolving:
                    return
                continue
            target = dial.targets.popleft()
            if not target.routable:
                dial.skip(target.text)
                dial.failures.append(unreachable("no route").at(target.text))
                continue
            others = not self._proxied and bool(dial.targets or dial.places)  # a proxy has networks of its own
            shared = others and self._reach.near(target.text, self._turn.now)
            patience, handshake = (NEAR, 0.0) if shared else (self._limits.connect, self._limits.handshake)
            link = dial.begin_attempt(target, secrets.token_bytes(32), self._turn.now, patience, handshake)
            try:
                for lane in Lane:
                    self._open(link, lane, target, dial)
            except OSError as error:
                self._links.close_connections(link)
                dial.failures.append(Cause("GD-104", "cannot open a socket here", error.strerror or "").at(target.text))
                continue
            return
        self._give_up(dial)

    def _open(self, link: Link, lane: Lane, target: Target, dial: Dial) -> None:
        me, wire = self._context.me, self._relayed if target.relay else self._context.wire
        generation = me.secret.generation if dial.generation is None else dial.generation
        connection = Connection(lane, DiallerHello(me, dial.nonce, lane, generation), wire, link)
        link.connections[lane] = connection
        wire.open(connection, target.endpoint)

    def _give_up(self, dial: Dial) -> None:
        del self._dials[dial.key]
        if not dial.asked:
            # A member that names many addresses is dialled less often.
            self._failed[dial.address] = self._turn.now + self._limits.redial * max(1, dial.tried)
        causes = tuple(dial.failures)
        # A direct dial beside a relayed link is worth no word.
        wanted = [to for to in sorted(dial.wanted) if self._links.linked(to) is None]
        self._turn.tell(*(DialFailed(to, _told(dial.address, to), causes, dial.ours) for to in wanted))
        self._context.drop("unreachable", len(dial.queue))
        for asker in sorted(dial.askers):
            self._links.dialled_back(asker, _told(dial.address, asker), met=False, tried=dial.tried > 0)

    # -- what happens on its connections -------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        """CURVE is complete: the hello is next."""
        if connection.link is not None and (dial := connection.link.dial) is not None:
            assert isinstance(connection.hello, DiallerHello)
            dial.open(self._turn.now + self._limits.hello)
            self._queues.write(connection, connection.hello.hello())

    def failed(self, dial: Dial, cause: Cause, result: str = "") -> None:
        """The present attempt failed. `result` is the label of the count; without one the code is."""
        assert dial.link is not None
        hellos = [connection.hello for connection in dial.link.connections.values()]
        copies = [x for x in hellos if isinstance(x, DiallerHello) and x.peer == self._context.me.identity.id]
        # Told only now: the copy has had the proof, or is gone.
        self._turn.tell(*(CopyMet(dial.target, x.incarnation, x.start) for x in copies[:1]))
        self._links.close_connections(dial.link)
        dial.end_attempt()
        found: Cause | str = cause
        unmade, broke_off = result == "unreachable", result in ("GD-201", "broken") and not dial.opened
        # Members that only ask to be dialled back do not hear the cause. A second look would not use the proxy.
        if dial.wanted and (unmade or broke_off) and not self._proxied:
            elapsed = self._turn.now - dial.began
            found = self._looks.begin(dial.target, cause, broke_off, elapsed, self._turn.now)
        if isinstance(found, Cause):
            self._failed_for(dial, found, result)
        else:
            dial.await_look(found)

    def _failed_for(self, dial: Dial, cause: Cause, result: str) -> None:
        self._context.counters.handshakes[cause.code if cause.code != "GD-101" else result or cause.code] += 1
        dial.failures.append(cause.at(dial.target))
        self._dial_next(dial)

    def answered(self, connection: Connection, link: Link, dial: Dial, frames: list[Buffer]) -> None:
        """A message came during the hello."""
        hello = connection.hello
        assert isinstance(hello, DiallerHello)
        try:
            message = signed_hello.unpack(frames)
            if isinstance(message, signed_hello.Answer) and not connection.proof_sent:
                proof = hello.answer(message)
                signed_hello.check_alone(hello.peer, self._links.live(hello.peer), hello.incarnation, hello.start)
                if dial.askers:
                    self._dialled_back(dial, hello.peer)
                    return
                connection.sent_proof(self._queues.write(connection, proof))
                self._links.learn_run(hello.run, hello.peer)
            elif isinstance(message, signed_hello.Welcome):
                signed_hello.check_other(self._context.me.identity.id, hello.peer)
                self._welcomed(link, dial)
            elif isinstance(message, signed_hello.Refuse):
                if message.code == "GD-208" and dial.try_again(self._context.me.older, message.reason):
                    self._links.close_connections(link)
                    dial.end_attempt()
                    self._dial_next(dial)
                    return
                reason = dial.refusal if message.code == "GD-208" and dial.refusal else message.reason
                fault = DialFault.LEADS_BACK if dial.led_back else None
                self.failed(dial, Cause(message.code, "refused", printable(reason), fault=fault))
            else:
                raise RemoteProtocolError("not an answer to a hello")
        except GossipdpError as error:
            if error.code in ("GD-204", "GD-208"):
                dial.exclude()
            self.failed(dial, Cause(error.code, error.cause))
        except RemoteProtocolError as error:
            self._context.drop("malformed")
            self.failed(dial, Cause("GD-101", "answered out of order", str(error)), "broken")

    def _dialled_back(self, dial: Dial, peer: bytes) -> None:
        """`peer` has proven itself to a dial that members asked for. Without this side's proof no link comes up."""
        del self._dials[dial.key]
        assert dial.link is not None
        self._links.close_connections(dial.link)
        for asker in sorted(dial.askers):
            self._links.dialled_back(asker, _told(dial.address, asker), met=asker == peer, tried=True)

    def _welcomed(self, link: Link, dial: Dial) -> None:
        """The listener has verified both connections. This side must have verified both, too, or the listener lies."""
        hellos = [connection.hello for connection in link.connections.values()]
        peers = {hello.peer for hello in hellos if isinstance(hello, DiallerHello)}
        if len(peers) != 1 or b"" in peers:
            raise RemoteProtocolError("welcome before the answer")
        first = hellos[0]
        assert isinstance(first, DiallerHello)
        link.verify(first.peer, first.incarnation, first.start, first.said_run, first.generation)
        if dial.more and b"" not in dial.wanted and link.peer not in dial.wanted:
            # Another network may have the same private numbers.
            self._links.bring_up(link)
            dial.end_attempt()
            dial.failures.append(Cause("GD-101", f"is another peer, {short(link.peer)}").at(dial.target))
            self._dial_next(dial)
            return
        del self._dials[dial.key]
        self._failed.pop(dial.address, None)
        self._reach.remember(link.peer, dial.place)
        if not link.via:
            self._links.seen_at(first.seen)
        stays = self._links.bring_up(link)
        others = dial.wanted - {link.peer, b""}
        cause = Cause("GD-101", f"is another peer now, {short(link.peer)}").at(dial.target)
        self._turn.tell(*(DialFailed(to, _told(dial.address, to), (cause,)) for to in sorted(others)))
        for to, lane, frames, size in dial.queue:
            if to in others:
                self._context.drop("unreachable")
            else:
                self._queues.write(stays.connections[lane], frames, size)

    def take_over(self, link: Link) -> None:
        """`link` came up during other dials: send on it what waits there for the same peer."""
        for dial in [dial for dial in self._dials.values() if link.peer in dial.wanted]:
            for lane, frames, size in dial.take_messages(link.peer):
                self._queues.write(link.connections[lane], frames, size)
            proven = dial.link is not None and any(x.proof_sent for x in dial.link.connections.values())
            # Of two crossing dials the lower id's stays. A dial whose link may be up at the other side goes on.
            if dial.wanted == {link.peer} and self._context.me.identity.id > link.peer and not proven:
                del self._dials[dial.key]
                if dial.link is not None:
                    self._links.close_connections(dial.link)

    # -- time ----------------------------------------------------------------------------------------------------

    def next_timer(self) -> float:
        if not self._dials:
            return math.inf
        due = min(dial.deadline for dial in self._dials.values())
        return min(due, self._turn.now + POLL) if self._resolver.pending or self._looks.pending else due

    def run_timers(self) -> None:
        if not self._dials and not self._resolver.pending and not self._looks.pending:
            return
        for place, found in self._resolver.collect():
            for dial in [dial for dial in self._dials.values() if dial.resolving and dial.place == place]:
                self._resolved(dial, found)
                self._dial_next(dial)
        for key, cause in self._looks.collect(self._turn.now):
            for dial in [dial for dial in self._dials.values() if dial.look == key]:
                self._failed_for(dial, cause, "unreachable")
        for dial in list(self._dials.values()):
            if self._turn.now >= dial.deadline and dial.link is not None:
                self._timed_out(dial, dial.link)

    def _timed_out(self, dial: Dial, link: Link) -> None:
        if any(connection.proof_sent for connection in link.connections.values()):
            cause = Cause("GD-101", f"did not complete the handshake in {self._limits.hello:g} s")
        elif dial.opened:
            cause = Cause("GD-101", f"connected, then silent for {self._limits.hello:g} s")
        else:
            cause = timed_out(dial.target, dial.patience)
        self.failed(dial, cause._replace(do=SILENT), "timeout")

    def sweep(self) -> None:
        now = self._turn.now
        self._failed = {address: until for address, until in self._failed.items() if until > now}
        self._own = {address: when for address, when in self._own.items() if when > now - OWN}
        self._looks.sweep(now)


def _exact(to: bytes, addresses: Sequence[str]) -> list[str]:
    """The addresses at which `to` is dialled. Those through relays name its whole id: short ones are not unique.

    An address that leads to another peer through a relay is left out: a member may name what it likes.
    """
    exact = []
    for address in addresses:
        relay = relay_of(address)
        if not relay:
            exact.append(address)
        elif to not in (b"", relay) and address == through(relay, to):
            exact.append(f"@{relay.hex()}/{to.hex()}")
    return exact


def _told(address: str, to: bytes) -> str:
    """`address` as the record of `to` has it."""
    relay = relay_of(address)
    return through(relay, to) if relay else address
