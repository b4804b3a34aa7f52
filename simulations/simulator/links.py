"""The links of a simulated network: which are cut, which are open, and how long a message waits for them.

Between hosts that can dial each other a link always exists. An outbound-only host opens links by sending. They last
until they are cut, idle for `IDLE` seconds, or one end stops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeAlias

from gossipdp.protocol.wire.messages import Lane
from simulations.simulator.conditions import Conditions
from simulations.simulator.host import Host

__all__ = ["Cut", "Link", "Links"]

IDLE = 60.0
"""seconds after which an unused link of an outbound-only host closes"""
HEARTBEAT = 6.0
"""seconds until the ends of a link that was cut notice it"""

Link: TypeAlias = tuple[int, int]
"""a pair of hosts, by number"""
Cut: TypeAlias = tuple[Link, ...]
"""links that carry nothing from their first host to their second"""


class Links:
    """State of all links.

    Args:
        clock: returns the virtual time.
        closed: callback: an open link of an outbound-only host closes, which its ends notice after some seconds.
    """

    def __init__(self, clock: Callable[[], float], closed: Callable[[Link, float], None]) -> None:
        self._clock, self._closed = clock, closed
        self._cuts: Counter[Link] = Counter()
        """number of cuts of each link; it carries messages when none is left"""
        self._healed = float("-inf")
        self._opened: dict[Link, float] = {}
        """links of outbound-only hosts -> when each was last used; the outbound-only host is first"""
        self._lane_free: dict[tuple[int, int, Lane], float] = {}
        """when the lane has sent all that waits for it"""
        self._gate_free: dict[int, float] = {}
        """the same of a host's uplink, and, under ~index, of its downlink"""
        self._arrived: dict[tuple[int, int, Lane], float] = {}
        """arrival of the last message of each lane"""

    # -- cuts ---------------------------------------------------------------------------------------------------

    def cut(self, sources: Iterable[Host], targets: Iterable[Host], *, both: bool = True) -> Cut:
        """Cut the links from `sources` to `targets`, and back if `both`. Cuts add up: each must be healed."""
        pairs = {(source.index, target.index) for source in sources for target in list(targets)}
        made = tuple(sorted(pairs | {pair[::-1] for pair in pairs} if both else pairs))
        self._cuts.update(made)
        self.close([link for link in self._opened if self._is_cut_one_way(link)], HEARTBEAT)
        return made

    def heal(self, cut: Cut | None = None) -> None:
        """Undo this cut once. Without one, undo all cuts."""
        if cut is None:
            self._cuts.clear()
        else:
            self._cuts -= Counter(cut)
        self._healed = self._clock()

    def is_cut(self, sender: Host, target: Host) -> bool:
        return (sender.index, target.index) in self._cuts

    def _is_cut_one_way(self, link: Link) -> bool:
        return link in self._cuts or link[::-1] in self._cuts

    @property
    def whole(self) -> bool:
        """No link is cut."""
        return not self._cuts

    @property
    def whole_for(self) -> float:
        """Seconds since the last cut ended; 0 while a link is cut."""
        return 0.0 if self._cuts else self._clock() - self._healed

    # -- open links of outbound-only hosts ----------------------------------------------------------------------

    def carries(self, sender: Host, target: Host) -> bool:
        """Whether `sender` has a link to `target` or can open one. Opens it."""
        if not sender.outbound and not target.outbound:
            return True
        if sender.outbound and target.outbound:
            return False
        link = (sender.index, target.index) if sender.outbound else (target.index, sender.index)
        used, now = self._opened.get(link), self._clock()
        if used is not None and now >= used + IDLE:
            self.close([link], 0.0)
            used = None
        if used is None and (target.outbound or target.peer is None or self._is_cut_one_way(link)):
            return False
        self._opened[link] = now
        return True

    def is_open(self, link: Link) -> bool:
        return link in self._opened

    def close_all_of(self, host: Host, after: float) -> None:
        """Close the open links of `host`."""
        self.close([link for link in self._opened if host.index in link], after)

    def close(self, links: Iterable[Link], after: float) -> None:
        """Close open links. Their ends notice it `after` seconds, unless the link is open again by then."""
        for link in links:
            del self._opened[link]
            self._closed(link, after)

    # -- delays -------------------------------------------------------------------------------------------------

    def leaves(self, sender: Host, target: Host, lane: Lane, size: int, conditions: Conditions) -> float:
        """When the last byte of a message has left: after all that waits for its lane, its uplink and its downlink."""
        key, now = (sender.index, target.index, lane), self._clock()
        sent = max(now, self._lane_free.get(key, 0.0)) + size / conditions.bandwidth
        if lane == Lane.DATA:
            for gate, rate in ((sender.index, conditions.uplink), (~target.index, target.downlink)):
                if rate is not None:
                    self._gate_free[gate] = max(now, self._gate_free.get(gate, 0.0)) + size / rate
                    sent = max(sent, self._gate_free[gate])
        self._lane_free[key] = sent
        return sent

    def in_order(self, sender: Host, target: Host, lane: Lane, arrives: float) -> float:
        """When a message arrives that keeps its place in the lane."""
        key = (sender.index, target.index, lane)
        arrives = self._arrived[key] = max(arrives, self._arrived.get(key, 0.0))
        return arrives
