"""This peer as a relay: it carries messages between two members that are linked with it, and cannot read them.

Both ends must ask. One of them attends: it wants to be carried what others send it. The other asks with its first
message for it, and is carried the answers. A ping waits for no payload, because each message stays on its lane. On the
control lane messages go at once; on the data lane they wait for the budget, the pairs in turn, and for this peer's own
messages on the same connection. Where too much waits, a message is refused, and its sender hears why. Nothing is
carried over a relayed link: there is one hop. No socket may stand here.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Lane
from gossipdp.runtime.network.connections import Link
from gossipdp.runtime.network.context import LinksContext, LinkTable
from gossipdp.runtime.network.send_queues import RETRY, SendQueues
from gossipdp.runtime.network.signed_hello import Attended, Carried, NotCarried, pack

__all__ = ["Carrier"]

MOST_ATTENDING: Final = 64
"""members that one relay carries to"""
MOST_PARTNERS: Final = 128
"""members that one attending member is carried messages of"""
HELD_PAIR: Final = 16 << 20
"""bytes that wait for one direction of a pair"""
HELD: Final = 256 << 20
"""bytes that wait in all"""
CONTROL: Final = 512 << 10
"""largest message that is carried on the control lane, in bytes: a decision that seals a secret for thousands"""
CROWD: Final = 64
"""messages that may wait on the control connection of the member that a message is for"""
BURST: Final = 1.0
"""seconds of the budget that may be spent at once"""
TOLD: Final = 8
"""refusals that one member hears of between two sweeps"""


@dataclass(slots=True)
class _Way:
    """One direction of a pair."""

    waiting: deque[tuple[list[Buffer], int]] = field(default_factory=deque)
    held: int = 0


class Carrier:
    """What this peer carries for others."""

    def __init__(self, context: LinksContext, queues: SendQueues, links: LinkTable) -> None:
        self._context, self._queues, self._links = context, queues, links
        self._aside: frozenset[bytes] = frozenset()
        """peers for which nothing is carried"""
        self._counters, self._turn = context.counters, context.turn
        self._rate = 0.0
        self._tokens, self._filled = 0.0, context.turn.now
        """bytes that may go now, and as of when; below zero after a message larger than was left"""
        self.attending: dict[bytes, set[bytes]] = {}
        """members that this peer carries to -> those that have sent them something"""
        self._ways: dict[tuple[bytes, bytes], _Way] = {}
        """(from, to), the next to send first"""
        self._held = 0
        self._told: Counter[bytes] = Counter()
        """refusals that each member has heard of since the last sweep"""

    def allow(self, rate: float) -> None:
        """Carry at most `rate` bytes a second from now on; 0: carry nothing."""
        self._rate = rate
        self._tokens, self._filled = BURST * rate, self._turn.now
        if not rate:
            self.attending.clear()
            self._ways.clear()
            self._held = 0

    def set_aside(self, peers: Collection[bytes]) -> None:
        """Carry nothing for these peers."""
        self._aside = frozenset(peers)

    # -- what members ask ----------------------------------------------------------------------------------------

    def attend(self, link: Link, wanted: bool) -> None:
        """The member of `link` wants to be carried to, or no more."""
        if not wanted:
            self.attending.pop(link.peer, None)
            return
        reason = self._why_not(link)
        if not reason and link.peer not in self.attending and len(self.attending) >= MOST_ATTENDING:
            reason = f"it carries to {MOST_ATTENDING} members already"
        if not reason:
            self.attending.setdefault(link.peer, set())
        self._queues.write(link.connections[Lane.CONTROL], pack(Attended(not reason, reason)))

    def carry(self, link: Link, lane: Lane, to: bytes, frames: Sequence[Buffer], size: int) -> None:
        """The member of `link` sends `frames`, of `size` bytes, for `to`."""
        origin = link.peer
        reason = self._why_not(link) or self._consent(origin, to)
        target = self._links.linked(to)
        if not reason and (target is None or target.via):
            reason = "has no link with the relay"
        if not reason and lane is Lane.CONTROL and (size > CONTROL or self._left() < -BURST * self._rate):
            reason = "is sent too much on the control lane"
        if reason or target is None:
            self._refuse(link, to, reason)
            return
        link.use(self._turn.now)
        carried = [*pack(Carried(origin)), *frames]
        if lane is Lane.CONTROL and len(target.connections[lane].queue) >= CROWD:
            self._refuse(link, to, "reads too slowly")
            return
        if lane is Lane.CONTROL:
            if self._queues.write(target.connections[lane], carried):
                self._sent(target, lane, size)
            return
        way = self._ways.setdefault((origin, to), _Way())
        if way.held + size > HELD_PAIR or self._held + size > HELD:
            self._refuse(link, to, "is sent more than the relay's budget lets through")
            return
        way.waiting.append((carried, size))
        way.held += size
        self._held += size
        self.flush()

    def _why_not(self, link: Link) -> str:
        """Why nothing is carried for the member of `link`, or ""."""
        if not self._rate:
            return "it is no relay"
        if link.via:
            return "a relayed link carries nothing"
        return "it was set aside" if link.peer in self._aside else ""

    def _consent(self, origin: bytes, to: bytes) -> str:
        """Why `to` does not want what `origin` sends it, or ""."""
        if to in self.attending.get(origin, ()):
            return ""
        partners = self.attending.get(to)
        if partners is None or to in self._aside:
            return "has not asked the relay"
        if origin not in partners and len(partners) >= MOST_PARTNERS:
            return "is sent messages by too many members"
        partners.add(origin)
        return ""

    def _refuse(self, link: Link, to: bytes, reason: str) -> None:
        self._counters.count_not_carried()
        self._told[link.peer] += 1
        if self._told[link.peer] <= TOLD:
            self._queues.write(link.connections[Lane.CONTROL], pack(NotCarried(to, reason)))

    def link_down(self, peer: bytes) -> None:
        """There is no link with `peer` any more."""
        self.attending.pop(peer, None)
        for partners in self.attending.values():
            partners.discard(peer)
        for pair in [pair for pair in self._ways if peer in pair]:
            self._held -= self._ways.pop(pair).held

    # -- the data lane -------------------------------------------------------------------------------------------

    def _left(self) -> float:
        """Bytes that may go now."""
        if math.isinf(self._rate):
            return math.inf
        gained = self._rate * (self._turn.now - self._filled)
        self._tokens, self._filled = min(BURST * self._rate, self._tokens + gained), self._turn.now
        return self._tokens

    def _sent(self, target: Link, lane: Lane, size: int) -> None:
        target.use(self._turn.now)
        self._tokens -= size
        self._counters.count_carried(lane, size)

    def flush(self) -> None:
        """Send what the budget and the connections take by now, one message of each pair in turn."""
        stuck = 0
        while self._held and stuck < len(self._ways) and self._left() > 0.0:
            pair = next(iter(self._ways))
            way = self._ways[pair] = self._ways.pop(pair)
            target = self._links.linked(pair[1])
            if (
                way.waiting
                and target is not None
                and self._queues.offer(target.connections[Lane.DATA], way.waiting[0][0])
            ):
                _, size = way.waiting.popleft()
                way.held -= size
                self._held -= size
                self._sent(target, Lane.DATA, size)
                stuck = 0
            else:
                stuck += 1

    # -- time ----------------------------------------------------------------------------------------------------

    def next_timer(self) -> float:
        if not self._held:
            return math.inf
        left = self._left()
        return self._turn.now + (RETRY if left > 0.0 else max(RETRY, -left / self._rate))

    def sweep(self) -> None:
        """Forget directions in which nothing waits, and refusals."""
        self._ways = {pair: way for pair, way in self._ways.items() if way.waiting}
        self._told.clear()
