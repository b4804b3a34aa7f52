"""Who is there: SWIM membership with Lifeguard (algorithms as in hashicorp/memberlist and serf).

Several machines under one roof: `probing` asks whether members are there, `dissemination` spreads news, `anti_entropy`
compares whole views, `seeking` finds others, `answers` keeps what is owed to them, and `view` is what this peer
believes. Here is what connects them: checking what others say and merging it into the view, refuting what they say of
this peer, failing suspects in time.

No socket, clock, key or vector is here, and nothing of exchanges: others read `members`, `alive` and the
`MemberChanged` events.

References: Das, Gupta, Motivala, "SWIM" (DSN 2002); Dadgar, Phillips, Currey, "Lifeguard" (DSN-W 2018); Demers et al.,
"Epidemic algorithms for replicated database maintenance" (1987) for push-pull.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Final

from msgspec.structs import replace

from gossipdp.protocol.events import Event, Joined, MemberChanged, Notice, UpdateRefused
from gossipdp.protocol.membership.answers import Answers
from gossipdp.protocol.membership.anti_entropy import AntiEntropy
from gossipdp.protocol.membership.dissemination import UNASKED, Dissemination, MembershipMessage
from gossipdp.protocol.membership.introductions import Introductions
from gossipdp.protocol.membership.outbound_only import Mooring
from gossipdp.protocol.membership.probing import Prober
from gossipdp.protocol.membership.progress import ProgressBoard
from gossipdp.protocol.membership.seeds import Seeking
from gossipdp.protocol.membership.signatures import Signer, same_word
from gossipdp.protocol.membership.suspicion import LAN, LOCAL, PRESETS, WAN, LocalHealth, MembershipConfig
from gossipdp.protocol.membership.view import LEAP, LIVE, View, overrides
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.wire.messages import Member, Nack, Ping, PingRequest, Pong, Progress, PushPull, State

__all__ = ["LAN", "LOCAL", "PRESETS", "WAN", "Membership", "MembershipConfig", "MembershipMessage"]

_TELLS: Final = 8
"""members told directly that this one leaves, or that others think them failed, at one time"""
_ACQUAINTED: Final = 1024
"""members that are looked for after a restart"""
_FORGERS: Final = 64
"""members whose words are not read for a moment, at one time"""
_AGAINST_COPY: Final = 5.0
"""seconds between refutations of one's own words from another address, or two copies would talk without end"""


class Membership:
    """Args:

    me: this peer's record, alive; its incarnation is larger than in any earlier life.
    signer: signs this peer's record, and checks the records and reports of others.
    progress: reports on it ride on pings.
    speed: steps a second that this peer trains, 0 if none; so does that.
    """

    def __init__(
        self,
        config: MembershipConfig,
        me: Member,
        *,
        random: Random,
        outputs: Outputs,
        emit: Callable[[Event], None],
        now: float,
        progress: ProgressBoard,
        signer: Signer,
        speed: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.config = config
        self._random, self._emit, self._progress, self._signer = random, emit, progress, signer
        self._view = View(config, signer.sign_member(me))
        self._dissemination = Dissemination(
            self._view, random=random, outputs=outputs, progress=progress, speed=speed, now=now
        )
        self._prober = Prober(self._view, self._dissemination, self._suspect, random=random, now=now)
        self._joined = self._cloned = False
        self._against_copy_at = now
        self._refute_at, self._refuted, self._refutation = math.inf, -math.inf, 0
        """when to deny a doubt next, when that was done last, and up to which refutation this peer's word is to go"""
        self._introductions = Introductions()
        self._unheard: dict[bytes, float] = {}
        """members that passed on a forged word -> when their records and reports are read again"""
        self.buried = 0
        """times that others thought this peer failed, or may have"""
        self._mooring = Mooring(self._view, self._dissemination, now)
        self._answers = Answers(self._view, self._dissemination)
        self._anti_entropy = AntiEntropy(self._view, self._dissemination, self._answers, random=random, now=now)
        self._seeking = Seeking(self._view, self._dissemination, outputs, random=random, now=now)

    # -- commands ---------------------------------------------------------------------------------------------

    def join(self, addresses: Sequence[str], now: float) -> None:
        """Dial `addresses`, and the members remembered, until anybody answers; any one alive is enough."""
        self._seeking.join(addresses, now)

    def remember(self, members: Iterable[Member]) -> None:
        """Members known from an earlier life: dialled like seeds by `join`, believed only when they answer."""
        self._view.remember(members)

    def leave(self, now: float) -> None:
        """Tell some members directly that this one leaves; the rest hear of it from them. Probe nobody any more."""
        if self.me.state == State.LEFT:
            return
        self._change_me(replace(self.me, state=State.LEFT, refutation=self.me.refutation + 1), now)
        self._prober.stop()
        for peer in self._sample(_TELLS):
            self._dissemination.send(peer, Pong(UNASKED, self._dissemination.records(peer, now)), now)

    def advertise(self, address: str, now: float) -> None:
        """Others are to dial this peer at `address` from now on; at "" it only dials out."""
        if address != self.me.address and self.me.state != State.LEFT:
            self._mooring.at = now
            self._change_me(replace(self.me, address=address, refutation=self.me.refutation + 1), now)

    # -- what others read -------------------------------------------------------------------------------------

    @property
    def me(self) -> Member:
        return self._view.me

    @property
    def members(self) -> dict[bytes, Member]:
        """Every record known, this peer's own among them."""
        return self._view.members

    @property
    def health(self) -> LocalHealth:
        return self._prober.health

    @property
    def refused(self) -> int:
        """Times that a record was not taken in: the table was full, or its sender introduced too many members."""
        return self._view.refused

    def alive(self) -> list[Member]:
        """The other members that are alive or suspected, sorted by id; a suspect is most often alive."""
        return self._view.alive()

    def settled(self, now: float) -> tuple[bytes, ...]:
        """Ids of all live members, sorted, this one among them, if the view is full and fresh: nobody suspected, nobody
        that can only dial out, and no news of anybody for three probe intervals. Empty otherwise."""
        fresh = now - 3.0 * self.config.probe_interval
        if self._view.suspected or self._view.changed > fresh:
            return ()
        members = [self.me, *self._view.alive()]
        return tuple(sorted(member.id for member in members)) if all(member.address for member in members) else ()

    def rtt(self, peer: bytes) -> float | None:
        """Round-trip time to `peer` in seconds, smoothed over the direct pings it answered."""
        seen = self._view.seen.get(peer)
        return None if seen is None else seen.rtt

    def speeds(self, lasting: float, now: float) -> dict[bytes, float]:
        """Steps a second that members train, each by its own word; but not of those that were seen to rest, or have
        been failed, for `lasting` seconds, nor of those that have left."""
        view = self._view
        peers = [member.id for member in view.alive()]
        peers += [peer for peer, at in view.dead.items() if now - at < lasting and self._failed(peer)]
        seen = {peer: view.seen[peer] for peer in peers if peer in view.seen}
        return {peer: sight.speed for peer, sight in seen.items() if sight.speed and sight.rested < lasting}

    def training(self) -> list[bytes]:
        """Live members whose last word to this peer was that they train."""
        return self._view.training()

    def _failed(self, peer: bytes) -> bool:
        return self.members[peer].state == State.FAILED

    def heard(self, peer: bytes) -> bool:
        """Whether this member has ever spoken to this peer itself."""
        return self._view.heard(peer)

    def acquainted(self) -> list[Member]:
        """Members to look for after a restart: those that have spoken to this peer, in this life or in an earlier one.
        Only their addresses count."""
        return self._view.acquainted()[:_ACQUAINTED]

    def heard_lately(self, peer: bytes, now: float) -> bool:
        """Whether a message came from `peer` within the last probe interval."""
        seen = self._view.seen.get(peer)
        return seen is not None and seen.heard > now - self.config.probe_interval

    def linked(self, peer: bytes) -> bool:
        """It has spoken, and the transport has not lost it since."""
        return self._view.linked(peer)

    def reaches(self, peer: bytes) -> bool:
        """Can a message get to this other member? Not to an outbound-only one without a link."""
        return self._view.reaches(peer)

    def address_of(self, peer: bytes) -> str:
        """Where `peer` is to be dialled, or ""."""
        return self._view.address_of(peer)

    def left(self, address: str) -> bool:
        """Whether the member at `address` said goodbye, and no other member is there."""
        return self._view.left(address)

    # -- inputs -----------------------------------------------------------------------------------------------

    def contact(self, peer: bytes, now: float) -> None:
        """An authenticated message of any kind came from `peer`. It lives, but only its own word clears it.

        Whoever is thought suspect, failed or left and yet speaks is told so, and will refute.
        """
        if self._view.hear(peer, now) is not None and self.members[peer].state != State.ALIVE:
            self._prober.tell(peer, now)

    def slept(self, seconds: float) -> None:
        """This peer did not run for so long. Others may have failed it, though what it hears first is a suspicion."""
        self.buried += seconds > self._view.suspicion_bounds()[0]

    def link_down(self, peer: bytes, reason: str, now: float) -> None:
        """The transport lost `peer`: a hint, no evidence. It is probed next."""
        if peer in self._view.seen:
            self._view.seen[peer].linked = False
        if self._view.lives(peer):
            self._prober.hurry(peer)

    def receive(self, message: MembershipMessage, source: bytes, now: float) -> None:
        """A message from the peer whose id the transport has verified as `source`."""
        if source == self.me.id:
            return
        self.contact(source, now)
        if isinstance(message, Ping | Pong | PushPull):
            asked = self._prober.asked(message.sequence, source) if isinstance(message, Pong) else -math.inf
            self._learn(message.members, message.progress, source, now, view=isinstance(message, PushPull), asked=asked)
        if isinstance(message, Ping | Pong) and message.speed is not None:
            self._view.trains(source, message.speed, now)
        match message:
            case Ping(sequence):
                told = self._dissemination
                pong = Pong(sequence, told.records(source, now), told.reports(source, now), told.speed())
                told.send(source, pong, now)
            case Pong(sequence):
                self._prober.answered(sequence, source, now)
            case PingRequest(sequence, target, address):
                self._prober.ping_for(source, sequence, target, address, now)
            case Nack(sequence):
                self._prober.nacked(sequence, source)
            case PushPull():
                self._anti_entropy.receive(message, source, now)

    def timer(self) -> float | None:
        """When `handle_timer` wants to be called next; None once everybody may know that this peer has left."""
        gossip = self._dissemination.timer()
        if self.me.state == State.LEFT:
            return gossip
        return min(
            math.inf if gossip is None else gossip,
            self._prober.timer(),
            self._anti_entropy.timer(),
            self._answers.timer(),
            self._refute_at,
            self._seeking.timer(),
            self._view.next_verdict(),
            self._mooring.timer(),
        )

    def handle_timer(self, now: float) -> None:
        due = self.timer()
        if due is None or now < due:
            return
        if self.config.lifeguard and now - due > self.config.probe_interval / 2:
            self._prober.starved(now)
            self._view.postpone(now - due, now)
        self._dissemination.handle_timer(now)
        if self.me.state == State.LEFT:
            return
        self._seeking.handle_timer(now)
        self._prober.handle_timer(now)
        self._mooring.handle_timer(now)
        self._refute(now)
        self._answers.handle_timer(now)
        for peer in self._view.overdue(now):
            self._adopt(replace(self.members[peer], state=State.FAILED, accusers=()), now)
        if self._anti_entropy.handle_timer(now):
            for peer in self._view.forget(now):
                self._gone(peer)

    # -- records (SWIM section 4.2) -----------------------------------------------------------------------------

    def _learn(
        self,
        records: Iterable[Member],
        reports: Iterable[Progress],
        source: bytes,
        now: float,
        *,
        view: bool,
        asked: float,
    ) -> None:
        """`view`: this is a page of a whole view; `asked`: when what it answers was asked."""
        tells, members, me = 0, self.members, self.me
        for record in () if self._mistrusts(source, now) else records:
            known = members.get(record.id)
            if known == record:
                if not view:
                    self._dissemination.echo(record)
                continue
            if record.id == me.id:
                if not self._about_me(record, now):
                    self._forged("member record", source, now)
                    break
                continue
            if record.id == source and self._view.disproves(record, asked):
                if not self._genuine(record, known):
                    self._forged("member record", source, now)
                    break
                self._adopt(record, now)
                continue
            if record.id != source and self._view.disproved(record):
                continue
            if known is not None and overrides(known, record):
                # As a page of the view, not as gossip: the sender may stand across a partition just healed.
                self._answers.owe(source, known, now)
                continue
            failed = record.state == State.FAILED and known is not None and known.state in LIVE
            doubted = failed and (view or self.heard_lately(record.id, now))
            if doubted:
                # A whole view may be old, or from the other side of a partition, and the verdict of one member may be
                # wrong: let the member speak first.
                record = replace(record, state=State.SUSPECT, accusers=(source,))
            if known is not None and not overrides(record, known):
                if record.accusers:
                    self._confirm(record, now)
                continue
            if record.id != source and not self._introduces(source, record, known, now):
                continue
            if not self._genuine(record, known):
                self._forged("member record", source, now)
                break
            if known is None and not self._room_for(record):
                continue
            if record.id == source and known is not None and _moved(known, record):
                # Perhaps nobody moved: it is to ask where it was, for a copy of it may live there.
                self._answers.owe(source, known, now)
            # What comes with a whole view has been gossiped already, except what the sender says of itself.
            self._adopt(record, now, spread=not view or known is not None or record.id == source)
            if view and record.id != source:
                self._anti_entropy.learnt()
            if doubted and tells < _TELLS:
                tells += 1
                self._prober.tell(record.id, now)
            if known is not None and known.state == State.FAILED and record.id == source and record.state in LIVE:
                self._anti_entropy.send_view(source, now)
        self._learn_progress(reports, source, now)
        # A member that speaks to this peer after it left, as one that it was dialling then, is told so.
        if self.me != me or self.me.state == State.LEFT:
            self._answers.owe(source, self.me, now)
        self._answers.handle_timer(now)
        if not self._view.heard(source):
            # This message may have introduced its sender.
            self._view.hear(source, now)
        if not self._joined and self._view.heard(source):
            self._joined = True
            self._emit(Joined(source))

    def _introduces(self, source: bytes, record: Member, known: Member | None, now: float) -> bool:
        """Whether `source` may tell this peer of a member that it did not know, or knew as dead."""
        view, new = self._view, known is None
        live = record.state in LIVE and not view.lives(record.id) and not view.heard(record.id)
        if not (new or live):
            return True
        allowed = not (live and view.crowded)
        allowed = allowed and self._introductions.allows(source, view.heard_from, now, new=new, live=live)
        view.refused += not allowed
        return allowed

    def _learn_progress(self, reports: Iterable[Progress], source: bytes, now: float) -> None:
        for report in () if self._mistrusts(source, now) else reports:
            if self._progress.news(report, source):
                if not self._signer.verify_progress(report):
                    self._forged("progress report", source, now)
                    return
                self._progress.merge((report,))

    def _genuine(self, record: Member, known: Member | None) -> bool:
        """Whether the member itself signed the word in `record`. A word that is believed already needs no check."""
        return (known is not None and same_word(record, known)) or self._signer.verify_member(record)

    def _forged(self, what: str, source: bytes, now: float) -> None:
        """`source` passed on a word that its member did not sign. No honest peer does: each checks first."""
        self._unheard[source] = now + self.config.probe_timeout
        if len(self._unheard) > _FORGERS:
            del self._unheard[next(iter(self._unheard))]
        self._emit(UpdateRefused(source, f"signature of a {what}"))

    def _mistrusts(self, source: bytes, now: float) -> bool:
        """Whether `source` has just passed on a forged word: then nothing more is checked of it for a probe timeout."""
        if source in self._unheard and now >= self._unheard[source]:
            del self._unheard[source]
        return source in self._unheard

    def _about_me(self, record: Member, now: float) -> bool:
        """Notice a copy of this peer, or refute a doubt. False if the record is forged."""
        me = self.me
        # What is older of this start, and at another address, this peer has said itself.
        other = record.incarnation != me.incarnation or record.refutation >= me.refutation
        elsewhere = other and record.state == State.ALIVE and record.address != me.address
        later = record.incarnation > me.incarnation
        doubts = not later and overrides(record, me) and me.state != State.LEFT
        if not (elsewhere or later or doubts):
            return True
        if not self._genuine(record, me):
            return False
        if elsewhere and record.address and me.state != State.LEFT:
            self._seeking.copy(record.address, now)
        copied = later or (elsewhere and record.incarnation == me.incarnation)
        if copied and not self._cloned:
            self._cloned = True
            where = record.address or "an outbound-only peer"
            text = (
                f"this identity is said to be live at {where}, start {record.incarnation} there and {me.incarnation} "
                "here: a copied home needs keys of its own"
            )
            self._emit(Notice("GD-205", text))
        if doubts:
            if elsewhere:
                if now < self._against_copy_at:
                    return True
                self._against_copy_at = now + _AGAINST_COPY
            self.buried += record.state == State.FAILED
            # Only a copy of this peer signs a later pair. Once the largest were said, no answer to it would be left.
            refutation = record.refutation if record.refutation <= me.refutation + LEAP else me.refutation
            self._refutation = min(max(refutation, self._refutation - 1) + 1, 0xFFFF_FFFF)
            self._refute_at = max(now, self._refuted + self.config.probe_timeout)
            self._refute(now)
        return True

    def _refute(self, now: float) -> None:
        """Deny a doubt, once in a probe timeout: each denial is news to the whole network."""
        if now < self._refute_at:
            return
        self._refute_at = math.inf
        if self.me.refutation < self._refutation:
            self._refuted = now
            self.health.worse()
            self._change_me(replace(self.me, refutation=self._refutation), now)

    def _change_me(self, me: Member, now: float) -> None:
        self._view.change_me(self._signer.sign_member(me))
        self._dissemination.spread(self.me, now)

    def _suspect(self, peer: bytes, now: float) -> None:
        """`peer` was probed in vain."""
        member = self.members[peer]
        accused = replace(member, state=State.SUSPECT, accusers=(self.me.id,))
        if member.state == State.ALIVE:
            self._adopt(accused, now)
        else:
            self._confirm(accused, now)
        if self.members[peer].state == State.SUSPECT:
            self._prober.tell(peer, now)

    def _confirm(self, record: Member, now: float) -> None:
        """`record` may be another's accusation of a suspect: told on, it shortens the suspicion everywhere."""
        known = self.members.get(record.id)
        if known is not None and known.state == record.state == State.SUSPECT:
            merged = self._view.confirm(record)
            if merged is not None:
                self._dissemination.spread(merged, now)

    def _adopt(self, record: Member, now: float, *, spread: bool = True) -> None:
        """Believe `record`, tell others, tell the application."""
        before = self._view.put(record, now)
        record = self.members[record.id]
        if before is None and record.state in LIVE:
            self._prober.joined(record.id)
        self._seeking.changed(now)
        if spread:
            self._dissemination.spread(record, now)
        if before is None or (before.state, before.incarnation, before.address) != (
            record.state,
            record.incarnation,
            record.address,
        ):
            self._emit(MemberChanged(record, None if before is None else before.state))

    def _room_for(self, record: Member) -> bool:
        gone = self._view.room_for(record)
        if gone:
            self._gone(gone)
        return gone is not None

    def _gone(self, peer: bytes) -> None:
        self._dissemination.broadcasts.discard(peer)

    def _sample(self, count: int) -> list[bytes]:
        live = [peer for peer in self._view.company(self._random) if self._view.reaches(peer)]
        return self._random.sample(live, min(count, len(live)))


def _moved(known: Member, told: Member) -> bool:
    """Was a live member started again, elsewhere?"""
    again = told.incarnation > known.incarnation and known.state == State.ALIVE
    return again and bool(known.address) and told.address != known.address
