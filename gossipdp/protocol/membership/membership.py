"""Which peers are members, and which are alive: SWIM with Lifeguard, as in hashicorp/memberlist and serf.

`Membership` connects several machines. `probing` checks that members are alive, `dissemination` spreads news,
`anti_entropy` compares whole views, `seeds` finds other members and `answers` sends owed records. `merging` checks what
other members say and merges it into the `view`; `own_record` refutes what they say of this peer; `voices` tells how far
the network's clock is by their claims.

No socket, clock, key or vector is here, and nothing of exchanges. Other packages read `members`, `alive` and the
`MemberChanged` events.

References: Das, Gupta, Motivala, "SWIM" (DSN 2002); Dadgar, Phillips, Currey, "Lifeguard" (DSN-W 2018); Demers et al.,
"Epidemic algorithms for replicated database maintenance" (1987) for push-pull.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Final

from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.events import Event, Joined
from gossipdp.protocol.membership.answers import Answers
from gossipdp.protocol.membership.anti_entropy import AntiEntropy
from gossipdp.protocol.membership.config import MembershipConfig
from gossipdp.protocol.membership.dissemination import UNASKED, Dissemination, MembershipMessage
from gossipdp.protocol.membership.local_health import LocalHealth
from gossipdp.protocol.membership.merging import Merger
from gossipdp.protocol.membership.outbound_only import ProberLinks
from gossipdp.protocol.membership.own_record import OwnRecord
from gossipdp.protocol.membership.probing import Prober
from gossipdp.protocol.membership.progress import ProgressBoard
from gossipdp.protocol.membership.relays import RelayChoice
from gossipdp.protocol.membership.seeds import Seeds
from gossipdp.protocol.membership.signatures import Signer
from gossipdp.protocol.membership.view import View
from gossipdp.protocol.membership.voices import Voices
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.rounds.speed import Speed
from gossipdp.protocol.strikes import Strikes
from gossipdp.protocol.wire.messages import Member, Nack, Phase, Ping, PingRequest, Pong, PushPull, State

__all__ = ["Membership", "MembershipMessage"]

_TELLS: Final = 8
"""members told directly that this peer leaves"""
_RESTART_CONTACTS: Final = 1024
"""members that this peer looks for after a restart"""


class Membership:
    """This peer's part of the membership protocol: who is there, and what it says of itself.

    Args:
        me: this peer's record, alive; its incarnation is larger than in any earlier life.
        outputs: takes the messages. Events wait in `events`.
        admission: tells which members the operator keeps out. No word of others brings such a member back.
        strikes: tells which members are set aside.
        progress: reports on it ride on pings.
        speed: of this peer's training; pings carry it too.
        signer: signs this peer's record, and checks the records and reports of other members.
    """

    def __init__(
        self,
        config: MembershipConfig,
        me: Member,
        *,
        random: Random,
        outputs: Outputs,
        admission: Admission,
        strikes: Strikes,
        progress: ProgressBoard,
        speed: Speed,
        signer: Signer,
        now: float,
    ) -> None:
        self.config = config
        self._random = random
        self._joined = False
        events = self.events = deque[Event]()
        """events that wait for `Peer`"""
        view = self._view = View(config, signer.sign_member(me), admission)
        told = self._dissemination = Dissemination(
            view, random=random, outputs=outputs, progress=progress, speed=speed, now=now
        )
        self._prober = Prober(view, told, random=random, now=now)
        self._answers = Answers(view, told)
        self._anti_entropy = AntiEntropy(view, told, self._answers, random=random, now=now)
        self._seeds = Seeds(view, told, outputs, random=random, now=now)
        self._own_record = OwnRecord(view, told, self._seeds, signer, self._prober.health, events, now)
        self._relays = RelayChoice(view, self._own_record, events, hidden=not me.address, now=now)
        self._prober_links = ProberLinks(view, told, self._relays, now)
        self._voices = Voices(view, progress, speed, admission, strikes, now)
        self._merger = Merger(
            view,
            told,
            self._prober,
            self._answers,
            self._anti_entropy,
            self._seeds,
            self._own_record,
            progress,
            signer,
            self._voices,
            admission,
            events,
        )

    # -- commands ---------------------------------------------------------------------------------------------

    def join(self, addresses: Sequence[str], now: float) -> None:
        """Dial `addresses` and the remembered members until one answers. Any live one is enough."""
        self._seeds.join(addresses, now)

    def remember(self, members: Iterable[Member], known: Mapping[bytes, float]) -> None:
        """Remember members of an earlier life. `join` dials them like seeds; they count when they answer.

        Args:
            known: seconds for which each was known.
        """
        self._view.remember(members)
        for peer, seconds in known.items():
            self._view.contacts.known_before(peer, seconds)

    def leave(self, now: float) -> None:
        """Tell some members directly that this peer leaves. They tell the rest. Probing stops."""
        if self.me.state == State.LEFT:
            return
        self._own_record.leave(now)
        self._prober.stop()
        live = [peer for peer in self._view.candidates(self._random) if self._view.reaches(peer)]
        for peer in self._random.sample(live, min(_TELLS, len(live))):
            self._dissemination.send(peer, Pong(UNASKED, self._dissemination.records(peer, now)), now)

    def advertise(self, addresses: Sequence[str], now: float) -> None:
        """Other members are to dial this peer at one of `addresses` from now on; without any it needs relays."""
        if tuple(addresses) != self.me.addresses and self.me.state != State.LEFT:
            self._prober_links.hurry(now)
            self._relays.advertise(addresses, now)

    def carried(self, relay: bytes, taken: bool, now: float) -> None:
        """A relay agrees to carry to this peer what others send it, or says no."""
        self._relays.answered(relay, taken, now)

    def finish(self, phase: Phase, calls: bool, now: float) -> None:
        """Tell all members how far this peer is with the end of its run, and whether it asks them to end theirs."""
        if (phase, calls) != (self.me.phase, self.me.calls) and self.me.state != State.LEFT:
            self._own_record.finish(phase, calls, now)

    def put_out(self, now: float) -> None:
        """The operator has decided: live members that it keeps out fail at once."""
        self._merger.put_out(now)

    # -- what other machines read -----------------------------------------------------------------------------

    @property
    def me(self) -> Member:
        """This peer's own record."""
        return self._view.me

    @property
    def members(self) -> dict[bytes, Member]:
        """Every known record, this peer's own included."""
        return self._view.members

    @property
    def health(self) -> LocalHealth:
        """Lifeguard's local health of this peer."""
        return self._prober.health

    @property
    def refused(self) -> int:
        """Records refused, because the table was full or their sender introduced too many members."""
        return self._view.refused

    @property
    def buried(self) -> int:
        """Times that other members thought this peer failed, or may have."""
        return self._own_record.buried

    def alive(self) -> list[Member]:
        """The other members that are alive or suspected, sorted by id, without relays that have no model.

        Most suspects are alive.
        """
        return self._view.with_model()

    def all_alive(self) -> list[Member]:
        """The same with those relays."""
        return self._view.alive()

    def settled(self, now: float) -> tuple[bytes, ...]:
        """Sorted ids of all live members, this peer included, if the view is complete and fresh; empty otherwise.

        It is if no member is suspected, none can only dial out, and no record changed for three probe intervals.
        """
        fresh = now - 3.0 * self.config.probe_interval
        if self._view.suspects or self._view.changed > fresh:
            return ()
        members = [self.me, *self.alive()]
        return tuple(sorted(member.id for member in members)) if all(member.address for member in members) else ()

    def rtt(self, peer: bytes) -> float | None:
        """Smoothed round-trip time to `peer` in seconds, from direct pings; None while unknown."""
        seen = self._view.contacts.seen.get(peer)
        return None if seen is None else seen.rtt

    def speeds(self, lasting: float, now: float) -> list[float]:
        """Steps a second of members whose word counts: see `Voices.speeds`."""
        return self._voices.speeds(lasting, now)

    def training(self) -> list[bytes]:
        """Live members whose last report to this peer was that they train."""
        return [member.id for member in self._view.alive() if self._view.contacts.trains(member.id)]

    def heard(self, peer: bytes) -> bool:
        """Whether `peer` has ever sent this peer a message."""
        return self._view.contacts.heard(peer)

    def known_for(self, peer: bytes) -> float:
        """Seconds for which this peer has known `peer`, earlier lives of this peer included."""
        return self._view.contacts.known_for(peer)

    def known(self) -> dict[bytes, float]:
        """Seconds for which this peer has known each member; infinite for a proven one."""
        return self._view.contacts.known()

    def voices(self, peers: Iterable[bytes]) -> list[bytes]:
        """Those of `peers` whose word counts where the words of several members decide (`contacts`)."""
        return self._view.contacts.voices(peers)

    @property
    def some_proven(self) -> bool:
        """Whether any member was proven. Until then all have a voice."""
        return self._view.contacts.some_proven

    def proven(self) -> list[bytes]:
        """Live members that are proven."""
        return [member.id for member in self._view.alive() if self._view.contacts.proven(member.id)]

    def restart_contacts(self) -> list[Member]:
        """Members to look for after a restart: those that sent this peer a message, in this life or an earlier one.

        Only their addresses count.
        """
        return self._view.restart_contacts()[:_RESTART_CONTACTS]

    def heard_lately(self, peer: bytes, now: float) -> bool:
        """Whether a message of `peer` came within the last probe interval."""
        return self.heard_since(peer, now - self.config.probe_interval)

    def heard_since(self, peer: bytes, time: float) -> bool:
        """Whether a message of `peer` came after `time`."""
        return self._view.contacts.heard_since(peer, time)

    def dead_for(self, peer: bytes, now: float) -> float:
        """Seconds since `peer` failed or left; 0 for a live member."""
        return self._view.dead_for(peer, now)

    def linked(self, peer: bytes) -> bool:
        """Whether `peer` has sent a message, and the transport has not lost it since."""
        return self._view.contacts.linked(peer)

    def reaches(self, peer: bytes) -> bool:
        """Whether a message can reach `peer`. An outbound-only member without a link is out of reach."""
        return self._view.reaches(peer)

    def direct(self, peer: bytes) -> bool:
        """Whether this peer or the member `peer` can dial the other, so that no relay need carry between them."""
        member = self.members.get(peer)
        return self.me.dialable or member is None or member.dialable

    @property
    def relays(self) -> list[bytes]:
        """Members that carry to this peer, or were asked to."""
        return self._relays.chosen

    def carriers(self) -> dict[bytes, tuple[str, ...]]:
        """Live members that offer to carry -> where each can be dialled."""
        alive = self._view.alive()
        return {member.id: member.addresses for member in alive if member.carries and member.dialable}

    def address_of(self, peer: bytes) -> str:
        """Where to dial `peer`, or ""."""
        return self._view.address_of(peer)

    def others_of(self, peer: bytes) -> tuple[str, ...]:
        """Where else to dial `peer`."""
        return self._view.others_of(peer)

    def left(self, address: str) -> bool:
        """Whether the member at `address` left, and no live member has that address."""
        return self._view.left(address)

    # -- inputs -----------------------------------------------------------------------------------------------

    def contact(self, peer: bytes, now: float) -> None:
        """An authenticated message of any other kind came from `peer`.

        A member that is believed suspect, failed or left is told so, so that it can refute. Only its own record
        changes that belief.
        """
        if self._view.hear(peer, now) and self.members[peer].state != State.ALIVE:
            self._prober.tell(peer, now)

    def slept(self, seconds: float) -> None:
        """This peer did not run for `seconds`."""
        self._own_record.slept(seconds)

    def link_down(self, peer: bytes, reason: str, now: float) -> None:
        """The transport lost `peer`. That is a hint and no evidence, so `peer` is probed next."""
        self._view.contacts.link_down(peer)
        self._relays.lost(peer, now)
        if self._view.is_live(peer):
            self._prober.hurry(peer)

    def receive(self, message: MembershipMessage, source: bytes, now: float) -> None:
        """A message came from the peer whose id the transport has verified as `source`."""
        if source == self.me.id:
            return
        self.contact(source, now)
        if isinstance(message, Ping | Pong | PushPull):
            asked = self._prober.asked(message.sequence, source) if isinstance(message, Pong) else -math.inf
            view = isinstance(message, PushPull)
            self._merger.learn(message.members, message.progress, source, now, view=view, asked=asked)
            self._greet(source, now)
        if isinstance(message, Ping | Pong) and message.speed is not None:
            self._view.contacts.reported_speed(source, message.speed, now)
        match message:
            case Ping(sequence):
                told = self._dissemination
                pong = Pong(sequence, told.records(source, now), told.reports(source, now), told.speed)
                told.send(source, pong, now)
            case Pong(sequence):
                self._prober.answered(sequence, source, now)
            case PingRequest(sequence, target):
                self._prober.ping_for(source, sequence, target, now)
            case Nack(sequence):
                self._prober.nacked(sequence, source)
            case PushPull():
                self._anti_entropy.receive(message, source, now)

    def _greet(self, source: bytes, now: float) -> None:
        """The message may have introduced its sender. Its first member is the one through which this peer joined."""
        if not self._view.contacts.heard(source):
            self._view.hear(source, now)
        if not self._joined and self._view.contacts.heard(source):
            self._joined = True
            self.events.append(Joined(source))

    # -- time -------------------------------------------------------------------------------------------------

    def timer(self) -> float | None:
        """When to call `handle_timer` next; None once this peer has left and spread that news."""
        gossip = self._dissemination.timer()
        if self.me.state == State.LEFT:
            return gossip
        return min(
            math.inf if gossip is None else gossip,
            self._prober.timer(),
            self._anti_entropy.timer(),
            self._answers.timer(),
            self._own_record.timer(),
            self._seeds.timer(),
            self._view.suspects.next_verdict(),
            self._prober_links.timer(),
        )

    def handle_timer(self, now: float) -> None:
        """Do what is due."""
        due = self.timer()
        if due is None or now < due:
            return
        if self.config.lifeguard and now - due > self.config.probe_interval / 2:
            self._prober.starved(now)
            self._view.suspects.postpone(now - due, now)
        self._dissemination.handle_timer(now)
        if self.me.state == State.LEFT:
            return
        self._seeds.handle_timer(now)
        if silent := self._prober.handle_timer(now):
            self._merger.suspect(silent, now)
        self._prober.probe(now)
        self._relays.handle_timer(now)
        self._prober_links.handle_timer(now)
        self._own_record.handle_timer(now)
        self._answers.handle_timer(now)
        for peer in self._view.suspects.overdue(now):
            self._merger.fail(peer, now)
        if self._anti_entropy.handle_timer(now):
            self._merger.forget(now)
