"""This peer as a relay: it carries messages between two members that are linked with it, and cannot read them.

Both ends must ask. One of them attends: it wants to be carried what others send it. The other asks with its first
message for it, and is carried the answers. A ping waits for no payload, because each message stays on its lane. On the
control lane each member has an allowance of its own. On the data lane messages wait for the budget, the pairs in turn,
and for this peer's own messages on the same connection. Where too much waits, one message is lost, and its sender hears
so. Nothing is carried over a relayed link: there is one hop. No socket may stand here.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from gossipdp.protocol.budgets import TokenBucket
from gossipdp.protocol.membership.relays import MOST_CARRIED
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Lane
from gossipdp.runtime.network.connections import Link
from gossipdp.runtime.network.context import LinksContext, LinkTable
from gossipdp.runtime.network.send_queues import RETRY, SendQueues
from gossipdp.runtime.network.signed_hello import Attended, Carried, NotCarried, pack

__all__ = ["Carrier"]

MOST_PARTNERS: Final = 128
"""members that one attending member is carried messages of"""
HELD: Final = 256 << 20
"""bytes that wait in all"""
LEAST: Final = 4 << 10
"""bytes that every message counts as, at least"""
CONTROL: Final = (256 << 10, 1 << 20)
"""bytes on the control lane of one member: a second, and at once. They are beyond the budget, which payloads spend"""
CROWD: Final = 64
"""messages on the control lane that wait for one direction of a pair"""
BURST: Final = 1.0
"""seconds of the budget that may be spent at once"""
TOLD: Final = 8
"""refusals that one member hears of between two sweeps"""
FULL: Final = "it is sent more than the relay lets through"


@dataclass(slots=True)
class _Way:
    """One direction of a pair, on one lane."""

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
        self._ways: dict[tuple[bytes, bytes, Lane], _Way] = {}
        """(from, to, lane), the next to send first"""
        self.held = 0
        """bytes that wait"""
        self._allowances: dict[bytes, TokenBucket] = {}
        """what each member may still send on the control lane"""
        self._told: Counter[bytes] = Counter()
        """refusals that each member has heard of since the last sweep"""

    def allow(self, rate: float) -> None:
        """Carry at most `rate` bytes a second from now on; 0: carry nothing."""
        self._rate = rate
        self._tokens, self._filled = BURST * rate, self._turn.now
        if not rate:
            self.attending.clear()
            self._drop(list(self._ways))

    def set_aside(self, peers: Collection[bytes]) -> None:
        """Carry nothing for these peers."""
        self._aside = frozenset(peers)
        self._drop([way for way in self._ways if not self._aside.isdisjoint(way[:2])])

    # -- what members ask ----------------------------------------------------------------------------------------

    def attend(self, link: Link, wanted: bool) -> None:
        """The member of `link` wants to be carried to, or no more."""
        if not wanted:
            self.attending.pop(link.peer, None)
            return
        reason = self._why_not(link)
        if not reason and link.peer not in self.attending and len(self.attending) >= MOST_CARRIED:
            reason = f"it already carries to {MOST_CARRIED} members"
        if not reason:
            self.attending.setdefault(link.peer, set())
        self._queues.write(link.connections[Lane.CONTROL], pack(Attended(not reason, reason)))

    def carry(self, link: Link, lane: Lane, to: bytes, frames: Sequence[Buffer], size: int) -> None:
        """The member of `link` sends `frames`, of `size` bytes, for `to`."""
        origin, target = link.peer, self._links.linked(to)
        reason = self._why_not(link) or self._consent(origin, to)
        if not reason and (target is None or target.via):
            reason = "it has no link with the relay"
        if reason or target is None:
            self._refuse(link, to, reason)
            return
        link.use(self._turn.now)
        cost, key = max(size, LEAST), (origin, to, lane)
        if lane is Lane.CONTROL and not self._allows(origin, cost):
            self._refuse(link, to, FULL, once=True)
            return
        way = self._ways.setdefault(key, _Way())
        crowded = lane is Lane.CONTROL and len(way.waiting) >= CROWD
        if crowded or self.held + cost > HELD or not self._queues.fits(len(way.waiting), way.held, cost):
            self._refuse(link, to, FULL, once=True)
            return
        way.waiting.append(([*pack(Carried(origin)), *frames], cost))
        way.held += cost
        self.held += cost
        self.flush()

    def _why_not(self, link: Link) -> str:
        """Why nothing is carried for the member of `link`, or ""."""
        if not self._rate:
            return "it is not a relay"
        if link.via:
            return "this link is relayed itself"
        return "the relay has set this peer aside" if link.peer in self._aside else ""

    def _consent(self, origin: bytes, to: bytes) -> str:
        """Why `to` does not want what `origin` sends it, or ""."""
        if to in self._aside:
            return "the relay has set it aside"
        if to in self.attending.get(origin, ()):
            return ""
        partners = self.attending.get(to)
        if partners is None:
            return "it has not asked the relay"
        if origin not in partners and len(partners) >= MOST_PARTNERS:
            return "too many members send it messages"
        partners.add(origin)
        return ""

    def _allows(self, origin: bytes, cost: int) -> bool:
        """Whether `origin` may send so much on the control lane: a flood of one member must cost no other one."""
        rate, most = CONTROL
        allowance = self._allowances.setdefault(origin, TokenBucket(rate, most, self._turn.now))
        if allowance.left(self._turn.now) < cost:
            return False
        allowance.spend(cost, self._turn.now)
        return True

    def _refuse(self, link: Link, to: bytes, reason: str, *, once: bool = False) -> None:
        self._counters.count_not_carried()
        self._told[link.peer] += 1
        if self._told[link.peer] <= TOLD:
            self._queues.write(link.connections[Lane.CONTROL], pack(NotCarried(to, reason, once)))

    def link_down(self, peer: bytes) -> None:
        """There is no link with `peer` any more."""
        self.attending.pop(peer, None)
        self._allowances.pop(peer, None)
        for partners in self.attending.values():
            partners.discard(peer)
        self._drop([way for way in self._ways if peer in way[:2]])

    def _drop(self, ways: Collection[tuple[bytes, bytes, Lane]]) -> None:
        """Send nothing more of what waits there."""
        for key in ways:
            way = self._ways.pop(key)
            self.held -= way.held
            self._context.drop("link down", len(way.waiting))

    # -- sending -------------------------------------------------------------------------------------------------

    def _left(self) -> float:
        """Bytes of the budget that may go now."""
        if math.isinf(self._rate):
            return math.inf
        gained = self._rate * (self._turn.now - self._filled)
        self._tokens, self._filled = min(BURST * self._rate, self._tokens + gained), self._turn.now
        return self._tokens

    def flush(self) -> None:
        """Send what the connections take by now, and on the data lane the budget: one message of each pair in turn."""
        for lane in (Lane.CONTROL, Lane.DATA):
            self._flush(lane)

    def _flush(self, lane: Lane) -> None:
        stuck, keys = 0, deque(key for key, way in self._ways.items() if key[2] is lane and way.waiting)
        while stuck < len(keys) and (lane is Lane.CONTROL or self._left() > 0.0):
            key = keys[0]
            if self._send_first(key):
                stuck = 0
            else:
                stuck += 1
            self._ways[key] = self._ways.pop(key)  # last in the next turn
            keys.rotate(-1)
            if not self._ways[key].waiting:
                keys.pop()

    def _send_first(self, key: tuple[bytes, bytes, Lane]) -> bool:
        """Send the first message that waits there. Returns whether it was sent."""
        way, (_, to, lane) = self._ways[key], key
        target = self._links.linked(to)
        frames, cost = way.waiting[0]
        if target is None or target.via or not self._queues.offer(target.connections[lane], frames):
            return False
        way.waiting.popleft()
        way.held -= cost
        self.held -= cost
        target.use(self._turn.now)
        if lane is Lane.DATA:
            self._tokens -= cost
        self._counters.count_carried(lane, sum(memoryview(frame).nbytes for frame in frames[1:]))
        return True

    # -- time ----------------------------------------------------------------------------------------------------

    def next_timer(self) -> float:
        if not self.held:
            return math.inf
        left = self._left()
        control = any(way.waiting for key, way in self._ways.items() if key[2] is Lane.CONTROL)
        return self._turn.now + (RETRY if left > 0.0 or control else max(RETRY, -left / self._rate))

    def sweep(self) -> None:
        """Forget directions in which nothing waits, and refusals."""
        self._ways = {key: way for key, way in self._ways.items() if way.waiting}
        self._told.clear()
