"""Whose layout of the model a joiner believes: that which a second member shows as well.

A source's manifest names the layout by the digest of its schema, and so does each offer of an exchange: members make
some to a newcomer. A layout that two members show counts. If the model is here and no second member has shown a layout,
the joiner asks one at a time for a manifest of its own; that costs the member a snapshot. Where no other member is left
to ask, the source's layout counts, as in a network of two. If two differ, members that refused are asked again for a
while.
"""

from __future__ import annotations

import enum
import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.wire.messages import StateRequest

__all__ = ["AGREE", "Layouts", "Opinion", "opinion"]

AGREE: Final = 2
"""Members that must show a layout."""
MOST_PATIENCE: Final = 6
"""A member that goes on freezing is waited for this many times as long as a silent one."""


class Opinion(enum.Enum):
    COUNTS = "two members show it, or no other can"
    DENIED = "two members show another one"
    OPEN = "a member may still show one"


def opinion(layout: bytes, shown: Mapping[bytes, bytes], *, more: bool) -> Opinion:
    """What a joiner makes of `layout`, the source's.

    Args:
        shown: Member -> the layout that it shows, the source included.
        more: Another member may still show one.
    """
    votes = Counter(shown.values())
    if votes[layout] >= AGREE:
        return Opinion.COUNTS
    if any(count >= AGREE for count in votes.values()):
        return Opinion.DENIED
    return Opinion.OPEN if more else Opinion.COUNTS


class Layouts:
    """The layouts that members show one joiner.

    Args:
        number: A random number of 48 bits. Who is asked follows from it.
        repeat: Seconds after which a question is repeated.
        patience: Seconds for which a member that does not answer is waited for.
    """

    def __init__(self, outputs: Outputs, number: int, repeat: float, patience: float) -> None:
        self._outputs, self._repeat, self._patience = outputs, repeat, patience
        self._shown: dict[bytes, bytes] = {}
        self._asked: set[bytes] = set()
        """Members that were asked."""
        self.second: bytes | None = None
        """The member that is being asked; it may be a witness as well."""
        self._transfer, self._frozen = number | 1 << 48, 0
        self._repeat_at = self._leave_at = self._latest = 0.0
        self._again_at: float | None = None
        """When members that showed none are asked again, because those that did differ."""
        self._differ_until = math.inf

    def shows(self, peer: bytes, layout: bytes) -> None:
        """`peer` shows this layout."""
        self._shown[peer] = layout
        self._answered(peer)

    def distrusts(self, peer: bytes) -> None:
        """What `peer` shows does not count any more."""
        self._shown.pop(peer, None)

    def agreed(self, layout: bytes) -> bool:
        """Whether two members show this layout."""
        return opinion(layout, self._shown, more=True) is Opinion.COUNTS

    def opinion(self, layout: bytes) -> Opinion:
        """What is to be made of the source's layout now. Call `ask` before."""
        return opinion(layout, self._shown, more=self.second is not None or self._again_at is not None)

    def showing(self, layout: bytes) -> list[bytes]:
        """Members that show this layout."""
        return [peer for peer, shown in self._shown.items() if shown == layout]

    def ask(self, layout: bytes, members: Sequence[bytes], now: float) -> None:
        """Ask the next of `members` if none is being asked and the layout needs one more that shows it."""
        waits = self.second is not None or self._again_at is not None
        if waits or self.opinion(layout) is Opinion.DENIED or self.agreed(layout):
            return
        silent = [peer for peer in members if peer not in self._shown]
        others = [peer for peer in silent if peer not in self._asked]
        if silent and not others and len(set(self._shown.values())) > 1:
            self._differ_until = min(self._differ_until, now + MOST_PATIENCE * self._patience)
            if now < self._differ_until:
                self._again_at = now + self._repeat
                self._asked.clear()
        elif others:
            # The number is one of its own: as a witness of the transfer under way the member may refuse.
            self._transfer += 1
            self.second = min(others, key=self._rank)
            self._asked.add(self.second)
            self._frozen, self._leave_at = 0, now + self._patience
            self._latest = now + MOST_PATIENCE * self._patience
            self._request(now)

    def _rank(self, peer: bytes) -> bytes:
        """A place of `peer` among others that none of them can choose."""
        return hashlib.blake2b(peer, key=self._transfer.to_bytes(8, "big")).digest()

    def _request(self, now: float) -> None:
        assert self.second is not None
        self._repeat_at = now + self._repeat
        self._outputs.send(self.second, StateRequest(self._transfer))

    def expects(self, peer: bytes, transfer: int) -> bool:
        """Whether an answer with this number is expected of `peer`."""
        return peer == self.second and transfer == self._transfer

    def _answered(self, peer: bytes) -> None:
        if peer == self.second:
            self.second = None

    def waits(self, chunks: int, now: float) -> None:
        """The asked member has frozen this number of chunks. It is waited for as long as the number grows."""
        if chunks > self._frozen:
            self._frozen, self._leave_at = chunks, min(now + self._patience, self._latest)

    def excused(self, peer: bytes) -> None:
        """`peer` shows none: it refuses, or is gone."""
        self._answered(peer)

    def timer(self) -> float | None:
        """When `handle_timer` wants to be called next, or None."""
        return self._again_at if self.second is None else min(self._repeat_at, self._leave_at)

    def handle_timer(self, now: float) -> None:
        """Repeat the question, or leave a silent member."""
        if self._again_at is not None and now >= self._again_at:
            self._again_at = None
        if self.second is not None and now >= self._leave_at:
            self.second = None
        elif self.second is not None and now >= self._repeat_at:
            self._request(now)
