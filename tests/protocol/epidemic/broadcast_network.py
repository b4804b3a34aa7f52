"""A small network of broadcast machines in virtual time: delays, loss, repetition, cuts, crashes and joins from a seed.

Several files of tests use it. It counts by name what each machine has applied: an increment handed out counts one, one
taken back minus one, and a state that was taken over brings its increments.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from random import Random

from gossipdp.protocol.epidemic.broadcast import Broadcast
from gossipdp.protocol.epidemic.config import BroadcastConfig
from gossipdp.protocol.epidemic.events import EpochClosed, RumourReceived, RumourVoided
from gossipdp.protocol.epidemic.signing import name_of
from gossipdp.protocol.events import EpochDiverged, EpochSettled, UpdateRefused
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.strikes import QuarantineConfig, Strikes


def peer(number: int) -> bytes:
    return hashlib.blake2b(number.to_bytes(2, "big"), digest_size=32).digest()


def signature(by: bytes, data: bytes) -> bytes:
    """Stands in for Ed25519. A test calls it only for the peer that signs."""
    return hashlib.blake2b(data, key=by, digest_size=64).digest()


def verify(by: bytes, data: bytes, signed: bytes) -> bool:
    return signature(by, data) == signed


class Host:
    def __init__(self, net: Net, number: int, incarnation: int) -> None:
        self.net, self.id, self.incarnation = net, peer(number), incarnation
        self.strikes = Strikes(QuarantineConfig(), self.id, lambda peer: True)
        self.out = Outputs(self.strikes.observe)
        self.machine = Broadcast(
            net.config,
            self.id,
            incarnation=incarnation,
            random=Random(f"{number} {incarnation} {net.seed}"),
            outputs=self.out,
            report=self.out.emit,
            sign=lambda data: signature(self.id, data),
            verify=verify,
            knows=lambda origin: origin in net.known,
            shuns=lambda source, now: net.strict and self.strikes.shuns(source, now),
            now=net.now,
        )
        self.applied: Counter[bytes] = Counter()
        self.events = []
        self.timer_at = float("inf")

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


class Net:
    """The network.

    Args:
        delay: range of a message's delay in seconds.
        ordered: no message between two peers overtakes another.
        strict: a peer with a proven fault is set aside.
    """

    def __init__(
        self, count, seed, *, delay=(0.01, 0.05), loss=0.0, repeat=0.0, ordered=True, rate=0.0, strict=True, **config
    ):
        self.config = BroadcastConfig(
            **({"span": 100, "sync": 2.0, "again": 1.0, "patience": 1.5, "wait": 0.5} | config)
        )
        self.seed, self.random, self.now = seed, Random(seed), 0.0
        self.delay, self.loss, self.repeat, self.ordered, self.rate = delay, loss, repeat, ordered, rate
        self.strict = strict
        self.known = set()
        self.hosts: dict[bytes, Host] = {}
        self.sides: dict[bytes, int] = {}
        self.last: dict[tuple[bytes, bytes], float] = {}
        self.clock = 0
        self.published: dict[bytes, bytes] = {}
        """origin of each name"""
        self.sent: Counter[str] = Counter()
        self.queue = []
        self.number = 0
        self.taps = []
        for number in range(count):
            self.start(number).machine.found(self.now)
        self.tell()

    # -- actions of a test ------------------------------------------------------------------------------------

    def start(self, number, incarnation=1):
        host = Host(self, number, incarnation)
        self.known.add(host.id)
        self.hosts[host.id] = host
        host.machine.advance(self.clock, self.now)
        return host

    def join(self, number, source, incarnation=1):
        """A new member takes over the state of `source` at once."""
        host = self.start(number, incarnation)
        self.tell()
        self.adopt(host, source)
        return host

    def adopt(self, host, source):
        host.applied = Counter(source.applied)
        assert host.machine.adopt(source.machine.summary(), self.now)
        self.drain(host)

    def crash(self, host):
        del self.hosts[host.id]
        for other in self.hosts.values():
            other.machine.link_down(host.id, self.now)
            self.drain(other)
        self.tell()

    def tell(self):
        """Give every machine the settled view of the members."""
        for host in [*self.hosts.values()]:
            self.follow(host)

    def follow(self, host):
        side = self.sides.get(host.id, 0)
        live = [
            other
            for other in self.hosts
            if self.sides.get(other, 0) == side and not (self.strict and host.strikes.shuns(other, self.now))
        ]
        host.machine.neighbours(live, self.now)
        self.drain(host)

    def cut(self, sides):
        """Cut the network. `sides` gives each host a number, and hosts with different numbers do not reach each
        other."""
        self.sides = sides
        self.tell()

    def tick(self, steps):
        """Advance the network's clock at every host."""
        self.clock += steps
        for host in [*self.hosts.values()]:
            host.machine.advance(self.clock, self.now)
            self.drain(host)

    def publish(self, host, parts=3, size=40):
        payload = [self.random.randbytes(size) for _ in range(parts)]
        done = host.machine.publish(payload, weight=0.5, clock=self.clock, samples=10, now=self.now)
        assert done is not None
        self.published[done[0]] = host.id
        host.applied[done[0]] += 1
        self.drain(host)
        return done[0]

    def round(self, parts=3, size=40, seconds=4.0):
        """Every host publishes within the first second."""
        for host in [*self.hosts.values()]:
            self.at(self.now + self.random.random(), lambda host=host: self._publish(host, parts, size))
        self.run(seconds)

    def _publish(self, host, parts, size):
        if self.hosts.get(host.id) is host:
            self.publish(host, parts, size)

    def run(self, seconds):
        until = self.now + seconds
        while self.queue and self.queue[0][0] <= until:
            self.now, _, act = heapq.heappop(self.queue)
            act()
        self.now = until

    def settle(self, epochs=6, seconds=6.0):
        """No host publishes, and the clock passes every epoch so far."""
        for _ in range(epochs):
            self.run(seconds)
            self.tick(self.config.span)
        self.run(seconds)

    # -- the network ------------------------------------------------------------------------------------------

    def at(self, when, act):
        self.number += 1
        heapq.heappush(self.queue, (when, self.number, act))

    def drain(self, host):
        while host.out.events:
            event = host.out.events.popleft()
            host.events.append(event)
            if isinstance(event, RumourReceived):
                host.applied[event.name] += 1
                host.machine.applied(event.name)
            elif isinstance(event, RumourVoided):
                for rumour, _ in event.received:
                    host.applied[name_of(rumour, self.config.run)] -= 1
        while host.out.messages:
            envelope = host.out.messages.popleft()
            size = sum(memoryview(frame).nbytes for frame in envelope.frames)
            self.sent[type(envelope.message).__name__] += 1
            self.sent["bytes"] += size
            self.carry(host.id, envelope.to, envelope.message, envelope.frames[1:], size)
        timer = host.machine.timer()
        if timer is not None and timer < host.timer_at:
            host.timer_at = max(timer, self.now)
            self.at(host.timer_at, lambda: self._timer(host, host.timer_at))

    def _timer(self, host, at):
        if self.hosts.get(host.id) is host and host.timer_at <= self.now:
            host.timer_at = float("inf")
            host.machine.handle_timer(self.now)
            self.drain(host)

    def carry(self, source, to, message, buffers, size):
        for tap in self.taps:
            tap(source, to, message)
        for _ in range(1 + (self.random.random() < self.repeat)):
            if self.random.random() < self.loss:
                continue
            at = self.now + self.random.uniform(*self.delay)
            if self.ordered:
                at = max(at, self.last.get((source, to), 0.0)) + (size / self.rate if self.rate else 0.0)
                self.last[source, to] = at
            self.at(at, lambda: self.deliver(source, to, message, buffers))

    def deliver(self, source, to, message, buffers):
        host = self.hosts.get(to)
        if host is not None and source in self.hosts and self.sides.get(source, 0) == self.sides.get(to, 0):
            host.machine.receive(message, buffers, source, self.now)
            self.drain(host)
            if any(struck.pause for struck in host.strikes.judge(self.now)):
                self.follow(host)

    # -- checks -----------------------------------------------------------------------------------------------

    def wrong(self, names=None):
        """Hosts that have not applied each of `names` exactly once: (host, missing, repeated or unwanted)."""
        names = set(self.published) if names is None else set(names)
        found = []
        for host in self.hosts.values():
            missing = [name for name in names if host.applied[name] < 1]
            extra = [name for name, count in host.applied.items() if count > (name in names)]
            if missing or extra:
                found.append((host.id.hex()[:4], len(missing), len(extra)))
        return found

    def counts(self):
        return sum((host.machine.counts for host in self.hosts.values()), Counter())

    def redundancy(self):
        """Bytes of payload received, relative to those needed."""
        counts = self.counts()
        return (counts["payload"] + counts["repeated"] + counts["unasked"]) / counts["payload"]

    def digests(self):
        """By epoch, the digests that hosts settled."""
        settled: dict[int, set[bytes]] = {}
        for host in self.hosts.values():
            for event in host.of(EpochSettled):
                settled.setdefault(event.epoch, set()).add(event.digest)
        return settled

    def refusals(self):
        return Counter(event.reason for host in self.hosts.values() for event in host.of(UpdateRefused))

    def diverged(self):
        return [(host, event) for host in self.hosts.values() for event in host.of(EpochDiverged)]

    def closed(self, host, epoch):
        return next(event for event in host.of(EpochClosed) if event.epoch == epoch)
