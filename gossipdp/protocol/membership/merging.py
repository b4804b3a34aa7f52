"""Checks what other members say, and merges it into the view (SWIM section 4.2).

A record counts only with the signature of its member. A member that passes on a forged record is not believed for a
probe timeout: an honest one checks signatures first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.causes import Fault
from gossipdp.protocol.events import Event, MemberChanged, UpdateRefused
from gossipdp.protocol.membership.answers import Answers
from gossipdp.protocol.membership.anti_entropy import AntiEntropy
from gossipdp.protocol.membership.broadcasts import MOST_STATED, stated_size
from gossipdp.protocol.membership.dissemination import Dissemination
from gossipdp.protocol.membership.introductions import Introductions
from gossipdp.protocol.membership.own_record import OwnRecord
from gossipdp.protocol.membership.probing import Prober
from gossipdp.protocol.membership.progress import ProgressBoard
from gossipdp.protocol.membership.seeds import Seeds
from gossipdp.protocol.membership.signatures import Signer
from gossipdp.protocol.membership.view import LIVE, View, overrides
from gossipdp.protocol.membership.voices import Voices
from gossipdp.protocol.wire.messages import Member, Progress, State

__all__ = ["Merger"]

_TELLS: Final = 8
"""members of one message that are told directly that another member thinks they failed"""
_FORGERS: Final = 64
"""senders of forged records that are remembered at one time"""


@dataclass(slots=True)
class _Sender:
    """One message whose records are merged."""

    id: bytes
    now: float
    view: bool
    """the message is a page of a whole view"""
    asked: float
    """when this peer asked what the message answers"""
    tells: int = 0
    """members told directly because of this message"""


class Merger:
    """Merges records and progress reports into the view, and spreads what is news."""

    def __init__(
        self,
        view: View,
        dissemination: Dissemination,
        prober: Prober,
        answers: Answers,
        anti_entropy: AntiEntropy,
        seeds: Seeds,
        own_record: OwnRecord,
        progress: ProgressBoard,
        signer: Signer,
        voices: Voices,
        admission: Admission,
        events: deque[Event],
    ) -> None:
        self._view, self._dissemination, self._prober = view, dissemination, prober
        self._answers, self._anti_entropy, self._seeds = answers, anti_entropy, seeds
        self._own_record, self._progress, self._signer, self._voices = own_record, progress, signer, voices
        self._admission, self._events = admission, events
        self._introductions = Introductions()
        self._forgers: dict[bytes, float] = {}
        """sender of a forged record -> when its records and reports are read again"""

    def learn(
        self,
        records: Iterable[Member],
        reports: Iterable[Progress],
        source: bytes,
        now: float,
        *,
        view: bool,
        asked: float,
    ) -> None:
        """Merge what a message of `source` carries.

        Args:
            view: the message is a page of a whole view.
            asked: when this peer asked what the message answers; -infinity if it answers nothing.
        """
        me, sender = self._view.me, _Sender(source, now, view, asked)
        for record in () if self._mistrusts(source, now) else records:
            if not self._merge(record, sender):
                self._forged(Fault.MEMBER_SIGNATURE, source, now)
                break
        self._learn_progress(reports, source, now)
        # A member may not know yet that this peer has left, such as one that answers its dial.
        if self._view.me != me or self._view.me.state == State.LEFT:
            self._answers.owe(source, self._view.me, now)
        self._answers.handle_timer(now)

    def suspect(self, peer: bytes, now: float) -> None:
        """This peer probed `peer` in vain."""
        member = self._view.members[peer]
        accused = replace(member, state=State.SUSPECT, accusers=(self._view.me.id,))
        if member.state == State.ALIVE:
            self._adopt(accused, now)
        else:
            self._confirm(accused, now)
        if self._view.members[peer].state == State.SUSPECT:
            self._prober.tell(peer, now)

    def fail(self, peer: bytes, now: float) -> None:
        """The suspicion of `peer` has lasted its time."""
        self._adopt(replace(self._view.members[peer], state=State.FAILED, accusers=()), now)

    def put_out(self, now: float) -> None:
        """Fail the live members that the operator keeps out."""
        for member in self._view.alive():
            if self._admission.excluded(member.id):
                self.fail(member.id, now)

    def forget(self, now: float) -> None:
        """Forget the members that have been dead for long."""
        for peer in self._view.forget(now):
            self._dissemination.broadcasts.discard(peer)

    # -- one record ---------------------------------------------------------------------------------------------

    def _merge(self, record: Member, sender: _Sender) -> bool:
        """Merge one record. Returns False if it is forged."""
        view, now = self._view, sender.now
        if stated_size(record) > MOST_STATED:
            view.refuse()
            return True
        known, itself = view.members.get(record.id), record.id == sender.id
        if known == record:
            if not sender.view:
                self._dissemination.echo(record)
            return True
        if record.id == view.me.id:
            return self._own_record.answer(record, now)
        if record.state in LIVE and self._admission.excluded(record.id):
            return True
        if itself and view.disproves(record, sender.asked):
            genuine = self._signer.genuine(record, known)
            if genuine:
                self._adopt(record, now)
            return genuine
        if not itself and view.disproved(record):
            return True
        if known is not None and overrides(known, record):
            # The answer is a page of the view, not gossip: the sender may stand across a partition just healed.
            self._answers.owe(sender.id, known, now)
            return True
        return self._merge_newer(record, known, sender)

    def _merge_newer(self, record: Member, known: Member | None, sender: _Sender) -> bool:
        """Merge a record that is not older than the one `known`."""
        now, itself = sender.now, record.id == sender.id
        doubted = self._is_doubtful(record, known, sender)
        if doubted:
            record = replace(record, state=State.SUSPECT, accusers=(sender.id,))
        if known is not None and not overrides(record, known):
            if record.accusers:
                self._confirm(record, now)
            return True
        if not itself and not self._introduces(sender.id, record, known, now):
            return True
        if not self._signer.genuine(record, known):
            return False
        if known is None and not self._room_for(record):
            return True
        if itself and known is not None and _moved(known, record):
            # A copy may live at the old address. The sender is told the old record, and will ask there.
            self._answers.owe(sender.id, known, now)
        # Records of a whole view have been gossiped already, except the sender's own.
        self._adopt(record, now, spread=not sender.view or known is not None or itself)
        if sender.view and not itself:
            self._anti_entropy.learnt()
        if doubted and sender.tells < _TELLS:
            sender.tells += 1
            self._prober.tell(record.id, now)
        if known is not None and known.state == State.FAILED and itself and record.state in LIVE:
            self._anti_entropy.send_view(sender.id, now)
        return True

    def _is_doubtful(self, record: Member, known: Member | None, sender: _Sender) -> bool:
        """Whether a failure is taken as a suspicion only, so that the member can refute it.

        A whole view may be old, or from the other side of a partition. The verdict of one member may be wrong.
        """
        failed = record.state == State.FAILED and known is not None and known.state in LIVE
        since = sender.now - self._view.config.probe_interval
        return failed and (sender.view or self._view.contacts.heard_since(record.id, since))

    def _introduces(self, source: bytes, record: Member, known: Member | None, now: float) -> bool:
        """Whether `source` may tell this peer of a member that it did not know, or knew as dead."""
        view, contacts, new = self._view, self._view.contacts, known is None
        live = record.state in LIVE and not view.is_live(record.id) and not contacts.heard(record.id)
        if not (new or live):
            return True
        allowed = not (live and contacts.crowded)
        allowed = allowed and self._introductions.allows(source, contacts.acquainted, now, new=new, live=live)
        if not allowed:
            view.refuse()
        return allowed

    def _room_for(self, record: Member) -> bool:
        removed = self._view.room_for(record)
        if removed:
            self._dissemination.broadcasts.discard(removed)
        return removed is not None

    def _confirm(self, record: Member, now: float) -> None:
        """`record` may be a further accusation of a suspect. Spread, it shortens the suspicion everywhere."""
        known = self._view.members.get(record.id)
        if known is not None and known.state == record.state == State.SUSPECT:
            merged = self._view.confirm(record)
            if merged is not None:
                self._dissemination.spread(merged, known, now)

    def _adopt(self, record: Member, now: float, *, spread: bool = True) -> None:
        """Believe `record`, and tell other members and the application."""
        before = self._view.put(record, now)
        record = self._view.members[record.id]
        if before is None and record.state in LIVE:
            self._prober.joined(record.id)
        self._seeds.changed(now)
        if spread:
            self._dissemination.spread(record, before, now)
        if before is None or _shown(before) != _shown(record):
            self._events.append(MemberChanged(record, None if before is None else before.state))

    # -- progress and trust -------------------------------------------------------------------------------------

    def _learn_progress(self, reports: Iterable[Progress], source: bytes, now: float) -> None:
        for report in () if self._mistrusts(source, now) else reports:
            if self._progress.news(report, source):
                if not self._signer.verify_progress(report):
                    self._forged(Fault.PROGRESS_SIGNATURE, source, now)
                    return
                if self._progress.take(report, self._view.members):
                    self._progress.believe(self._voices.clock(now))

    def _forged(self, fault: Fault, source: bytes, now: float) -> None:
        self._forgers[source] = now + self._view.config.probe_timeout
        if len(self._forgers) > _FORGERS:
            del self._forgers[next(iter(self._forgers))]
        self._events.append(UpdateRefused(source, fault))

    def _mistrusts(self, source: bytes, now: float) -> bool:
        """Whether `source` passed on a forged record within the last probe timeout."""
        if source in self._forgers and now >= self._forgers[source]:
            del self._forgers[source]
        return source in self._forgers


def _shown(record: Member) -> tuple[object, ...]:
    """What `MemberChanged` tells of a record."""
    return record.state, record.incarnation, record.address, record.phase, record.calls


def _moved(known: Member, told: Member) -> bool:
    """Whether a live member was started again at another address."""
    again = told.incarnation > known.incarnation and known.state == State.ALIVE
    return again and bool(known.address) and told.address != known.address
