"""Which link loses its place to another peer when all places are taken. No socket may stand here.

A key costs nothing, so one host may hold all places with young keys. An unused link loses its place first, then the
youngest key of the range of addresses with most young keys. A proven member loses only an unused link, and keeps it
while young keys hold most places.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

from gossipdp.runtime.network.connections import Link
from gossipdp.runtime.network.host_port import address_range

__all__ = ["loser"]

HOLD: Final = 5.0
"""seconds for which a link keeps its place after it came up, and after each use"""


def loser(links: Collection[Link], host: str, known: Mapping[bytes, float], now: float, idle: float) -> Link | None:
    """The link whose place a peer at the IP address `host` gets; None if it gets none.

    Args:
        known: seconds for which this peer has known each member; infinite for a proven one.
        idle: seconds after which an unused link is closed anyway.
    """
    hold = min(HOLD, idle)
    unused = [link for link in links if now - link.used >= hold]
    young = dict.fromkeys(link for link in links if known.get(link.peer, 0.0) < math.inf)
    crowd = Counter(address_range(link.host) for link in young)
    crowd[address_range(host)] += 1
    crowded = 2 * len(young) > len(links)
    if found := [link for link in unused if link in young or not crowded]:
        return min(found, key=lambda link: link.used)
    return max(
        (link for link in young if now - link.opened >= hold),
        key=lambda link: (crowd[address_range(link.host)], -known.get(link.peer, 0.0), link.opened),
        default=min(unused, key=lambda link: link.used, default=None),
    )
