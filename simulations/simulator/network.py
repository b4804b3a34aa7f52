"""Virtual time: drives the daemon's own `Peer`s over links as bad as a test wants.

A heap holds all events. The simulator handles one at a time, and ties keep the order of scheduling. Each purpose has a
random source of its own. There is no thread, clock or socket. Links (`links`) have latency, bandwidth, loss,
duplication, reordering and cuts. Hosts (`host`) crash, restart with a higher incarnation, and pause. A host runs one
job at a time. A job ends at its own virtual time and its result reaches the peer a little later, with other events in
between: an immediate result would hide every race.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import Any

from gossipdp.protocol import jobs
from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.events import Event, RelaysChosen
from gossipdp.protocol.membership.relays import MOST_CARRIED
from gossipdp.protocol.outputs import Envelope
from gossipdp.protocol.peer import Peer, PeerConfig
from gossipdp.protocol.transfer.claims import Held
from gossipdp.protocol.wire.messages import (
    CARRIES,
    PROTOCOL_VERSION,
    RELAY,
    Lane,
    Member,
    Message,
    Offer,
    State,
    relay_of,
)
from simulations.simulator.conditions import Conditions
from simulations.simulator.host import Host, Region, perform, sign, verify
from simulations.simulator.links import Cut, Link, Links
from simulations.simulator.records import Record

__all__ = ["Conditions", "Cut", "Network", "Record"]

MOST_AT_ONCE = 10_000
"""most events at one instant: more mean a timer that is always due"""
JOB_TIME = {
    jobs.Seal: 0.01,
    jobs.Release: 0.1,
    jobs.Drop: 0.01,
    jobs.Bind: 0.1,
    jobs.Unbind: 0.01,
    jobs.Restore: 20.0,
    jobs.Keep: 20.0,
    jobs.Allocate: 1.0,
}
"""virtual duration of a job in units of `Conditions.job`; other jobs work on one chunk and take 1"""

_WAKING = {"message": 0, "link": 0, "timer": 2}
"""order in which a paused process catches up: messages first, timers last, the rest between"""

_STAMP = struct.Struct("<dH").pack
_CHECKSUM = struct.Struct("<I").pack


class Network:
    """A network of hosts in virtual time.

    Args:
        seed: seeds all random sources.
        conditions: the weather, until `set_conditions` changes it.
        listen: receives every event of every peer.
        execute: carries out a job on a host's vectors: `perform`, or a function that also checks.
        passes: asked for each message, with sender and target; False loses the message.
        trace: receives a `Record` of everything that happens; `print` will do.
        tampers: replaces what a host's peer sends. A hostile host sends other messages than its peer.
        replay_delays: delays in seconds after which strangers repeat what a host sends now.
        latency: seconds from one host to another, where it differs between links.
    """

    def __init__(
        self,
        seed: int,
        conditions: Conditions,
        *,
        listen: Callable[[Host, Event], None],
        execute: Callable[[Host, jobs.Job[object]], object] | None = None,
        passes: Callable[[Host, Host, Message], bool] | None = None,
        trace: Callable[[Record], None] | None = None,
        tampers: Callable[[Host, Envelope], Iterable[Envelope]] | None = None,
        replay_delays: Callable[[Host], Iterable[float]] | None = None,
        latency: Callable[[Host, Host], float] | None = None,
    ) -> None:
        self.seed, self.conditions, self.now, self.events = seed, conditions, 0.0, 0
        self.hosts: list[Host] = []
        self.links = Links(lambda: self.now, self._closed)
        self.trace, self.tampers = trace, tampers
        self.replayed: Counter[str] = Counter()
        """messages that strangers have repeated, to the same life of the target or to a later one"""
        self._listen, self._execute, self._passes = listen, execute or perform, passes
        self._replay_delays, self._latency = replay_delays, latency
        self._chance, self._compute = self.random("links"), self.random("compute")
        self._heap: list[tuple[float, int, str, Host | None, int, Callable[[], None]]] = []
        self._scheduled = 0
        self._by_id: dict[bytes, Host] = {}
        self._by_address: dict[str, Host] = {}
        self._log = hashlib.blake2b(digest_size=16)

    def random(self, purpose: str) -> Random:
        """A random source for one purpose. One more draw from it changes no other source."""
        return Random(f"{self.seed}/{purpose}")

    @property
    def log_hash(self) -> str:
        """Hash of all events so far: equal for equal seeds (I12)."""
        return self._log.hexdigest()

    def set_conditions(self, conditions: Conditions) -> None:
        """Change the weather for messages and jobs from now on."""
        self.conditions = conditions

    # -- virtual time -----------------------------------------------------------------------------------------

    def at(self, when: float, kind: str, host: Host | None, action: Callable[[], None]) -> None:
        """Do `action` at `when`. It is dropped if `host` is in another life by then, and postponed while it is paused.

        Args:
            kind: what happens; part of the event log.
        """
        self._scheduled += 1
        life = -1 if host is None else host.life
        heappush(self._heap, (max(when, self.now), self._scheduled, kind, host, life, action))

    def run(self, until: float) -> None:
        """Handle all events up to `until`."""
        heap, at_once = self._heap, 0
        while heap and heap[0][0] <= until:
            when, _, kind, host, life, action = heappop(heap)
            at_once = at_once + 1 if when == self.now else 0
            assert at_once < MOST_AT_ONCE, f"time stands still at {when:.3f} s: {kind} of {host and host.name}"
            self.now = when
            if host is not None:
                if life != host.life:
                    continue
                if when < host.paused_until:
                    host.postponed.append((kind, action))
                    continue
            self.events += 1
            self._note(kind, host)
            action()
        self.now = until

    def _note(self, kind: str, host: Host | None, data: bytes = b"") -> None:
        index = 0xFFFF if host is None else host.index
        self._log.update(_STAMP(self.now, index) + kind.encode() + data)
        # Messages and jobs have fuller records of their own.
        if self.trace is not None and not kind.startswith(("from", "message ", "run ")):
            self.record(kind, host)

    def record(
        self, kind: str, host: Host | None, other: Host | None = None, what: Any = None, result: Any = None
    ) -> None:
        """Pass a record to the trace."""
        if self.trace is not None:
            one, two = (None if end is None else end.index for end in (host, other))
            self.trace(Record(self.now, kind, one, two, what, result))

    # -- hosts ------------------------------------------------------------------------------------------------

    def add(
        self,
        config: PeerConfig,
        *,
        outbound: bool = False,
        carries: bool = False,
        slowness: float = 1.0,
        operator: bytes = b"",
        version: int = PROTOCOL_VERSION,
    ) -> Host:
        """Add a host that is down.

        Args:
            outbound: no other host can dial it.
            carries: it carries what others send to outbound-only hosts.
            slowness: its training steps take this many times as long.
            operator: key whose decisions about members it follows.
            version: newest protocol version that it says it speaks.
        """
        index = len(self.hosts)
        digest = hashlib.blake2b(f"{self.seed}/{index}".encode(), digest_size=32).digest()
        host = Host(
            index,
            config,
            digest,
            f"10.0.0.{index}:4000",
            outbound=outbound,
            carries=carries,
            operator=operator,
            version=version,
            usual_slowness=slowness,
        )
        self.hosts.append(host)
        self._by_id[host.id] = self._by_address[host.address] = host
        return host

    def start(self, host: Host, *, seeds: Iterable[Host], found: bool = False) -> None:
        """Start the host's daemon with a new incarnation. It resumes from its disk if it finds no network.

        Args:
            found: it founds the network.
        """
        assert host.peer is None
        host.begin_life(self.now)
        address = "" if host.outbound else host.address
        carries = (RELAY,) if host.only_carries else (CARRIES,) if host.carries else ()
        me = Member(host.id, host.name, address, host.incarnation, 0, State.ALIVE, host.version, others=carries)
        random = self.random(f"peer/{host.index}/{host.incarnation}")
        self.record("starts", host)
        host.peer = Peer(
            host.config,
            me,
            random=random,
            sign=lambda data: sign(host.id, data),
            verify=verify,
            now=self.now,
            admission=Admission(host.id, operator=host.operator, verify=verify, decisions=host.decisions),
        )
        addresses = [seed.address for seed in seeds if seed is not host]
        saved = host.checkpoint
        resume = None if saved is None else Held(saved.clock, saved.rounds)
        host.peer.join(addresses, self.now, founds=found, remembered=host.remembered, known=host.known, resume=resume)
        self.drain(host)

    def stop(self, host: Host, *, keep_disk: bool = True) -> None:
        """Kill the daemon. Its vectors, jobs and timers are gone at once."""
        host.end_life(keep_disk=keep_disk)
        self.record("stops", host)
        self.links.close_all_of(host, self.conditions.latency)

    def pause(self, host: Host, seconds: float) -> None:
        """Stop the process for a while. What falls due meanwhile happens when it goes on: first messages in their
        order, then its own work, timers last, as in a daemon."""
        host.paused_until = max(host.paused_until, self.now + seconds)
        self.at(host.paused_until, "resume", host, lambda: self._resume(host))

    def _resume(self, host: Host) -> None:
        postponed, host.postponed = host.postponed, []
        for kind, action in sorted(postponed, key=lambda due: _WAKING.get(due[0].split()[0], 1)):
            self.at(self.now, kind, host, action)

    def command(self, host: Host, kind: str, action: Callable[[Peer], Any]) -> None:
        """Give the host's peer one input, now. A host that is down ignores it."""
        if host.peer is not None:
            self._note(kind, host)
            action(host.peer)
            self.drain(host)

    def drain(self, host: Host) -> None:
        """Do what a driver does after each input: send messages, queue jobs, pass on events, set the timer."""
        peer = host.running
        for envelope in peer.messages_to_send():
            for sent in (envelope,) if self.tampers is None else self.tampers(host, envelope):
                self._transmit(host, sent)
        while (job := peer.next_job()) is not None:
            if isinstance(job, jobs.Seal):
                self._seal(host, job)
            else:
                host.waiting.append((job, host.region))
        while (event := peer.next_event()) is not None:
            self.record("said", host, None, event)
            if isinstance(event, RelaysChosen):
                self._ask_relays(host, event.relays)
            self._listen(host, event)
        if host.waiting and not host.working:
            self._work(host)
        host.timer = timer = peer.timer()
        if timer is not None and timer < host.wakes_at:
            host.wakes_at = max(timer, self.now)
            self.at(host.wakes_at, "timer", host, lambda: self._wake(host))

    def _wake(self, host: Host) -> None:
        if self.now >= host.wakes_at:
            host.wakes_at = float("inf")
            # `host.timer` is up to date: each input ends with a `drain`.
            if host.timer is not None and host.timer <= self.now:
                host.running.handle_timer(self.now)
            self.drain(host)

    # -- jobs -------------------------------------------------------------------------------------------------

    def _seal(self, host: Host, job: jobs.Seal) -> None:
        """Queue the job once the region's free buffer can become the open one."""
        assert host.bound is not None
        nothing = partial(self._done, host, job, jobs.Sealed(0, ()))
        begin, cancel = partial(host.waiting.append, (job, host.bound)), partial(self.at, self.now, "done Seal", host)
        host.bound.free.seal(begin, partial(cancel, nothing))

    def _work(self, host: Host) -> None:
        """Begin the next job of an idle host."""
        host.working = True
        job, region = host.waiting.popleft()
        takes = host.slowness * self.conditions.job * JOB_TIME.get(type(job), 1.0) * self._compute.uniform(0.5, 1.5)
        self.at(self.now + takes, f"run {type(job).__name__}", host, lambda: self._complete(host, job, region))

    def _complete(self, host: Host, job: jobs.Job[object], region: Region | None) -> None:
        if isinstance(job, jobs.Bind):
            host.bound = region
        self.record("does", host, None, job)
        result = self._execute(host, job)
        self.record("did", host, None, job, result)
        host.working = False
        # Results arrive in order. The next job does not wait for their receipt.
        host.picked_up = max(host.picked_up, self.now + self.conditions.pickup * self._compute.random())
        self.at(host.picked_up, f"done {type(job).__name__}", host, lambda: self._done(host, job, result))
        if host.waiting:
            self._work(host)

    def _done(self, host: Host, job: jobs.Job[object], result: object) -> None:
        host.running.job_done(job, result, self.now)
        if isinstance(job, jobs.Seal) and host.bound is not None:
            host.bound.free.sealed(job.typed(result).slot)
        self.drain(host)

    # -- messages ---------------------------------------------------------------------------------------------

    def inject(self, host: Host, envelope: Envelope) -> None:
        """Send a message that the host's peer did not ask for, if the host is up."""
        if host.peer is not None:
            self._transmit(host, envelope)

    def _transmit(self, sender: Host, envelope: Envelope) -> None:
        target = self._by_id.get(envelope.to) if envelope.to else self._by_address.get(envelope.address)
        if target is None or target is sender:
            return
        relay = None
        if not self.links.carries(sender, target):
            relay = self._relay_to(sender, target, (envelope.address, *envelope.others))
            if relay is None:
                return
        conditions, random, message = self.conditions, self._chance, envelope.message
        # The sender may reuse its buffers: a message on its way has copies.
        frames = [bytes(frame) for frame in envelope.frames]
        size = sum(map(len, frames))
        sender.sent[envelope.lane] += size
        sent = self.links.leaves(sender, relay or target, envelope.lane, size, conditions)
        if relay is not None:
            relay.carried[envelope.lane] += size
            relay.pairs.add((sender.index, target.index))
            relay.offers += isinstance(message, Offer)
            sent += conditions.latency
            if envelope.lane is Lane.CONTROL or relay.budget is None:
                sent = max(sent, self.links.leaves(relay, target, envelope.lane, size, conditions))
        passes = self._passes is None or self._passes(sender, target, message)
        cut = self.links.is_cut(sender, target) if relay is None else False
        if not passes or cut or random.random() < conditions.loss:
            self.record("lost", sender, target, message)
            return
        copies = 2 if random.random() < conditions.duplicate else 1
        self.record("sent" if copies == 1 else "twice", sender, target, message)
        leave = partial(self._leave, sender, target, envelope, frames, copies)
        if relay is not None and relay.budget is not None and envelope.lane is Lane.DATA:
            self.at(sent, "relay gets", relay, partial(self._carry, relay, sender, target, size, leave))
        else:
            leave(sent)

    def _leave(
        self, sender: Host, target: Host, envelope: Envelope, frames: list[bytes], copies: int, sent: float
    ) -> None:
        """The message has left the sender, or its relay, at `sent`."""
        conditions, random, message = self.conditions, self._chance, envelope.message
        name = f"message {type(message).__name__}"
        latency = conditions.latency if self._latency is None else self._latency(sender, target)
        for _ in range(copies):
            arrives = sent + latency * (1.0 + conditions.jitter * random.random())
            if random.random() < conditions.reorder:
                arrives += conditions.late * random.random()
            else:
                arrives = self.links.in_order(sender, target, envelope.lane, arrives)
            self.at(arrives, name, target, lambda: self._deliver(sender, target, frames, message))
        for delay in () if self._replay_delays is None else self._replay_delays(sender):
            # The target may be in another life by then.
            replay = partial(self._replay, sender, target, frames, message, target.incarnation)
            self.at(arrives + delay, "replay", None, replay)

    def _carry(self, relay: Host, sender: Host, target: Host, size: int, leave: Callable[[float], None]) -> None:
        """The relay gets a message for `target`, which waits for the budget: the pairs take turns."""
        relay.ways.setdefault((sender.index, target.index), deque()).append((size, leave))
        if not relay.carrying:
            self._carry_next(relay)

    def _carry_next(self, relay: Host) -> None:
        relay.carrying = bool(relay.ways)
        if not relay.ways:
            return
        assert relay.budget is not None
        pair = next(iter(relay.ways))
        way = relay.ways.pop(pair)
        size, leave = way.popleft()
        if way:
            relay.ways[pair] = way

        def through() -> None:
            leave(self.links.leaves(relay, self.hosts[pair[1]], Lane.DATA, size, self.conditions))
            self._carry_next(relay)

        self.at(self.now + size / relay.budget, "relay sends", relay, through)

    def _ask_relays(self, host: Host, relays: tuple[bytes, ...]) -> None:
        """The host asks these hosts to carry to it. Their answers come a round trip later."""
        before, host.relays = set(host.relays), relays
        for relay in before - set(relays):
            self._by_id[relay].attending.discard(host.id)
        for relay in sorted(set(relays) - before):
            answer = partial(self._relay_answers, host, self._by_id[relay])
            self.at(self.now + 2.0 * self.conditions.latency, "relay answers", host, answer)

    def _relay_answers(self, host: Host, relay: Host) -> None:
        if (
            host.peer is None
            or relay.peer is None
            or relay.id not in host.relays
            or not self.links.carries(host, relay)
        ):
            return
        taken = relay.carries and (host.id in relay.attending or len(relay.attending) < MOST_CARRIED)
        if taken:
            relay.attending.add(host.id)
        host.peer.carried(relay.id, taken, self.now)
        self.drain(host)

    def _relay_to(self, sender: Host, target: Host, addresses: Iterable[str]) -> Host | None:
        """The host that carries from `sender` to `target`, or None."""
        for relay in (self._by_id.get(relay_of(address)) for address in addresses):
            if relay is None or relay.peer is None or target.id not in relay.attending or relay is sender:
                continue
            if self.links.is_open((target.index, relay.index)) and self.links.carries(sender, relay):
                return relay
        for relay in map(self._by_id.__getitem__, sender.relays):
            # The target has sent something over this relay, and is carried the answers.
            asked = (target.index, sender.index) in relay.pairs and sender.id in relay.attending
            if asked and self.links.is_open((target.index, relay.index)) and self.links.carries(sender, relay):
                return relay
        return None

    def _replay(self, sender: Host, target: Host, frames: list[bytes], message: Message, meant: int) -> None:
        """A stranger repeats a message of `sender` to the present life of `target`."""
        if target.peer is not None:
            self.replayed["same life" if target.incarnation == meant else "later life"] += 1
            name = f"message {type(message).__name__}"
            self.at(self.now, name, target, lambda: self._deliver(sender, target, frames, message))

    def _deliver(self, sender: Host, target: Host, frames: list[bytes], message: Message) -> None:
        if self.links.is_cut(sender, target) or target.peer is None:
            self.record("missed", sender, target, message)
            return
        self.record("got", sender, target, message)
        self._note("from", sender, frames[0] + _CHECKSUM(zlib.crc32(b"".join(frames[1:]))))
        target.peer.receive(frames, sender.id, self.now)
        self.drain(target)

    def _closed(self, link: Link, after: float) -> None:
        for index, other in (link, link[::-1]):
            host, lost = self.hosts[index], self.hosts[other]
            self.at(self.now + after, "link down", host, partial(self._link_down, host, lost, link))

    def _link_down(self, host: Host, lost: Host, link: Link) -> None:
        if not self.links.is_open(link) and host.peer is not None:
            host.attending.discard(lost.id)
            host.pairs = {pair for pair in host.pairs if lost.index not in pair}
            host.peer.link_down(lost.id, "closed", self.now)
            self.drain(host)
