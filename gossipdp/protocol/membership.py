"""Who is there: SWIM membership with Lifeguard's local health (algorithms as in hashicorp/memberlist and serf).

Every probe period one member is pinged, in shuffled round-robin order; if it does not answer, some others ping it too;
if still nothing was heard of it, it is suspected, and unless it refutes, failed. Records of members spread by riding on
pings, by short gossip while there is news, and by an exchange of whole views now and then. A record overrides another
by its pair (incarnation, refutation), at equal pairs by its state: left, failed, suspect, alive. Only a member itself
raises its pair, so old gossip resurrects nobody. Failed members are dialled on, so a healed network finds itself.

Everything known of a member is its record and what this peer saw of it. No socket, clock, key or vector is here, and
nothing of exchanges: others read `members`, `alive` and the `MemberChanged` events.

References: Das, Gupta, Motivala, "SWIM" (DSN 2002); Dadgar, Phillips, Currey, "Lifeguard" (DSN-W 2018); Demers et al.,
"Epidemic algorithms for replicated database maintenance" (1987) for push-pull.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, TypeAlias

from msgspec.structs import replace

from gossipdp.protocol.broadcasts import ROOM, Broadcasts, pages, record_size
from gossipdp.protocol.events import Joined, MemberChanged, Notice
from gossipdp.protocol.messages import (
    MAX_RECORDS,
    Member,
    Nack,
    Ping,
    PingRequest,
    Pong,
    Progress,
    PushPull,
    State,
)
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.progress import ProgressBoard
from gossipdp.protocol.suspicion import (
    LAN,
    LOCAL,
    PRESETS,
    WAN,
    LocalHealth,
    MembershipConfig,
    probe_times,
    push_pull_period,
    suspicion_bounds,
    suspicion_timeout,
    transmit_limit,
)

__all__ = ["LAN", "LOCAL", "MAX_MEMBERS", "PRESETS", "WAN", "Membership", "MembershipConfig", "MembershipMessage"]

MembershipMessage: TypeAlias = Ping | Pong | PingRequest | Nack | PushPull

MAX_MEMBERS: Final = 4096
"""members known, this one included; past it new ones take the place of the longest dead, or are refused and counted"""
MAX_REPORTS: Final = 8
"""progress reports piggybacked on one message"""
_MAX_PAGES: Final = 48
"""messages one whole view takes at most; a larger one is sent in parts, from a random place on"""
_MAX_PINGS: Final = 256
"""pings whose answer is still remembered"""
_MAX_RELAYED: Final = 64
"""pings made for others at one time"""
_TELLS: Final = 8
"""members told directly that this one leaves, or that others think them failed, at one time"""
_DIALS: Final = 3.0
"""dials to each failed member per reconnect interval, over all its dialers"""
_UNKNOWN_SEEDS: Final = 60.0
"""seconds between dials, once joined, to seeds that are nobody's known address: another island may stand behind them"""
_NOTHING: Final = 0
"""the sequence of a Pong that answers nothing and only carries gossip"""
_LIVE = (State.ALIVE, State.SUSPECT)


@dataclass(slots=True)
class _Seen:
    """What this peer itself saw of another."""

    since: float
    """when its record last changed state or pair here"""
    heard: float = -math.inf
    told: float = -math.inf
    """when it was last told directly what is believed of it"""
    viewed: float = -math.inf
    """when it was last sent the whole view in reply"""
    rtt: float | None = None


@dataclass(slots=True)
class _Sent:
    """A ping out. For one made in another's place, who asked, and by what sequence."""

    target: bytes
    at: float
    asker: bytes = b""
    asked: int = 0


@dataclass(slots=True)
class _Probe:
    """The probe of this period (SWIM section 3.1)."""

    target: bytes
    started: float
    indirect_at: float
    verdict_at: float
    sequences: set[int]
    relays: set[bytes] = field(default_factory=set)
    nacks: set[bytes] = field(default_factory=set)


class Membership:
    """Args:

    me: this peer's record, alive; its incarnation is larger than in any earlier life.
    progress: reports on it ride on pings.
    """

    def __init__(
        self,
        config: MembershipConfig,
        me: Member,
        *,
        random: Random,
        outputs: Outputs,
        now: float,
        progress: ProgressBoard,
    ) -> None:
        self.config, self.me, self.health = config, me, LocalHealth(config.awareness_max)
        self.members: dict[bytes, Member] = {me.id: me}
        self.refused = 0
        self._random, self._outputs, self._progress = random, outputs, progress
        self._seen: dict[bytes, _Seen] = {}
        self._live: dict[bytes, None] = {}
        self._lost: dict[bytes, None] = {}
        self._suspected: dict[bytes, float] = {}
        self._broadcasts = Broadcasts()
        self._probe: _Probe | None = None
        self._order: list[bytes] = []
        self._ring: list[bytes] = []
        self._sent: dict[int, _Sent] = {}
        self._nack_at: dict[int, float] = {}
        self._sequence = _NOTHING
        self._seeds: tuple[str, ...] = ()
        self._remembered: dict[bytes, str] = {}
        self._joined = self._cloned = False
        self._dial_at: float | None = None
        self._dial_wait = config.join_interval
        self._probe_at = now + config.probe_interval * random.random()
        self._gossip_at = now
        # Anti-entropy begins often and becomes rare: those who join together hear of each other late or not at all.
        self._push_pull_wait = min(config.probe_interval, config.push_pull_interval)
        self._push_pull_at = now + self._push_pull_wait * (0.5 + random.random())
        self._reconnect_at = now + config.reconnect_interval * random.random()

    # -- commands ---------------------------------------------------------------------------------------------

    def join(self, addresses: Sequence[str], now: float) -> None:
        """Dial `addresses`, and the members remembered, until anybody answers; any one alive is enough."""
        self._seeds = tuple(dict.fromkeys(address for address in addresses if address != self.me.address))
        self._dial_wait = self.config.join_interval
        self._dial(now)

    def remember(self, members: Iterable[Member]) -> None:
        """Members known from an earlier life: dialled like seeds by `join`, believed only when they answer."""
        for member in members:
            if member.id != self.me.id and member.address and len(self._remembered) < MAX_MEMBERS:
                self._remembered[member.id] = member.address

    def leave(self, now: float) -> None:
        """Tell some members directly that this one leaves; the rest hear of it from them. Probe nobody any more."""
        if self.me.state == State.LEFT:
            return
        self._change_me(State.LEFT, self.me.refutation + 1, now)
        self._probe = None
        self._nack_at.clear()
        for peer in self._sample(_TELLS):
            self._send(peer, Pong(_NOTHING, self._records(peer)))

    # -- what others read -------------------------------------------------------------------------------------

    def alive(self) -> list[Member]:
        """The other members that are alive or suspected, sorted by id; a suspect is most often alive."""
        return [self.members[peer] for peer in sorted(self._live)]

    def rtt(self, peer: bytes) -> float | None:
        """Round-trip time to `peer` in seconds, smoothed over the direct pings it answered."""
        seen = self._seen.get(peer)
        return None if seen is None else seen.rtt

    def address_of(self, peer: bytes) -> str:
        """Where `peer` is to be dialled, or ""."""
        member = self.members.get(peer)
        return self._remembered.get(peer, "") if member is None else member.address

    # -- inputs -----------------------------------------------------------------------------------------------

    def contact(self, peer: bytes, now: float) -> None:
        """An authenticated message of any kind came from `peer`. It lives, but only its own word clears it.

        Whoever is thought suspect, failed or left and yet speaks is told so, and will refute.
        """
        seen = self._seen.get(peer)
        if seen is not None:
            seen.heard = now
            if self.members[peer].state != State.ALIVE:
                self._tell(peer, now)

    def link_down(self, peer: bytes, reason: str, now: float) -> None:
        """The transport lost `peer`: a hint, no evidence. It is probed next."""
        if peer in self._live:
            if peer in self._order:
                self._order.remove(peer)
            self._order.append(peer)

    def receive(self, message: MembershipMessage, source: bytes, now: float) -> None:
        """A message from the peer whose id the transport has verified as `source`."""
        if source == self.me.id:
            return
        seen = self._seen.get(source)
        if seen is not None:
            seen.heard = now
        if isinstance(message, Ping | Pong | PushPull):
            self._learn(message.members, message.progress, source, now, view=isinstance(message, PushPull))
        match message:
            case Ping(sequence):
                self._send(source, Pong(sequence, self._records(source), self._progress.page(MAX_REPORTS)))
            case Pong(sequence):
                self._answered(sequence, source, now)
            case PingRequest(sequence, target, address):
                self._ping_for(source, sequence, target, address, now)
            case Nack(sequence):
                if self._probe and sequence in self._probe.sequences and source in self._probe.relays:
                    self._probe.nacks.add(source)
            case PushPull(reply):
                if reply:
                    self._reply_view(source, now)

    def timer(self) -> float | None:
        """When `handle_timer` wants to be called next; None once everybody may know that this peer has left."""
        times = [self._gossip_at] if self._broadcasts else []
        if self.me.state == State.LEFT:
            return min(times, default=None)
        probe = self._probe
        times.append(self._probe_at if probe is None else min(probe.indirect_at, probe.verdict_at))
        times += [self._push_pull_at, self._reconnect_at, *self._nack_at.values()]
        times += [self._deadline(peer) for peer in self._suspected]
        if self._dial_at is not None:
            times.append(self._dial_at)
        return min(times)

    def handle_timer(self, now: float) -> None:
        due = self.timer()
        if due is None or now < due:
            return
        if now - due > self.config.probe_interval / 2:
            self._starved(now - due, now)
        if self._broadcasts and now >= self._gossip_at:
            self._gossip_at = now + self.config.gossip_interval
            for peer in self._next_in_ring(self.config.gossip_peers):
                self._send(peer, Pong(_NOTHING, self._records(peer, spread=True), self._progress.page(MAX_REPORTS)))
            if not self._live:
                self._broadcasts = Broadcasts()
        if self.me.state == State.LEFT:
            return
        if self._dial_at is not None and now >= self._dial_at:
            self._dial(now)
        for sequence in [sequence for sequence, at in self._nack_at.items() if now >= at]:
            del self._nack_at[sequence]
            sent = self._sent[sequence]
            self._send(sent.asker, Nack(sent.asked))
        self._advance_probe(now)
        for peer in [peer for peer in self._suspected if now >= self._deadline(peer)]:
            self._adopt(replace(self.members[peer], state=State.FAILED), now)
        if now >= self._push_pull_at:
            self._push_pull_wait = min(2.0 * self._push_pull_wait, self.config.push_pull_interval)
            self._push_pull_at = now + push_pull_period(self._push_pull_wait, self._count)
            for peer in self._sample(1):
                self._send_view(peer, now, reply=True)
            self._forget(now)
        if now >= self._reconnect_at:
            self._reconnect_at = now + self.config.reconnect_interval * (0.5 + 0.5 * self._random.random())
            self._reconnect()

    # -- probing (SWIM section 3.1, Lifeguard section IV.A) -----------------------------------------------------

    def _advance_probe(self, now: float) -> None:
        probe = self._probe
        if probe is not None and now >= probe.verdict_at:
            self._probe = None
            self._unanswered(probe, now)
        elif probe is not None and now >= probe.indirect_at:
            probe.indirect_at = math.inf
            others = [peer for peer in self._live if peer != probe.target]
            chosen = self._random.sample(others, min(self.config.indirect_probes, len(others)))
            probe.relays.update(chosen)
            address = self.address_of(probe.target)
            for relay in chosen:
                self._send(relay, PingRequest(min(probe.sequences), probe.target, address))
            # Once more directly: the first may have been lost with the connection it was sent on.
            probe.sequences.add(self._ping(probe.target, now))
        if self._probe is None and now >= self._probe_at:
            self._begin_probe(now)

    def _begin_probe(self, now: float) -> None:
        target = self._next_target()
        if target is None:
            self._probe_at = now + self.config.probe_interval
            return
        config = self.config
        direct, verdict = probe_times(
            config.probe_interval, config.probe_timeout, self.health.multiplier, self.rtt(target), config.awareness_max
        )
        self._probe_at = now + verdict
        self._probe = _Probe(target, now, now + direct, now + verdict, {self._ping(target, now)})

    def _next_target(self) -> bytes | None:
        for _ in range(2):
            while self._order:
                peer = self._order.pop()
                if peer in self._live:
                    return peer
            self._order = sorted(self._live)
            self._random.shuffle(self._order)
        return None

    def _unanswered(self, probe: _Probe, now: float) -> None:
        self.health.worse()
        if len(probe.nacks) < len(probe.relays):
            self.health.worse()
        member = self.members.get(probe.target)
        # Whoever was heard from meanwhile lives, whatever became of the answer.
        if member is not None and member.state == State.ALIVE and self._seen[probe.target].heard <= probe.started:
            self._adopt(replace(member, state=State.SUSPECT), now)
            self._tell(probe.target, now)

    def _answered(self, sequence: int, source: bytes, now: float) -> None:
        probe, sent = self._probe, self._sent.get(sequence)
        if sent is not None and sent.target == source:
            del self._sent[sequence]
            self._nack_at.pop(sequence, None)
            seen = self._seen.get(source)
            if seen is not None:
                sample = max(now - sent.at, 0.0)
                seen.rtt = sample if seen.rtt is None else seen.rtt + (sample - seen.rtt) / 8
            if sent.asker:
                self._send(sent.asker, Pong(sent.asked, self._records(sent.asker, about=source)))
        if probe is not None and sequence in probe.sequences and source in (probe.target, *probe.relays):
            self._probe = None
            self.health.better()

    def _ping_for(self, asker: bytes, sequence: int, target: bytes, address: str, now: float) -> None:
        if target == self.me.id:
            self._send(asker, Pong(sequence, self._records(asker)))
        elif len(self._nack_at) < _MAX_RELAYED:
            mine = self._ping(target, now, address)
            self._sent[mine].asker, self._sent[mine].asked = asker, sequence
            # Half the timeout, where Lifeguard has 80 %: the asker's clock is running while the nack travels.
            self._nack_at[mine] = now + self.config.probe_timeout / 2

    def _ping(self, peer: bytes, now: float, address: str = "") -> int:
        self._sequence = self._sequence % 0xFFFF_FFFF + 1
        if len(self._sent) >= _MAX_PINGS:
            oldest = next(iter(self._sent))
            del self._sent[oldest]
            self._nack_at.pop(oldest, None)
        self._sent[self._sequence] = _Sent(peer, now)
        ping = Ping(self._sequence, self._records(peer), self._progress.page(MAX_REPORTS))
        self._send(peer, ping, address)
        return self._sequence

    def _starved(self, late: float, now: float) -> None:
        """This peer did not run when it should have: what it did not hear in that time says nothing of others."""
        self.health.worse()
        self._probe = None
        self._probe_at = now
        for peer, timeout in self._suspected.items():
            seen = self._seen[peer]
            seen.since = max(seen.since + late, now + self.config.probe_interval - timeout)

    # -- records (SWIM section 4.2) -----------------------------------------------------------------------------

    def _learn(
        self, records: Iterable[Member], reports: Iterable[Progress], source: bytes, now: float, *, view: bool
    ) -> None:
        tells, newer = 0, []
        for record in records:
            if record.id == self.me.id:
                self._about_me(record, source, now)
                continue
            known = self.members.get(record.id)
            if known is not None and _overrides(known, record):
                newer.append(known)
                continue
            doubted = view and record.state == State.FAILED and known is not None and known.state in _LIVE
            if doubted:
                # A whole view may be old, or from the other side of a partition: let the member speak first.
                record = replace(record, state=State.SUSPECT)
            if not self._room_for(record) if known is None else not _overrides(record, known):
                continue
            self._adopt(record, now)
            if doubted and tells < _TELLS:
                tells += 1
                self._tell(record.id, now)
            if known is not None and known.state == State.FAILED and record.id == source and record.state in _LIVE:
                self._send_view(source, now, reply=False)
        self._progress.merge(reports)
        if newer:
            # As a page of the view, not as gossip: the sender may stand across a partition just healed.
            self._send(source, PushPull(False, pages(self.me, newer)[0]))
        if source in self._seen:
            self._seen[source].heard = now
            if not self._joined:
                self._joined = True
                self._outputs.emit(Joined(source))

    def _about_me(self, record: Member, source: bytes, now: float) -> None:
        me = self.me
        same = (record.incarnation, record.refutation) == (me.incarnation, me.refutation)
        elsewhere = same and record.state == State.ALIVE and record.address != me.address
        if record.incarnation > me.incarnation or elsewhere:
            if not self._cloned:
                self._cloned = True
                where = record.address or "an outbound-only peer"
                text = (
                    f"this identity is already live at {where}, start {record.incarnation} there and {me.incarnation} "
                    "here: a copied home needs keys of its own"
                )
                self._outputs.emit(Notice("GD-205", text))
        elif _overrides(record, me) and me.state != State.LEFT:
            self.health.worse()
            self._change_me(State.ALIVE, record.refutation + 1, now)
            self._send(source, Pong(_NOTHING, self._records(source)))

    def _change_me(self, state: State, refutation: int, now: float) -> None:
        self.me = replace(self.me, state=state, refutation=min(refutation, 0xFFFF_FFFF))
        self.members[self.me.id] = self.me
        self._spread(self.me, now)

    def _adopt(self, record: Member, now: float) -> None:
        """Believe `record`, tell others, tell the application."""
        peer, before = record.id, self.members.get(record.id)
        self.members[peer] = record
        seen = self._seen.setdefault(peer, _Seen(now))
        seen.since = now
        if record.state in _LIVE:
            if peer not in self._live:
                self._live[peer] = None
                # A random place in the order, so that whoever joined last is not probed by all at once (section 4.3).
                self._order.insert(self._random.randint(0, len(self._order)), peer)
        else:
            self._live.pop(peer, None)
        _put(self._lost, peer, record.state in (State.SUSPECT, State.FAILED))
        self._suspected.pop(peer, None)
        if record.state == State.SUSPECT:
            config = self.config
            bounds = suspicion_bounds(config.suspicion_multiplier, self._count, config.probe_interval)
            self._suspected[peer] = suspicion_timeout(0, 0, bounds)
        if not self._live and self._dial_at is not None:
            self._dial_wait = self.config.join_interval
            self._dial_at = min(self._dial_at, now + self._dial_wait)
        self._spread(record, now)
        if before is None or (before.state, before.incarnation, before.address) != (
            record.state,
            record.incarnation,
            record.address,
        ):
            self._outputs.emit(MemberChanged(record, None if before is None else before.state))

    def _deadline(self, peer: bytes) -> float:
        """When a suspect is failed: its suspicion has lasted, and so has its silence."""
        seen = self._seen[peer]
        return max(seen.since, seen.heard) + self._suspected[peer]

    def _room_for(self, record: Member) -> bool:
        """Make room for a member not known so far."""
        if len(self.members) < MAX_MEMBERS:
            return True
        dead = [peer for peer in self._seen if peer not in self._live]
        if not dead or record.state not in _LIVE:
            self.refused += 1
            return False
        self._remove(min(dead, key=lambda peer: self._seen[peer].since))
        return True

    def _forget(self, now: float) -> None:
        for peer in [peer for peer in self._seen if self._dead_for(peer, now) >= self.config.forget_after]:
            self._remove(peer)

    def _remove(self, peer: bytes) -> None:
        del self.members[peer], self._seen[peer]
        self._lost.pop(peer, None)
        self._broadcasts.discard(peer)

    def _dead_for(self, peer: bytes, now: float) -> float:
        return 0.0 if peer in self._live else now - self._seen[peer].since

    # -- spreading ----------------------------------------------------------------------------------------------

    @property
    def _count(self) -> int:
        """N: live members, this one included."""
        return len(self._live) + 1

    def _spread(self, record: Member, now: float) -> None:
        if not self._broadcasts:
            self._gossip_at = max(self._gossip_at, now)
        self._broadcasts.put(record)

    def _next_in_ring(self, count: int) -> list[bytes]:
        """Live members in turn: the few transmissions of an update go to different ones."""
        chosen = [peer for peer in self._ring if peer in self._live][:count]
        if len(chosen) < count:
            self._ring = sorted(self._live)
            self._random.shuffle(self._ring)
            chosen += [peer for peer in self._ring if peer not in chosen][: count - len(chosen)]
        self._ring = [peer for peer in self._ring if peer not in chosen]
        return chosen

    def _sample(self, count: int) -> list[bytes]:
        live = list(self._live)
        return self._random.sample(live, min(count, len(live)))

    def _records(self, to: bytes, *, about: bytes = b"", spread: bool = False) -> tuple[Member, ...]:
        """What a message to `to` carries: this peer's own record, what is believed of the receiver unless that is
        good, and news. A suspect is so told by whoever speaks to it (Lifeguard's buddy system, section IV.C)."""
        records = {self.me.id: self.me}
        receiver = self.members.get(to)
        if receiver is not None and receiver.state != State.ALIVE:
            records[to] = receiver
        if about in self.members:
            records[about] = self.members[about]
        room = ROOM - sum(record_size(record) for record in records.values())
        count, limit = MAX_RECORDS - len(records), transmit_limit(self.config.retransmit_multiplier, self._count)
        news = self._broadcasts.take(count, room, limit) if spread else self._broadcasts.peek(count, room)
        for record in news:
            records[record.id] = record
        return tuple(records.values())

    def _send(self, to: bytes, message: MembershipMessage, address: str = "") -> None:
        self._outputs.send(to, message, address=address or self.address_of(to))

    def _tell(self, peer: bytes, now: float) -> None:
        """Ping `peer` with what is believed of it, so that it may refute."""
        seen = self._seen[peer]
        if now >= seen.told + self.config.probe_timeout and self.me.state != State.LEFT:
            seen.told = now
            self._ping(peer, now)

    def _reconnect(self) -> None:
        """Dial somebody lost, so that after a heal the two sides meet."""
        lost = list(self._lost)
        if lost and self._random.random() < min(1.0, _DIALS * len(lost) / self._count):
            peer = lost[self._random.randrange(len(lost))]
            self._send(peer, PushPull(True, (self.me, self.members[peer])))

    def _dial(self, now: float) -> None:
        """Dial the seeds and some of the remembered members: all while nobody is there, later only seeds nobody is
        known at."""
        alone = not self._live
        known = {member.address for member in self.members.values()}
        for address in self._seeds:
            if alone or address not in known:
                self._outputs.send(b"", PushPull(True, (self.me,)), address=address)
        remembered = [peer for peer in self._remembered if peer not in self.members] if alone else []
        for peer in self._random.sample(remembered, min(_TELLS, len(remembered))):
            self._outputs.send(peer, PushPull(True, (self.me,)), address=self._remembered[peer])
        wait = self._dial_wait if alone else _UNKNOWN_SEEDS
        if alone:
            self._dial_wait = min(2.0 * self._dial_wait, self.config.join_longest)
        self._dial_at = now + wait * (0.75 + 0.25 * self._random.random())

    def _reply_view(self, to: bytes, now: float) -> None:
        """The whole view, or, to whoever asks again and again, one page."""
        seen = self._seen.get(to)
        if seen is not None and now >= seen.viewed + self.config.probe_interval / 2:
            seen.viewed = now
            self._send_view(to, now, reply=False)
        else:
            self._send(to, PushPull(False, self._records(to)))

    def _send_view(self, to: bytes, now: float, *, reply: bool) -> None:
        """Pages of all records but those of the long dead, which would be handed on for ever."""
        receiver = self.members[to]
        first = [receiver] if receiver.state != State.ALIVE else []
        limit = self.config.forget_after / 2
        rest = [self.members[peer] for peer in self._seen if peer != to and self._dead_for(peer, now) < limit]
        most = _MAX_PAGES * (MAX_RECORDS - 1)
        if len(rest) > most:
            start = self._random.randrange(len(rest))
            rest = (rest[start:] + rest[:start])[:most]
        reports = self._progress.page(MAX_REPORTS)
        for page in pages(self.me, first + rest):
            self._send(to, PushPull(reply, page, reports))
            reply, reports = False, ()


def _overrides(new: Member, old: Member) -> bool:
    """Later pair first; at equal pairs left > failed > suspect > alive (SWIM section 4.2)."""
    return (new.incarnation, new.refutation, new.state) > (old.incarnation, old.refutation, old.state)


def _put(members: dict[bytes, None], peer: bytes, inside: bool) -> None:
    if inside:
        members[peer] = None
    else:
        members.pop(peer, None)
