"""Is it still there? SWIM's failure detector: one probe a period, indirect probes, and Lifeguard's local health.

Every probe period one member is pinged, in shuffled round-robin order; if it does not answer, some others ping it too;
if still nothing was heard of it, that is said, and what follows from it is not decided here. The slower this peer finds
itself to be, the longer it waits. It also pings for others, and tells suspects what is believed of them.

References: Das, Gupta, Motivala, "SWIM" (DSN 2002), sections 3.1 and 4.3; Dadgar, Phillips, Currey, "Lifeguard" (DSN-W
2018), section IV.A.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from gossipdp.protocol.membership.dissemination import Dissemination, tells
from gossipdp.protocol.membership.outbound_only import moorings
from gossipdp.protocol.membership.suspicion import LocalHealth, probe_times
from gossipdp.protocol.membership.view import View
from gossipdp.protocol.wire.messages import Nack, Ping, PingRequest, Pong, State

__all__ = ["Prober"]

MAX_PINGS: Final = 256
"""pings whose answer is still remembered"""
MAX_RELAYED: Final = 64
"""pings made for others at one time"""


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
    unheard: bool
    """the target had never spoken to this peer"""
    relays: set[bytes] = field(default_factory=set)
    nacks: set[bytes] = field(default_factory=set)


class Prober:
    """Args:

    silent: called with the member that neither answered nor was heard of otherwise while it was probed.
    """

    def __init__(
        self,
        view: View,
        dissemination: Dissemination,
        silent: Callable[[bytes, float], None],
        *,
        random: Random,
        now: float,
    ) -> None:
        self._view, self._config, self._dissemination, self._silent = view, view.config, dissemination, silent
        self._random = random
        self.health = LocalHealth(self._config.awareness_max if self._config.lifeguard else 1)
        self.order: list[bytes] = []
        """whom to probe, the next one last"""
        self.sent: dict[int, _Sent] = {}
        self.nack_at: dict[int, float] = {}
        self._probe: _Probe | None = None
        self._sequence = view.me.incarnation << 32
        self._probe_at = now + self._config.probe_interval * random.random()

    # -- whom to probe ------------------------------------------------------------------------------------------

    def joined(self, peer: bytes) -> None:
        """A random place in the order, so that whoever joined last is not probed by all at once (section 4.3).

        For members never known before. One that has come back is in the order still, or has its place in the next:
        given another each time, a few members that come and go would keep all others from being probed. One of many
        that this peer has only heard of waits for the next round.
        """
        if len(self._view.hearsay) > self._view.room:
            return
        if len(self.order) > 2 * len(self._view.members):
            self.order = [member for member in dict.fromkeys(self.order) if self._view.lives(member)]
        place = int(self._random.random() * (len(self.order) + 1))
        self.order.append(peer)
        self.order[place], self.order[-1] = peer, self.order[place]

    def hurry(self, peer: bytes) -> None:
        """Probe `peer` next."""
        if peer in self.order:
            self.order.remove(peer)
        self.order.append(peer)

    def stop(self) -> None:
        self._probe = None
        self.nack_at.clear()

    def starved(self, now: float) -> None:
        """This peer did not run when it should have: what it did not hear in that time says nothing of others."""
        self.health.worse()
        self._probe = None
        self._probe_at = now

    # -- inputs -------------------------------------------------------------------------------------------------

    def asked(self, sequence: int, source: bytes) -> float:
        """When the ping was sent that `source` answers by this sequence; long ago if there is none."""
        sent = self.sent.get(sequence)
        return sent.at if sent is not None and sent.target == source else -math.inf

    def answered(self, sequence: int, source: bytes, now: float) -> None:
        probe, sent = self._probe, self.sent.get(sequence)
        if sent is not None and sent.target == source:
            del self.sent[sequence]
            self.nack_at.pop(sequence, None)
            seen = self._view.seen.get(source)
            sample = max(now - sent.at, 0.0)
            # No probe lasts longer: what comes later says nothing of the link.
            if seen is not None and sample <= self._config.awareness_max * self._config.probe_interval:
                seen.rtt = sample if seen.rtt is None else seen.rtt + (sample - seen.rtt) / 8
            if sent.asker:
                records = self._dissemination.records(sent.asker, now, about=source)
                self._dissemination.send(sent.asker, Pong(sent.asked, records), now)
        if probe is not None and sequence in probe.sequences and source in (probe.target, *probe.relays):
            self._probe = None
            self.health.better()
            if probe.unheard:
                self._view.probed_unheard(answered=True)

    def ping_for(self, asker: bytes, sequence: int, target: bytes, address: str, now: float) -> None:
        """`asker` did not hear `target`: try in its place (SWIM's ping-req)."""
        if target == self._view.me.id:
            self._dissemination.send(asker, Pong(sequence, self._dissemination.records(asker, now)), now)
        elif len(self.nack_at) < MAX_RELAYED:
            mine = self._ping(target, now, address)
            self.sent[mine].asker, self.sent[mine].asked = asker, sequence
            # Half the timeout, where Lifeguard has 80 %: the asker's clock is running while the nack travels.
            self.nack_at[mine] = now + self._config.probe_timeout / 2

    def nacked(self, sequence: int, source: bytes) -> None:
        """A relay heard nothing of the target either, but the relay was heard."""
        probe = self._probe
        if probe is not None and sequence in probe.sequences and source in probe.relays:
            probe.nacks.add(source)

    def tell(self, peer: bytes, now: float) -> None:
        """Ping `peer` with what is believed of it, so that it may refute."""
        seen = self._view.sight(peer)
        if not tells(self._config, self._view.members[peer]):
            return
        if now >= seen.told + self._config.probe_timeout and self._view.me.state != State.LEFT:
            seen.told = now
            self._ping(peer, now)

    # -- time ---------------------------------------------------------------------------------------------------

    def timer(self) -> float:
        probe = self._probe
        due = self._probe_at if probe is None else min(probe.indirect_at, probe.verdict_at)
        # They all wait equally long, so the first made is the first due.
        return min(due, next(iter(self.nack_at.values()))) if self.nack_at else due

    def handle_timer(self, now: float) -> None:
        for sequence in [sequence for sequence, at in self.nack_at.items() if now >= at]:
            del self.nack_at[sequence]
            sent = self.sent[sequence]
            if self._config.lifeguard:
                self._dissemination.send(sent.asker, Nack(sent.asked), now)
        probe = self._probe
        if probe is not None and now >= probe.verdict_at:
            self._probe = None
            self._unanswered(probe, now)
        elif probe is not None and now >= probe.indirect_at:
            self._probe_indirectly(probe, now)
        if self._probe is None and now >= self._probe_at:
            self._begin(now)

    def _begin(self, now: float) -> None:
        target = self._next_target()
        config = self._config
        if target is None:
            self._probe_at = now + config.probe_interval
            return
        rtt = self._view.sight(target).rtt
        direct, verdict = probe_times(
            config.probe_interval, config.probe_timeout, self.health.multiplier, rtt, config.awareness_max
        )
        self._probe_at = now + verdict
        # No ping gets to an outbound-only member without a link: those that have one are asked at once.
        indirect_at = now + direct if self._view.reaches(target) else now
        unheard = not self._view.heard(target)
        self._probe = _Probe(target, now, indirect_at, now + verdict, {self._ping(target, now)}, unheard)

    def _next_target(self) -> bytes | None:
        for _ in range(2):
            while self.order:
                peer = self.order.pop()
                if self._view.lives(peer):
                    return peer
            self.order = self._view.company(self._random)
            self._random.shuffle(self.order)
        return None

    def _probe_indirectly(self, probe: _Probe, now: float) -> None:
        probe.indirect_at = math.inf
        chosen = self._relays(probe.target)
        probe.relays.update(chosen)
        address = self._view.address_of(probe.target)
        for relay in chosen:
            self._dissemination.send(relay, PingRequest(min(probe.sequences), probe.target, address), now)
        # Once more directly: the first may have been lost with the connection it was sent on.
        probe.sequences.add(self._ping(probe.target, now))

    def _relays(self, target: bytes) -> list[bytes]:
        """Who is asked to ping in this peer's place: anybody, but of an outbound-only member those that it keeps a
        link to."""
        count, view = self._config.indirect_probes, self._view
        if not view.members[target].address:
            return moorings(target, view.alive(), count)
        others = [peer for peer in view.company(self._random) if peer != target and view.reaches(peer)]
        return self._random.sample(others, min(count, len(others)))

    def _unanswered(self, probe: _Probe, now: float) -> None:
        # The silence of a member that was never heard says nothing of this peer: it may not exist.
        if self._view.heard(probe.target):
            self.health.worse(2 if len(probe.nacks) < len(probe.relays) else 1)
        elif self._view.probed_unheard(answered=False):
            self.order = []
        # Whoever was heard from meanwhile lives, whatever became of the answer.
        if probe.target in self._view.members and self._view.sight(probe.target).heard <= probe.started:
            self._silent(probe.target, now)

    def _ping(self, peer: bytes, now: float, address: str = "") -> int:
        self._sequence += 1
        if len(self.sent) >= MAX_PINGS:
            oldest = next(iter(self.sent))
            del self.sent[oldest]
            self.nack_at.pop(oldest, None)
        self.sent[self._sequence] = _Sent(peer, now)
        ping = Ping(
            self._sequence,
            self._dissemination.records(peer, now),
            self._dissemination.reports(peer, now),
            self._dissemination.speed(),
        )
        self._dissemination.send(peer, ping, now, address)
        return self._sequence
