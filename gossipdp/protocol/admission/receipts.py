"""Which peers have what a decision gives: those that an invite has let in, and those that hold the new secret."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from gossipdp.protocol.admission.packing import MAX_RECEIPTS
from gossipdp.protocol.admission.statements import SECRET, received
from gossipdp.protocol.wire.messages import MAX_HOLDERS, Decision, Receipt, Verdict

__all__ = ["SPARE", "Receipts"]

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

    def take(self, receipts: Iterable[Receipt], about: Callable[[bytes], Decision | None]) -> list[Receipt]:
        """Keep all that are genuine and news. Returns them.

        Args:
            about: the decision that stands about a subject.
        """
        taken = []
        for each in receipts:
            decision = about(each.subject)
            if decision is not None and self._is_news(each, decision) and self._genuine(each):
                kept = self._kept.setdefault(each.subject, {})
                kept[each.peer] = each
                if len(kept) > _room(decision):
                    del kept[max(kept)]
                taken.append(each)
        return taken

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

    def _is_news(self, made: Receipt, decision: Decision) -> bool:
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
