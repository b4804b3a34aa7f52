"""Virtual time: drives many of the very `Peer`s that the daemon runs, over links that are as bad as one likes.

A heap of events, one at a time, ties broken by the order in which they were scheduled; one seeded random source a
purpose; no thread, clock or socket. Links have latency, bandwidth, loss, duplication, reordering and cuts; hosts crash,
restart with a higher incarnation, and pause. An outbound-only host is spoken to over the links that it has opened by
speaking itself, until they are cut, long unused, or one end stops. A job runs at its virtual completion time, one at a
time a host, and its result reaches the peer a little later, with other events in between (never at once: that would
hide every race).
Nothing of the protocol may stand here, nor what a training process does (`trainer`) or what must hold (`invariants`).
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import Any, NamedTuple, TypeAlias

from gossipdp.protocol import jobs
from gossipdp.protocol.events import Event
from gossipdp.protocol.outputs import Envelope
from gossipdp.protocol.peer import Peer, PeerConfig
from gossipdp.protocol.transfer.claims import Held
from gossipdp.protocol.wire.messages import Lane, Member, Message, State
from simulations.simulator.host import Checkpoint, Host, Region, perform, sign, verify

__all__ = ["Conditions", "Cut", "Network", "Record"]

MOST_AT_ONCE = 10_000
"""events at one instant; more come of a timer that is due for ever"""
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
"""virtual duration of a job in units of `Conditions.job`; 1 for those not listed, which work on one chunk"""

IDLE = 60.0
"""seconds after which an unused link of an outbound-only host is closed"""
HEARTBEAT = 6.0
"""seconds until the ends of a link that was cut notice it"""

_WAKING = {"message": 0, "link": 0, "timer": 2}
"""what a process that was stopped does first, and last"""

Cut: TypeAlias = tuple[tuple[int, int], ...]
"""pairs of hosts, by number, between whom nothing gets through, from the first to the second"""

_STAMP = struct.Struct("<dH").pack
_CHECKSUM = struct.Struct("<I").pack


@dataclass(kw_only=True)
class Conditions:
    """What the network does to messages; may be changed while it runs. Times in seconds, rates as probabilities."""

    latency: float = 0.02
    """one way; each message takes up to `jitter` times as long again"""
    jitter: float = 0.2
    bandwidth: float = 12.5e6
    """bytes per second of each lane of each direction of each pair"""
    uplink: float | None = None
    """bytes per second that all data lanes of one host send together, first come, first served; None: no limit"""
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    """share of messages that leave their place in the lane and come up to `late` seconds later"""
    late: float = 0.5
    job: float = 0.005
    """a chunk's job takes between half and 1.5 times this"""
    pickup: float = 0.002
    """longest time between a job's completion and its result reaching the peer"""


class Record(NamedTuple):
    """One thing that happened, for whoever wants to read it. `host` and `other` are numbers.

    sent, twice, lost    `host` has handed `what`, a message, over to `other`; the network doubles or loses it
    got, missed          it has come from `host` to `other`, or finds the link cut or nobody there
    said                 `host`'s peer emits `what`, an Event
    does, did            `host` carries out `what`, a Job; its result
    fault                `what` strikes, at `host` if it concerns one alone
    anything else        an input or a timer of `host`, by its name
    """

    at: float
    kind: str
    host: int | None
    other: int | None = None
    what: Any = None
    result: Any = None

    def __str__(self) -> str:
        who = "--" if self.host is None else f"p{self.host}"
        other = "" if self.other is None else f"p{self.other}"
        return (
            f"{self.at:10.4f} {who:>4} {other:>4} {self.kind} {'' if self.what is None else _line(self.what)}".rstrip()
        )


class Network:
    """Args:

    listen: hears every event of every peer.
    execute: carries out a job on a host's vectors; `perform`, or something around it that checks.
    passes: is asked for each message handed over, from whom and to whom; False loses it.
    trace: is told all that happens; `print` will do.
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
    ) -> None:
        self.seed, self.conditions, self.now, self.events = seed, conditions, 0.0, 0
        self.hosts: list[Host] = []
        self.trace = trace
        self._listen, self._execute, self._passes = listen, execute or perform, passes
        self._links, self._compute = self.random("links"), self.random("compute")
        self._heap: list[tuple[float, int, str, Host | None, int, Callable[[], None]]] = []
        self._scheduled = 0
        self._by_id: dict[bytes, Host] = {}
        self._by_address: dict[str, Host] = {}
        self._lane_free: dict[tuple[int, int, Lane], float] = {}
        self._gates_free: dict[int, float] = {}
        """when a host's uplink is free again, and, under ~index, its downlink"""
        self._arrived: dict[tuple[int, int, Lane], float] = {}
        self._cuts: Counter[tuple[int, int]] = Counter()
        """how many cuts stand between whom, one way; a link carries when none is left"""
        self._healed = float("-inf")
        self._opened: dict[tuple[int, int], float] = {}
        """links of outbound-only hosts, (theirs, the other's), and when each was used"""
        self._log = hashlib.blake2b(digest_size=16)
        self.tampers: Callable[[Host, Envelope], Iterable[Envelope]] | None = None
        """what goes out in the place of what a host's peer would send: hostile hosts are not made of honest words"""
        self.overheard: Callable[[Host], Iterable[float]] | None = None
        """how many seconds later strangers repeat what a host says now"""
        self.repeated: Counter[str] = Counter()
        """messages that strangers have repeated, to the same life they were meant for or to a later one"""
        self.latency: Callable[[Host, Host], float] | None = None
        """seconds from one host to another, where that differs from link to link"""

    def random(self, purpose: str) -> Random:
        """A source of its own for each purpose, so that a draw more here changes nothing there."""
        return Random(f"{self.seed}/{purpose}")

    @property
    def log_hash(self) -> str:
        """Of all events so far: equal for equal seeds (I12)."""
        return self._log.hexdigest()

    def set_conditions(self, conditions: Conditions) -> None:
        """Change what the network does to messages that are sent from now on."""
        self.conditions = conditions

    # -- virtual time -----------------------------------------------------------------------------------------

    def at(self, when: float, kind: str, host: Host | None, action: Callable[[], None]) -> None:
        """Do `action` at `when`, unless `host` is in another life by then; a pause of the host puts it off."""
        self._scheduled += 1
        life = -1 if host is None else host.life
        heappush(self._heap, (max(when, self.now), self._scheduled, kind, host, life, action))

    def run(self, until: float) -> None:
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
                    host.put_off.append((kind, action))
                    continue
            self.events += 1
            self._note(kind, host)
            action()
        self.now = until

    def _note(self, kind: str, host: Host | None, data: bytes = b"") -> None:
        index = 0xFFFF if host is None else host.index
        self._log.update(_STAMP(self.now, index) + kind.encode() + data)
        # Messages and jobs are told with all they are.
        if self.trace is not None and not kind.startswith(("from", "message ", "run ")):
            self.tell(kind, host)

    def tell(
        self, kind: str, host: Host | None, other: Host | None = None, what: Any = None, result: Any = None
    ) -> None:
        """Let whoever traces know."""
        if self.trace is not None:
            one, two = (None if end is None else end.index for end in (host, other))
            self.trace(Record(self.now, kind, one, two, what, result))

    # -- hosts ------------------------------------------------------------------------------------------------

    def add(self, config: PeerConfig) -> Host:
        index = len(self.hosts)
        digest = hashlib.blake2b(f"{self.seed}/{index}".encode(), digest_size=32).digest()
        host = Host(index, config, digest, f"10.0.0.{index}:4000")
        self.hosts.append(host)
        self._by_id[host.id] = self._by_address[host.address] = host
        return host

    def start(self, host: Host, *, seeds: Iterable[Host], found: bool = False) -> None:
        """Start the host's daemon: a new incarnation, which resumes from the disk if nobody is there."""
        assert host.peer is None
        host.life += 1
        host.incarnation += 1
        address = "" if host.outbound else host.address
        me = Member(host.id, host.name, address, host.incarnation, 0, State.ALIVE)
        host.forget()
        host.waiting.clear()
        host.put_off.clear()
        host.working, host.picked_up, host.wakes_at, host.paused_until = False, self.now, float("inf"), 0.0
        random = self.random(f"peer/{host.index}/{host.incarnation}")
        self.tell("starts", host)

        host.peer = Peer(
            host.config, me, random=random, sign=lambda data: sign(host.id, data), verify=verify, now=self.now
        )
        if found:
            host.peer.found()
        addresses = [seed.address for seed in seeds if seed is not host]
        saved = host.checkpoint
        resume = None if saved is None else Held(saved.clock, saved.rounds)
        host.peer.join(addresses, self.now, remembered=host.remembered, resume=resume)
        self.drain(host)

    def stop(self, host: Host, *, keep_disk: bool = True) -> None:
        """The daemon's process is gone at once, with all its vectors, jobs and timers."""
        if host.peer is not None and keep_disk:
            host.remembered = tuple(host.peer.membership.alive())
        if not keep_disk:
            host.checkpoint, host.remembered = None, ()
        host.peer = None
        host.life += 1
        self.tell("stops", host)
        self._close([link for link in self._opened if host.index in link], self.conditions.latency)

    def save(self, host: Host) -> None:
        """A checkpoint, as the daemon's storage would have written it."""
        model = host.running.model
        if model is not None and host.running.whole:
            ledger, peer = host.algorithm.ledger, host.running
            host.checkpoint = Checkpoint(
                model.schema_bytes, peer.state_clock, peer.rounds.rounds, ledger.a.copy(), ledger.v.copy()
            )

    def pause(self, host: Host, seconds: float) -> None:
        """The process is stopped: whatever is due for it happens when it goes on. As in a daemon's turn, what others
        have said comes first, in its order, then what it had asked for itself; timers are last."""
        host.paused_until = max(host.paused_until, self.now + seconds)
        self.at(host.paused_until, "resume", host, lambda: self._resume(host))

    def _resume(self, host: Host) -> None:
        put_off, host.put_off = host.put_off, []
        for kind, action in sorted(put_off, key=lambda due: _WAKING.get(due[0].split()[0], 1)):
            self.at(self.now, kind, host, action)

    def command(self, host: Host, kind: str, action: Callable[[Peer], Any]) -> None:
        """Feed one input from inside the host, now."""
        if host.peer is not None:
            self._note(kind, host)
            action(host.peer)
            self.drain(host)

    def drain(self, host: Host) -> None:
        """What a driver does after each input: messages, jobs, events, timer."""
        peer = host.running
        for envelope in peer.messages_to_send():
            for told in (envelope,) if self.tampers is None else self.tampers(host, envelope):
                self._transmit(host, told)
        while (job := peer.next_job()) is not None:
            host.waiting.append((job, host.region))
        while (event := peer.next_event()) is not None:
            self.tell("said", host, None, event)
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
            # It has had no input since it was asked: each is followed by a `drain`.
            if host.timer is not None and host.timer <= self.now:
                host.running.handle_timer(self.now)
            self.drain(host)

    # -- jobs -------------------------------------------------------------------------------------------------

    def _work(self, host: Host) -> None:
        """The host has nothing to do, and a job waits."""
        host.working = True
        job, region = host.waiting.popleft()
        takes = host.slowness * self.conditions.job * JOB_TIME.get(type(job), 1.0) * self._compute.uniform(0.5, 1.5)
        self.at(self.now + takes, f"run {type(job).__name__}", host, lambda: self._complete(host, job, region))

    def _complete(self, host: Host, job: jobs.Job[object], region: Region | None) -> None:
        if isinstance(job, jobs.Bind):
            host.bound = region
        self.tell("does", host, None, job)
        result = self._execute(host, job)
        self.tell("did", host, None, job, result)
        host.working = False
        # Results come in order, and the next job does not wait for this one's to be picked up.
        host.picked_up = max(host.picked_up, self.now + self.conditions.pickup * self._compute.random())
        self.at(host.picked_up, f"done {type(job).__name__}", host, lambda: self._done(host, job, result))
        if host.waiting:
            self._work(host)

    def _done(self, host: Host, job: jobs.Job[object], result: object) -> None:
        host.running.job_done(job, result, self.now)
        self.drain(host)

    # -- links ------------------------------------------------------------------------------------------------

    def cut(self, sources: Iterable[Host], targets: Iterable[Host], *, both: bool = True) -> Cut:
        """Nothing gets from `sources` to `targets`, nor back if `both`, until this cut is healed, and all others."""
        pairs = {(source.index, target.index) for source in sources for target in list(targets)}
        made = tuple(sorted(pairs | {pair[::-1] for pair in pairs} if both else pairs))
        self._cuts.update(made)
        self._close([link for link in self._opened if link in self._cuts or link[::-1] in self._cuts], HEARTBEAT)
        return made

    def heal(self, cut: Cut | None = None) -> None:
        """Undo this cut, once, and no other; without one, all there are."""
        if cut is None:
            self._cuts.clear()
        else:
            self._cuts -= Counter(cut)
        self._healed = self.now

    @property
    def whole(self) -> bool:
        """No link is cut."""
        return not self._cuts

    @property
    def whole_for(self) -> float:
        """Seconds since a link was last cut."""
        return 0.0 if self._cuts else self.now - self._healed

    def _carries(self, sender: Host, target: Host) -> bool:
        """Is there a link, or can `sender` open one?"""
        if not sender.outbound and not target.outbound:
            return True
        if sender.outbound and target.outbound:
            return False
        link = (sender.index, target.index) if sender.outbound else (target.index, sender.index)
        used = self._opened.get(link)
        if used is not None and self.now >= used + IDLE:
            self._close([link], 0.0)
            used = None
        if used is None and (target.outbound or target.peer is None or link in self._cuts or link[::-1] in self._cuts):
            return False
        self._opened[link] = self.now
        return True

    def _close(self, links: Iterable[tuple[int, int]], after: float) -> None:
        """These links are no more; both ends hear it `after` seconds, unless there is a new one by then."""
        for link in links:
            del self._opened[link]
            for index, other in (link, link[::-1]):
                host, lost = self.hosts[index], self.hosts[other]
                self.at(self.now + after, "link down", host, partial(self._link_down, host, lost, link))

    def _link_down(self, host: Host, lost: Host, link: tuple[int, int]) -> None:
        if link not in self._opened and host.peer is not None:
            host.peer.link_down(lost.id, "closed", self.now)
            self.drain(host)

    def say(self, host: Host, envelope: Envelope) -> None:
        """What no peer has asked for goes out from `host`, now, if it is up."""
        if host.peer is not None:
            self._transmit(host, envelope)

    def _transmit(self, sender: Host, envelope: Envelope) -> None:
        target = self._by_id.get(envelope.to) if envelope.to else self._by_address.get(envelope.address)
        if target is None or target is sender or not self._carries(sender, target):
            return
        link = (sender.index, target.index)
        lane = (sender.index, target.index, envelope.lane)
        conditions, random, message = self.conditions, self._links, envelope.message
        # What a process has handed over may be reused by it; what is under way may not change.
        frames = [bytes(frame) for frame in envelope.frames]
        size = sum(map(len, frames))
        sent = max(self.now, self._lane_free.get(lane, 0.0)) + size / conditions.bandwidth
        if envelope.lane == Lane.DATA:
            for gate, rate in ((sender.index, conditions.uplink), (~target.index, target.downlink)):
                if rate is not None:
                    self._gates_free[gate] = max(self.now, self._gates_free.get(gate, 0.0)) + size / rate
                    sent = max(sent, self._gates_free[gate])
        self._lane_free[lane] = sent
        passes = self._passes is None or self._passes(sender, target, message)
        if not passes or link in self._cuts or random.random() < conditions.loss:
            self.tell("lost", sender, target, message)
            return
        copies = 2 if random.random() < conditions.duplicate else 1
        self.tell("sent" if copies == 1 else "twice", sender, target, message)
        name = f"message {type(message).__name__}"
        latency = conditions.latency if self.latency is None else self.latency(sender, target)
        for _ in range(copies):
            arrives = sent + latency * (1.0 + conditions.jitter * random.random())
            if random.random() < conditions.reorder:
                arrives += conditions.late * random.random()
            else:
                arrives = self._arrived[lane] = max(arrives, self._arrived.get(lane, 0.0))
            self.at(arrives, name, target, lambda: self._deliver(sender, target, frames, message))
        for later in () if self.overheard is None else self.overheard(sender):
            # To whatever life the target has by then.
            repeat = partial(self._repeat, sender, target, frames, message, target.incarnation)
            self.at(arrives + later, "replay", None, repeat)

    def _repeat(self, sender: Host, target: Host, frames: list[bytes], message: Message, meant: int) -> None:
        """A stranger has a message of `sender` come once more, to `target` as it is now."""
        if target.peer is not None:
            self.repeated["same life" if target.incarnation == meant else "later life"] += 1
            name = f"message {type(message).__name__}"
            self.at(self.now, name, target, lambda: self._deliver(sender, target, frames, message))

    def _deliver(self, sender: Host, target: Host, frames: list[bytes], message: Message) -> None:
        if (sender.index, target.index) in self._cuts or target.peer is None:
            self.tell("missed", sender, target, message)
            return
        self.tell("got", sender, target, message)
        self._note("from", sender, frames[0] + _CHECKSUM(zlib.crc32(b"".join(frames[1:]))))
        target.peer.receive(frames, sender.id, self.now)
        self.drain(target)


def _line(what: Any) -> str:
    names = what.__slots__ if isinstance(what, Event | jobs.Job) else getattr(what, "__struct_fields__", ())
    if not names:
        return str(what)
    values = ((name, getattr(what, name)) for name in names)
    fields = (f"{name}={value[:4].hex() if isinstance(value, bytes) else value}" for name, value in values)
    return f"{type(what).__name__}({', '.join(fields)})"[:240]
