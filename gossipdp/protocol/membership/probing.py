"""SWIM's failure detector: one probe a period, indirect probes, and Lifeguard's local health.

Every probe period this peer pings one member, in shuffled round-robin order. If it does not answer, a few other members
ping it too, before it counts as silent. The slower this peer finds itself to be, the longer it waits. It
also pings on request of other members, and tells suspects what is believed of them.

References: Das, Gupta, Motivala, "SWIM" (DSN 2002), sections 3.1 and 4.3; Dadgar, Phillips, Currey, "Lifeguard" (DSN-W
2018), section IV.A.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from random import Random
from typing import Final

from gossipdp.protocol.membership.dissemination import Dissemination, should_tell
from gossipdp.protocol.membership.local_health import LocalHealth, probe_times
from gossipdp.protocol.membership.outbound_only import probers
from gossipdp.protocol.membership.view import View
from gossipdp.protocol.wire.messages import Nack, Ping, PingRequest, Pong, State

__all__ = ["Prober"]

MAX_PINGS: Final = 256
"""pings whose answers are still awaited"""
MAX_RELAYED: Final = 64
"""pings on request of other members at one time"""


@dataclass(slots=True)
class _Sent:
    """A ping under way. `asker` requested it with sequence `asked`; b"" if this peer sent it for itself."""

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
    """this peer had never heard the target"""
    probers: set[bytes] = field(default_factory=set)
    nacks: set[bytes] = field(default_factory=set)


class Prober:
    """Probes one member after the other, directly and through other members."""

    def __init__(self, view: View, dissemination: Dissemination, *, random: Random, now: float) -> None:
        self._view, self._config, self._dissemination, self._random = view, view.config, dissemination, random
        self.health = LocalHealth(self._config.awareness_max if self._config.lifeguard else 1)
        self.order: list[bytes] = []
        """members to probe, the next one last"""
        self.sent: dict[int, _Sent] = {}
        self.nack_at: dict[int, float] = {}
        self._probe: _Probe | None = None
        self._sequence = view.me.incarnation << 32
        self._probe_at = now + self._config.probe_interval * random.random()

    # -- the order of probes ------------------------------------------------------------------------------------------

    def joined(self, peer: bytes) -> None:
        """Give a new member a random place in the order, so that not all probe the newest at once (section 4.3).

        A member that comes back is still in the order, or gets its place in the next. With a new place each time, a few
        members that come and go would keep all others from being probed. A member known by hearsay waits for the next
        round while these are too many.
        """
        contacts = self._view.contacts
        if len(contacts.hearsay) > contacts.hearsay_limit:
            return
        if len(self.order) > 2 * len(self._view.members):
            self.order = [member for member in dict.fromkeys(self.order) if self._view.is_live(member)]
        place = int(self._random.random() * (len(self.order) + 1))
        self.order.append(peer)
        self.order[place], self.order[-1] = peer, self.order[place]

    def hurry(self, peer: bytes) -> None:
        """Probe `peer` next."""
        if peer in self.order:
            self.order.remove(peer)
        self.order.append(peer)

    def stop(self) -> None:
        """Probe no more."""
        self._probe = None
        self.nack_at.clear()

    def starved(self, now: float) -> None:
        """This peer did not run when it should have. What it missed in that time says nothing of other members."""
        self.health.worse()
        self._probe = None
        self._probe_at = now

    # -- inputs -------------------------------------------------------------------------------------------------

    def asked(self, sequence: int, source: bytes) -> float:
        """When this peer sent the ping that `source` answers with this sequence; -infinity if there is none."""
        sent = self.sent.get(sequence)
        return sent.at if sent is not None and sent.target == source else -math.inf

    def answered(self, sequence: int, source: bytes, now: float) -> None:
        """A Pong came."""
        probe, sent = self._probe, self.sent.get(sequence)
        if sent is not None and sent.target == source:
            del self.sent[sequence]
            self.nack_at.pop(sequence, None)
            sample = max(now - sent.at, 0.0)
            # No probe lasts longer. A later answer says nothing of the link.
            if sample <= self._config.awareness_max * self._config.probe_interval:
                self._view.contacts.answered(source, sample)
            if sent.asker:
                records = self._dissemination.records(sent.asker, now, about=source)
                self._dissemination.send(sent.asker, Pong(sent.asked, records), now)
        if probe is not None and sequence in probe.sequences and source in (probe.target, *probe.probers):
            self._probe = None
            self.health.better()
            if probe.unheard:
                self._view.contacts.probed_unheard(answered=True)

    def ping_for(self, asker: bytes, sequence: int, target: bytes, now: float) -> None:
        """Ping `target` for `asker`, which did not hear it (SWIM's ping-req).

        It is pinged where this peer knows it, and not at all if it is unknown: no asker chooses what others dial.
        """
        if target == self._view.me.id:
            self._dissemination.send(asker, Pong(sequence, self._dissemination.records(asker, now)), now)
        elif len(self.nack_at) < MAX_RELAYED:
            known = target in self._view.members
            mine = (self._ping if known else self._await)(target, now, asker=asker, asked=sequence)
            # Half the timeout, not the 80 % of Lifeguard: the asker waits while the nack travels.
            self.nack_at[mine] = now + self._config.probe_timeout / 2

    def nacked(self, sequence: int, source: bytes) -> None:
        """A relay did not hear the target either. At least this peer heard the relay."""
        probe = self._probe
        if probe is not None and sequence in probe.sequences and source in probe.probers:
            probe.nacks.add(source)

    def tell(self, peer: bytes, now: float) -> None:
        """Ping `peer` with what is believed of it, so that it can refute."""
        if self._view.me.state == State.LEFT or not should_tell(self._config, self._view.members[peer]):
            return
        if self._view.contacts.may_tell(peer, self._config.probe_timeout, now):
            self._ping(peer, now)

    # -- time ---------------------------------------------------------------------------------------------------

    def timer(self) -> float:
        """When to call `handle_timer` next."""
        probe = self._probe
        due = self._probe_at if probe is None else min(probe.indirect_at, probe.verdict_at)
        # All nacks wait equally long, so the first made is the first due.
        return min(due, next(iter(self.nack_at.values()))) if self.nack_at else due

    def handle_timer(self, now: float) -> bytes:
        """Send the nacks and indirect probes that are due, and judge the probe. Call `probe` next.

        Returns:
            The member that sent nothing while it was probed; b"" if there is none.
        """
        for sequence in [sequence for sequence, at in self.nack_at.items() if now >= at]:
            del self.nack_at[sequence]
            sent = self.sent[sequence]
            if self._config.lifeguard:
                self._dissemination.send(sent.asker, Nack(sent.asked), now)
        probe = self._probe
        if probe is not None and now >= probe.verdict_at:
            self._probe = None
            return self._unanswered(probe)
        if probe is not None and now >= probe.indirect_at:
            self._probe_indirectly(probe, now)
        return b""

    def probe(self, now: float) -> None:
        """Probe the next member, if it is time."""
        if self._probe is None and now >= self._probe_at:
            self._begin(now)

    def _begin(self, now: float) -> None:
        target = self._next_target()
        config = self._config
        if target is None:
            self._probe_at = now + config.probe_interval
            return
        rtt = self._view.contacts.sight(target).rtt
        direct, verdict = probe_times(
            config.probe_interval, config.probe_timeout, self.health.multiplier, rtt, config.awareness_max
        )
        self._probe_at = now + verdict
        # No ping reaches an outbound-only member without a link: its probers are asked at once.
        indirect_at = now + direct if self._view.reaches(target) else now
        unheard = not self._view.contacts.heard(target)
        self._probe = _Probe(target, now, indirect_at, now + verdict, {self._ping(target, now)}, unheard)

    def _next_target(self) -> bytes | None:
        for _ in range(2):
            while self.order:
                peer = self.order.pop()
                if self._view.is_live(peer):
                    return peer
            self.order = self._view.candidates(self._random)
            self._random.shuffle(self.order)
        return None

    def _probe_indirectly(self, probe: _Probe, now: float) -> None:
        probe.indirect_at = math.inf
        chosen = self._probers(probe.target)
        probe.probers.update(chosen)
        address = self._view.address_of(probe.target)
        for relay in chosen:
            self._dissemination.send(relay, PingRequest(min(probe.sequences), probe.target, address), now)
        # Ping once more directly: the first ping may have been lost with its connection.
        probe.sequences.add(self._ping(probe.target, now))

    def _probers(self, target: bytes) -> list[bytes]:
        """The members asked to ping for this peer: random ones, or those that have a link with a hidden member."""
        count, view = self._config.indirect_probes, self._view
        if not view.members[target].address:
            return probers(target, view.alive(), count)
        linked = [relay for relay in view.members[target].relays if view.is_live(relay)][:count]
        others = [peer for peer in view.candidates(self._random) if peer not in (target, *linked)]
        others = [peer for peer in others if view.reaches(peer)]
        return linked + self._random.sample(others, min(count - len(linked), len(others)))

    def _unanswered(self, probe: _Probe) -> bytes:
        # The silence of a member never heard says nothing of this peer's health: the member may not exist.
        if self._view.contacts.heard(probe.target):
            self.health.worse(2 if len(probe.nacks) < len(probe.probers) else 1)
        elif self._view.contacts.probed_unheard(answered=False):
            self.order = []
        # A member that sent any message meanwhile lives.
        silent = probe.target in self._view.members and self._view.contacts.sight(probe.target).heard <= probe.started
        return probe.target if silent else b""

    def _ping(self, peer: bytes, now: float, *, asker: bytes = b"", asked: int = 0) -> int:
        """Send a ping, for `asker` if it requested one with sequence `asked`. Returns its own sequence."""
        sequence = self._await(peer, now, asker=asker, asked=asked)
        records, reports = self._dissemination.records(peer, now), self._dissemination.reports(peer, now)
        self._dissemination.send(peer, Ping(sequence, records, reports, self._dissemination.speed), now)
        return sequence

    def _await(self, peer: bytes, now: float, *, asker: bytes = b"", asked: int = 0) -> int:
        """Await an answer of `peer`. Returns the sequence of the ping."""
        self._sequence += 1
        if len(self.sent) >= MAX_PINGS:
            oldest = next(iter(self.sent))
            del self.sent[oldest]
            self.nack_at.pop(oldest, None)
        self.sent[self._sequence] = _Sent(peer, now, asker, asked)
        return self._sequence
