"""This peer's own record: it signs every change, refutes what other members doubt, and notices copies of its identity.

References: Das, Gupta, Motivala, "SWIM" (DSN 2002), section 4.2, for refutations.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from gossipdp.protocol.events import Event, Notice
from gossipdp.protocol.membership.broadcasts import MOST_STATED, stated_size
from gossipdp.protocol.membership.dissemination import Dissemination
from gossipdp.protocol.membership.local_health import LocalHealth
from gossipdp.protocol.membership.seeds import Seeds
from gossipdp.protocol.membership.signatures import Signer
from gossipdp.protocol.membership.view import LEAP, View, overrides
from gossipdp.protocol.wire.messages import CARRIES, MAX_OTHERS, RELAY, Member, Phase, State

__all__ = ["OwnRecord"]

_COPY_PAUSE: Final = 5.0
"""seconds between two refutations of an own record at another address, or two copies would never stop"""


class OwnRecord:
    """This peer's own member record, which it alone may change.

    Args:
        health: grows worse with every refutation.
        events: takes the events.
    """

    def __init__(
        self,
        view: View,
        dissemination: Dissemination,
        seeds: Seeds,
        signer: Signer,
        health: LocalHealth,
        events: deque[Event],
        now: float,
    ) -> None:
        self._view, self._dissemination, self._seeds = view, dissemination, seeds
        self._signer, self._health, self._events = signer, health, events
        self._copy_noticed = False
        self._refute_copy_at = now
        self._refute_at, self._refuted = math.inf, -math.inf
        """time of the next refutation, and of the last"""
        self._refutation = 0
        """the refutation that the own record needs to reach"""
        self.buried = 0
        """times that other members thought this peer failed, or may have"""

    def leave(self, now: float) -> None:
        """This peer leaves: news of the same incarnation."""
        self._change(replace(self._view.me, state=State.LEFT), now)

    def move(self, addresses: Sequence[str], now: float) -> None:
        """This peer is dialled at other addresses: news of the same incarnation."""
        first, others = (addresses[0], tuple(addresses[1:])) if addresses else ("", ())
        carries = tuple(mark for mark in (CARRIES, RELAY) if mark in self._view.me.others)
        moved = replace(self._view.me, address=first, others=(*others[: MAX_OTHERS - len(carries)], *carries))
        if stated_size(moved) > MOST_STATED:
            moved = replace(moved, others=carries)
        self._change(moved, now)

    def finish(self, phase: Phase, calls: bool, now: float) -> None:
        """The end of this peer's run is at `phase`. calls: this peer asks all members to end their training."""
        self._change(replace(self._view.me, phase=phase, calls=calls), now)

    def _change(self, me: Member, now: float) -> None:
        self._publish(replace(me, refutation=me.refutation + 1), now)

    def slept(self, seconds: float) -> None:
        """This peer did not run for `seconds`, so other members may have failed it."""
        self.buried += seconds > self._view.suspects.bounds()[0]

    def timer(self) -> float:
        """When to call `handle_timer` next."""
        return self._refute_at

    def handle_timer(self, now: float) -> None:
        """Refute a doubt, at most once in a probe timeout, because each refutation is news to the whole network."""
        if now < self._refute_at:
            return
        self._refute_at = math.inf
        me = self._view.me
        if me.refutation < self._refutation:
            self._refuted = now
            self._health.worse()
            self._publish(replace(me, refutation=self._refutation), now)

    def answer(self, record: Member, now: float) -> bool:
        """Another member told `record` of this peer: notice a copy, or refute a doubt.

        Returns:
            False if this peer did not sign the record.
        """
        me = self._view.me
        # An older record of this incarnation, at another address, is one that this peer signed itself.
        other = record.incarnation != me.incarnation or record.refutation >= me.refutation
        elsewhere = other and record.state == State.ALIVE and record.address != me.address
        later = record.incarnation > me.incarnation
        doubts = not later and overrides(record, me) and me.state != State.LEFT
        if not (elsewhere or later or doubts):
            return True
        if not self._signer.genuine(record, me):
            return False
        if elsewhere and record.address and me.state != State.LEFT:
            self._seeds.seek_copy(record.address, now)
        if later or (elsewhere and record.incarnation == me.incarnation):
            self._notice_copy(record)
        if doubts:
            self._refute(record, now, elsewhere=elsewhere)
        return True

    def _notice_copy(self, record: Member) -> None:
        if self._copy_noticed:
            return
        self._copy_noticed = True
        where = record.address or "an outbound-only peer"
        text = (
            f"this identity is said to be live at {where}, start {record.incarnation} there and "
            f"{self._view.me.incarnation} here: a copied home needs keys of its own"
        )
        self._events.append(Notice("GD-205", text))

    def _refute(self, record: Member, now: float, *, elsewhere: bool) -> None:
        if elsewhere:
            if now < self._refute_copy_at:
                return
            self._refute_copy_at = now + _COPY_PAUSE
        self.buried += record.state == State.FAILED
        me = self._view.me
        # Only a copy of this peer signs a pair far ahead. Following it to the largest pair would leave no refutation.
        refutation = record.refutation if record.refutation <= me.refutation + LEAP else me.refutation
        self._refutation = min(max(refutation, self._refutation - 1) + 1, 0xFFFF_FFFF)
        self._refute_at = max(now, self._refuted + self._view.config.probe_timeout)
        self.handle_timer(now)

    def _publish(self, me: Member, now: float) -> None:
        before = self._view.me
        self._view.change_me(self._signer.sign_member(me))
        self._dissemination.spread(self._view.me, before, now)
