"""Finding others: seeds and remembered members are dialled until one answers, and lost members again and again.

So a newcomer finds the network, a peer alone finds it again, and the two sides of a healed cut meet. A member that said
goodbye is not lost: it dials by itself when it comes back, and its address is dialled only now and then.
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

__all__ = ["Seeking"]

_STAGGER: Final = 2.0
"""dials to different seeds are join_interval / 2 apart"""
_SOME: Final = 8
"""remembered members that are dialled in one round"""
_DIALS: Final = 3.0
"""dials to each failed member per reconnect interval, over all its dialers"""
_SELDOM: Final = 60.0
"""seconds between dials, at the longest, to seeds that are no known member's address: an island may stand behind them.
Also, on average, between dials to members that are remembered but not known, and to seeds whose member left."""
_SEEK_COPY: Final = 60.0
"""seconds between dials to where this peer's own identity is said to be live"""
_SOUGHT: Final = 8
"""places that are dialled so within that time"""


class Seeking:
    """Whom to dial, and when."""

    def __init__(
        self, view: View, dissemination: Dissemination, outputs: Outputs, *, random: Random, now: float
    ) -> None:
        self._view, self._dissemination, self._outputs, self._random = view, dissemination, outputs, random
        self._config = view.config
        self._seeds: tuple[str, ...] = ()
        self._round: list[tuple[bytes, str]] = []
        """who is still to be dialled in this round, the next last"""
        self._at = math.inf
        self._wait = self._config.join_interval
        self._goodbyes_at = now
        """when seeds whose member left are dialled next"""
        self._reconnect_at = now + self._config.reconnect_interval * random.random()
        self._sought: dict[str, float] = {}
        """address -> when it was last asked whether a copy of this peer is there"""

    def join(self, addresses: Sequence[str], now: float) -> None:
        """Dial `addresses` and the members remembered until one answers; any one alive is enough."""
        own = self._view.me.address
        self._seeds = tuple(dict.fromkeys(address for address in addresses if address != own))
        self._wait = self._config.join_interval
        self._round = []
        self._dial(now)

    def changed(self, now: float) -> None:
        """The view changed: if no other member is left, look for one soon."""
        if self._at < math.inf and self._view.alone:
            self._wait = self._config.join_interval
            self._at = min(self._at, now + self._wait)

    def copy(self, address: str, now: float) -> None:
        """Ask at `address` for a copy of this peer: whoever answers there proves which peer it is."""
        self._sought = {place: at for place, at in self._sought.items() if now < at + _SEEK_COPY}
        if address not in self._sought and len(self._sought) < _SOUGHT:
            self._sought[address] = now
            self._outputs.send(b"", PushPull(True, (self._view.me,)), address=address)

    def timer(self) -> float:
        """When `handle_timer` wants to be called next."""
        return min(self._at, self._reconnect_at)

    def handle_timer(self, now: float) -> None:
        if now >= self._at:
            self._dial(now)
        if now >= self._reconnect_at:
            self._reconnect_at = now + self._config.reconnect_interval * (0.5 + 0.5 * self._random.random())
            self._reconnect(now)

    def _dial(self, now: float) -> None:
        """Dial seeds and some of the remembered members, one after another, for the first that answers sends its whole
        view: all while no other member is there, later only seeds that no member is known at, more and more seldom."""
        view, config = self._view, self._config
        alone = view.alone
        if not self._round:
            self._round = self._next_round(alone, now)
        if not alone:
            known = {member.address for member in view.members.values()}
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
        left = {member.address for member in view.members.values() if member.state == State.LEFT}
        if left and now >= self._goodbyes_at:
            self._goodbyes_at, left = now + _SELDOM, set()
        round = [(peer, view.remembered[peer]) for peer in chosen]
        round += [(b"", address) for address in self._seeds if address not in left]
        self._random.shuffle(round)
        return round

    def _reconnect(self, now: float) -> None:
        """Dial somebody lost, so that after a heal the two sides meet, also after so long that both have forgotten each
        other."""
        view, random = self._view, self._random
        lost = view.lost_elsewhere()
        if lost and random.random() < min(1.0, _DIALS * len(lost) / view.count):
            peer = lost[random.randrange(len(lost))]
            self._dissemination.send(peer, PushPull(True, (view.me, view.members[peer])), now)
        if view.remembered and random.random() < self._config.reconnect_interval / _SELDOM:
            unknown = [peer for peer in view.remembered if peer not in view.members]
            for peer in random.sample(unknown, min(1, len(unknown))):
                self._outputs.send(peer, PushPull(True, (view.me,)), address=view.remembered[peer])
