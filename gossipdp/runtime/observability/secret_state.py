"""Who has the network's present secret, as `status` and `keys rotate` show it."""

from __future__ import annotations

import time
from typing import Any

from gossipdp.protocol.admission.statements import SECRET
from gossipdp.protocol.peer import Peer
from gossipdp.runtime.network.transport import Transport

__all__ = ["left_behind", "secret_state"]


def secret_state(peer: Peer, transport: Transport) -> dict[str, Any]:
    """What this peer knows of the network's secret.

    Returns:
        generation: number of the secret that this peer holds; 0 for the first.
        newest: number of the newest that it knows of.
        until: seconds since 1970; so long the secret before is taken from everybody.
        lacks: names of live members that are not known to have the newest.
    """
    admission, renewal = peer.admission, peer.admission.about(SECRET)
    generation = transport.secret.generation
    if renewal is None or renewal.secret is None:
        return {"generation": generation, "newest": generation, "until": 0, "lacks": []}
    named, holders = frozenset(renewal.allowed), admission.holders(SECRET)
    proven = {link.peer for link in transport.links() if link.generation == renewal.number}
    old = {link.peer for link in transport.links()} - proven
    live = peer.membership.alive()
    lacking = [one for one in live if one.id not in holders | proven and (one.id in named or one.id in old)]
    lacks = [member.name for member in lacking if admission.admits(member.id)]
    if generation != renewal.number:
        lacks.append(peer.membership.me.name)
    newest = max(generation, renewal.number)
    return {"generation": generation, "newest": newest, "until": renewal.secret.until, "lacks": sorted(lacks)}


def left_behind(peer: Peer, transport: Transport, wall: float) -> str:
    """Why members keep this peer out for want of the newest secret; "" if they do not. wall: seconds since 1970."""
    renewal = peer.admission.about(SECRET)
    if renewal is None or renewal.secret is None or renewal.number <= transport.secret.generation:
        return ""
    if wall < renewal.secret.until:
        return ""
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(renewal.time))
    return f"the network has a new secret since {since}, which this host lacks: join again with a new invite"
