"""Finds other members: dials seeds and remembered members until one answers, and lost members again and again.

So a newcomer finds the network, a lone peer finds it again, and the two sides of a healed partition meet. A member that
left is not lost: it dials when it comes back, and its address is dialled only rarely.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Final

from gossipdp.protocol.membership.dissemination import Dissemination
from gossipdp.protocol.membership.view import View
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.wire.messages import PushPull, State

__all__ = ["Seeds"]

_STAGGER: Final = 2.0
"""dials to different seeds are join_interval / 2 apart"""
_SOME: Final = 8
"""remembered members dialled in one round"""
_DIALS: Final = 3.0
"""dials to each failed member per reconnect interval, by all members together"""
_SELDOM: Final = 60.0
"""longest pause, in seconds, between dials to seeds at which no member is known: another island may be there. Also the
mean pause between dials to members that are remembered but not known, and to seeds whose member left."""
_SEEK_COPY: Final = 60.0
"""seconds between dials to an address at which a copy of this peer is said to be live"""
_SOUGHT: Final = 8
"""such addresses dialled within that time"""


class Seeds:
    """Which addresses to dial, and when."""

    def __init__(
        self, view: View, dissemination: Dissemination, outputs: Outputs, *, random: Random, now: float
    ) -> None:
        self._view, self._dissemination, self._outputs, self._random = view, dissemination, outputs, random
        self._config = view.config
        self._seeds: tuple[str, ...] = ()
        self._round: list[tuple[bytes, str]] = []
        """(peer id or b"", address) still to dial in this round, the next one last"""
        self._at = math.inf
        self._wait = self._config.join_interval
        self._goodbyes_at = now
        """when to dial seeds whose member left"""
        self._reconnect_at = now + self._config.reconnect_interval * random.random()
        self._sought: dict[str, float] = {}
        """address -> when this peer last looked for a copy of itself there"""

    def join(self, addresses: Sequence[str], now: float) -> None:
        """Dial `addresses` and the remembered members until one answers."""
        own = self._view.me.addresses
        self._seeds = tuple(dict.fromkeys(address for address in addresses if address not in own))
        self._wait = self._config.join_interval
        self._round = []
        self._dial(now)

    def changed(self, now: float) -> None:
        """The view changed. If no other member is left, look for one soon."""
        if self._at < math.inf and self._view.alone:
            self._wait = self._config.join_interval
            self._at = min(self._at, now + self._wait)

    def seek_copy(self, address: str, now: float) -> None:
        """Dial `address` to find a copy of this peer. The handshake proves which peer answers."""
        self._sought = {place: at for place, at in self._sought.items() if now < at + _SEEK_COPY}
        if address not in self._sought and len(self._sought) < _SOUGHT:
            self._sought[address] = now
            self._outputs.send(b"", PushPull(True, (self._view.me,)), address=address)

    def timer(self) -> float:
        """When to call `handle_timer` next."""
        return min(self._at, self._reconnect_at)

    def handle_timer(self, now: float) -> None:
        """Send the dials that are due."""
        if now >= self._at:
            self._dial(now)
        if now >= self._reconnect_at:
            self._reconnect_at = now + self._config.reconnect_interval * (0.5 + 0.5 * self._random.random())
            self._reconnect(now)

    def _dial(self, now: float) -> None:
        """Dial the next address of the round. One at a time, because the first to answer sends its whole view.

        A lone peer dials seeds and remembered members. Later it dials only seeds at which no member is known, with
        growing pauses.
        """
        view, config = self._view, self._config
        alone = view.alone
        if not self._round:
            self._round = self._next_round(alone, now)
        if not alone:
            known = {address for member in view.members.values() for address in member.addresses}
            self._round = [(peer, address) for peer, address in self._round if not peer and address not in known]
        if self._round:
            peer, address = self._round.pop()
            self._outputs.send(peer, PushPull(True, (view.me,)), address=address)
        if self._round:
            self._at = now + config.join_interval / _STAGGER
            return
        wait = min(self._wait, config.join_longest) if alone else self._wait
        self._wait = min(2.0 * wait, _SELDOM)
        self._at = now + wait * (0.75 + 0.25 * self._random.random())

    def _next_round(self, alone: bool, now: float) -> list[tuple[bytes, str]]:
        view = self._view
        remembered = [peer for peer in view.remembered if peer not in view.members] if alone else []
        chosen = self._random.sample(remembered, min(_SOME, len(remembered)))
        gone = (member for member in view.members.values() if member.state == State.LEFT)
        left = {address for member in gone for address in member.addresses}
        if left and now >= self._goodbyes_at:
            self._goodbyes_at, left = now + _SELDOM, set()
        round = [(peer, view.remembered[peer].address) for peer in chosen]
        round += [(b"", address) for address in self._seeds if address not in left]
        self._random.shuffle(round)
        return round

    def _reconnect(self, now: float) -> None:
        """Dial a lost member, so that two sides meet after a partition, even after both have forgotten each other."""
        view, random = self._view, self._random
        lost = view.lost_elsewhere()
        if lost and random.random() < min(1.0, _DIALS * len(lost) / view.count):
            peer = lost[random.randrange(len(lost))]
            self._dissemination.send(peer, PushPull(True, (view.me, view.members[peer])), now)
        if view.remembered and random.random() < self._config.reconnect_interval / _SELDOM:
            unknown = [peer for peer in view.remembered if peer not in view.members]
            for peer in random.sample(unknown, min(1, len(unknown))):
                self._outputs.send(peer, PushPull(True, (view.me,)), address=view.remembered[peer].address)
