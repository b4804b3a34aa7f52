"""Who may be a member of the network, by this host's lists and by the decisions of the network's operator.

The operator holds a key of its own. Its signature makes a decision valid, so any member may pass the decision on. The
decision with the highest number about a subject stands, so peers with the same decisions admit the same members. The
decision that closes the network names all peers that it takes: no part of a register can shut the rest out. No message,
clock or file may stand here.

Two decisions give peers something: an invite lets hosts in, and a new secret goes to the peers that it names. Receipts
tell who has got it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from gossipdp.protocol.admission.packing import MAX_RECEIPTS, MAX_SUBJECTS
from gossipdp.protocol.admission.statements import NETWORK, SECRET, fits, received, stated
from gossipdp.protocol.wire.messages import MAX_HOLDERS, Decision, Receipt, Verdict

__all__ = ["SPARE", "Admission", "Receipts"]


SPARE: Final = 16
"""receipts of one invite that are kept beyond its uses, to tell of them"""


class Receipts:
    """Receipts by their decision and peer.

    Args:
        network: the network's name.
        verify: checks a signature: public key, data, signature.
    """

    def __init__(self, network: str, verify: Callable[[bytes, bytes, bytes], bool]) -> None:
        self._network, self._verify = network, verify
        self._kept: dict[bytes, dict[bytes, Receipt]] = {}

    def take(
        self, receipts: Iterable[Receipt], stands: Mapping[bytes, Decision], checks: Callable[[], bool]
    ) -> list[Receipt]:
        """Keep all that are genuine and news, up to the first that is forged. Returns those that are kept.

        Args:
            stands: the decision that stands about each subject.
            checks: called before each check of a signature: whether to make it.
        """
        taken = []
        for each in receipts:
            decision = stands.get(each.subject)
            if decision is None or not self.is_news(each, decision):
                continue
            if not checks() or not self._genuine(each):
                break
            kept = self._kept.setdefault(each.subject, {})
            kept[each.peer] = each
            if len(kept) > _room(decision):
                del kept[max(kept)]
            taken.append(each)
        return [each for each in taken if each in self]

    def __contains__(self, made: Receipt) -> bool:
        return self._kept.get(made.subject, {}).get(made.peer) == made

    def drop(self, subject: bytes) -> None:
        """Another decision stands about `subject`, or none."""
        self._kept.pop(subject, None)

    def all(self) -> tuple[Receipt, ...]:
        """All receipts, sorted by subject and peer."""
        return tuple(receipts[peer] for _, receipts in sorted(self._kept.items()) for peer in sorted(receipts))

    def holders(self, subject: bytes) -> frozenset[bytes]:
        """The peers that have what the decision about `subject` gives."""
        return frozenset(self._kept.get(subject, ()))

    @property
    def full(self) -> bool:
        """Whether no further host that an invite lets in could be kept."""
        return sum(len(kept) for subject, kept in self._kept.items() if subject != SECRET) >= MAX_RECEIPTS

    def is_news(self, made: Receipt, decision: Decision) -> bool:
        """Whether `made` would be kept beside `decision`, if it is genuine."""
        known = self._kept.get(made.subject, {})
        if decision.number != made.number or made.peer in known:
            return False
        if decision.verdict is Verdict.RENEWED:
            return made.peer in decision.allowed
        if decision.verdict is not Verdict.INVITED:
            return False
        return made.peer < max(known) if len(known) >= _room(decision) else not self.full

    def _genuine(self, made: Receipt) -> bool:
        key = made.peer if made.subject == SECRET else made.subject
        return self._verify(key, received(made, self._network), made.signature)


def _room(decision: Decision) -> int:
    """Receipts that are kept of one decision. Of more, those of the lowest ids are, at all peers alike."""
    return MAX_HOLDERS if decision.invite is None else decision.invite.uses + SPARE


DAY: Final = 86_400
"""seconds for which an invite is still listed after its end"""
_ONE: Final = (NETWORK, SECRET)
"""subjects that do not count for `MAX_SUBJECTS`"""
_pack = msgspec.msgpack.Encoder().encode


class Admission:
    """The lists of this host, and the decisions that stand.

    Args:
        me: this peer's id, which no list excludes here.
        network: the network's name.
        operator: public key (32 bytes) whose decisions count; b"" if this host knows none.
        verify: checks a signature: public key, data, signature.
        allowed: ids of the only peers that this host admits; empty for every peer.
        banned: ids of peers that this host does not admit.
        decisions: kept from earlier starts. Those of another operator do not stand; `foreign` counts them.
        receipts: kept from earlier starts.
    """

    def __init__(
        self,
        me: bytes,
        *,
        network: str = "",
        operator: bytes = b"",
        verify: Callable[[bytes, bytes, bytes], bool] = lambda key, data, signature: False,
        allowed: frozenset[bytes] = frozenset(),
        banned: frozenset[bytes] = frozenset(),
        decisions: Iterable[Decision] = (),
        receipts: Iterable[Receipt] = (),
    ) -> None:
        self.me, self.network, self.operator, self._verify = me, network, operator, verify
        self._allowed, self._banned = allowed, banned
        self._stands: dict[bytes, Decision] = {}
        self._named: frozenset[bytes] = frozenset()
        """the peers that the network takes while it is closed"""
        self._receipts = Receipts(network, verify)
        self._dropped = 0
        """invites that ended earlier than this Unix time are not listed any longer"""
        self.digest = _digest((), ())
        """16 bytes, equal at all peers that have the same decisions and receipts"""
        self.changes = 0
        """number of times that decisions were taken"""
        kept = tuple(decisions)
        genuine = [decision for decision in kept if self.genuine(decision)]
        self.foreign = len(kept) - len(genuine)
        self.take(genuine)
        self.take_receipts(receipts)

    def genuine(self, decision: Decision) -> bool:
        """Whether the operator signed `decision` for this network, and it says something of its kind of subject."""
        statement = stated(decision, self.network)
        return fits(decision) and bool(self.operator) and self._verify(self.operator, statement, decision.signature)

    def news(self, decision: Decision) -> bool:
        """Whether `decision` would replace what stands about its subject."""
        known = self._stands.get(decision.subject)
        if decision.invite is not None and decision.invite.expires < self._dropped:
            return False
        if known is None:
            return decision.subject in _ONE or len(self._stands.keys() - set(_ONE)) < MAX_SUBJECTS
        return (decision.number, decision.signature) > (known.number, known.signature)

    def take(self, decisions: Iterable[Decision], checks: Callable[[], bool] = lambda: True) -> list[Decision]:
        """Let all of `decisions` stand that are genuine and news, up to the first that is forged. Returns them.

        Args:
            checks: called before each check of a signature: whether to make it.
        """
        taken = []
        for decision in decisions:
            if not self.news(decision):
                continue
            if not checks() or not self.genuine(decision):
                break
            self._stands[decision.subject] = decision
            self._receipts.drop(decision.subject)
            taken.append(decision)
        if taken:
            network = self._stands.get(NETWORK)
            self._named = frozenset() if network is None else frozenset(network.allowed)
            self._changed()
            self.changes += 1
        return taken

    def take_receipts(self, receipts: Iterable[Receipt], checks: Callable[[], bool] = lambda: True) -> list[Receipt]:
        """Keep all of `receipts` that are genuine and news, up to the first that is forged. Returns those kept.

        Args:
            checks: as in `take`.
        """
        taken = self._receipts.take(receipts, self._stands, checks)
        if taken:
            self._changed()
        return taken

    def redeem(self, decision: Decision, made: Receipt, time: float) -> str:
        """Let a host in that shows an invite. Returns why it may not come in; "" if it may.

        Args:
            decision: of the operator, about the invite's key.
            made: the host's proof that it holds that key.
            time: seconds since 1970.
        """
        self.take((decision,))
        stands = self._stands.get(decision.subject)
        if stands is not None and stands.verdict is Verdict.REVOKED:
            return "the operator has revoked the invite"
        if stands is None or stands.invite is None:
            return "the operator of this network has not signed the invite"
        if time >= stands.invite.expires:
            return "the invite has expired"
        if stands.invite.generation != self.generation:
            return "the network's secret was renewed after the invite was made"
        if why := self.excluded(made.peer):
            return why
        known = self.holders(stands.subject)
        if made.peer in known:
            return ""
        if len(known) >= stands.invite.uses:
            return f"the invite has let in {len(known)} of {stands.invite.uses} hosts"
        if self._receipts.full:
            return f"invites have let in {MAX_RECEIPTS} hosts lately: revoke some"
        return "" if self.take_receipts((made,)) else "it does not hold the invite's key"

    def unproven(self, decisions: Iterable[Decision], receipts: Iterable[Receipt]) -> bool:
        """Whether any of these, which `take` and `take_receipts` have seen, was forged, or came after a forged one."""
        about = ((made, self.about(made.subject)) for made in receipts)
        unkept = any(decision is not None and self._receipts.is_news(made, decision) for made, decision in about)
        return unkept or any(map(self.news, decisions))

    def keeps(self, made: Receipt) -> bool:
        """Whether `made` is kept."""
        return made in self._receipts

    def expire(self, time: float) -> None:
        """Forget invites that ended a day ago. time: seconds since 1970."""
        self._dropped = int(time) - DAY
        ended = [x.subject for x in self._stands.values() if x.invite is not None and x.invite.expires < self._dropped]
        for subject in ended:
            del self._stands[subject]
            self._receipts.drop(subject)
        if ended:
            self._changed()

    def _changed(self) -> None:
        self.digest = _digest(self.decisions, self.receipts)

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """Receipts of all decisions that stand, sorted by subject and peer."""
        return self._receipts.all()

    def holders(self, subject: bytes) -> frozenset[bytes]:
        """The peers that have what the decision about `subject` gives."""
        return self._receipts.holders(subject)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """All that stand, sorted by subject."""
        return tuple(self._stands[subject] for subject in sorted(self._stands))

    def about(self, subject: bytes) -> Decision | None:
        """What stands about `subject`; None without a decision."""
        return self._stands.get(subject)

    @property
    def closed(self) -> bool:
        """Whether the network takes only the peers that the operator has named."""
        return self._verdict(NETWORK) is Verdict.CLOSED

    @property
    def named(self) -> frozenset[bytes]:
        """The peers that the network takes while it is closed."""
        return self._named

    @property
    def generation(self) -> int:
        """Number of the decision about the network's secret; 0 if there is none."""
        known = self._stands.get(SECRET)
        return 0 if known is None else known.number

    def admits(self, peer: bytes) -> bool:
        """Whether this peer may deal with `peer`."""
        return not self.why_not(peer)

    def vouches(self, peer: bytes) -> bool:
        """Whether the operator names `peer` as a member: in the closed network, or for the new secret."""
        renewed = self._stands.get(SECRET)
        return (self.closed and peer in self._named) or (renewed is not None and peer in renewed.allowed)

    def why_not(self, peer: bytes) -> str:
        """Why this peer may not deal with `peer`; "" if it may."""
        if peer != self.me and peer in self._banned:
            return "[safety] ban of this host names it"
        if peer != self.me and self._allowed and peer not in self._allowed:
            return "[safety] allow of this host does not name it"
        return self.excluded(peer)

    def excluded(self, peer: bytes) -> str:
        """Why the operator keeps `peer` out of the network, on all hosts; "" if it does not."""
        if not self._stands or peer == self.me:
            return ""
        if self._verdict(peer) is Verdict.BANNED:
            return "the operator has banned it"
        return "the network is closed, and the operator has not allowed it" if self._shut(peer) else ""

    @property
    def fate(self) -> str:
        """Why other members keep this peer itself out; "" if they do not."""
        if self._verdict(self.me) is Verdict.BANNED:
            reason = self._stands[self.me].reason
            return "the operator has banned this peer" + (f" ({reason})" if reason else "")
        return "the network is closed, and the operator has not allowed this peer" if self._shut(self.me) else ""

    @property
    def lists(self) -> tuple[frozenset[bytes], frozenset[bytes]]:
        """The only peers admitted (empty: all but the second set), and the peers not admitted."""
        stands = self._stands.items()
        banned = self._banned | {peer for peer, decision in stands if decision.verdict is Verdict.BANNED}
        allowed = self._allowed
        if self.closed:
            allowed = allowed & self._named if allowed else self._named
        return (allowed | {self.me} if self._allowed or self.closed else frozenset()), banned - {self.me}

    def _shut(self, peer: bytes) -> bool:
        return self.closed and peer not in self._named

    def _verdict(self, subject: bytes) -> Verdict:
        known = self._stands.get(subject)
        return Verdict.NONE if known is None else known.verdict


def _digest(decisions: Iterable[Decision], receipts: Iterable[Receipt]) -> bytes:
    marks = [(decision.subject, decision.number, decision.signature) for decision in decisions]
    marks += [(made.subject, made.number, made.peer) for made in receipts]
    return hashlib.blake2b(_pack(marks), digest_size=16, person=b"gossipdp-decide").digest()
