"""Which peers have time series of their own. A remote that makes new identities must not multiply series."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from prometheus_client import Counter, Gauge

from gossipdp.protocol.wire.messages import Lane, short

__all__ = ["MAX_PEERS", "OTHER", "PeerLabels"]

MAX_PEERS: Final = 32
"""peers with series of their own; the traffic of all others counts under "other" """
OTHER: Final = "other"


class PeerLabels:
    """The first MAX_PEERS peers have series of their own. A peer that is gone makes room for a new one.

    Args:
        states: families labelled by peer, dropped once the peer is gone.
        totals: families labelled by peer and lane, kept until another peer needs the room.
    """

    def __init__(self, states: tuple[Gauge, ...], totals: tuple[Counter, ...]) -> None:
        self._states, self._totals = states, totals
        self._own: dict[bytes, str] = {}
        self._gone: dict[bytes, None] = {}

    def of(self, peer: bytes) -> str:
        """The label of `peer`: a short id, or "other"."""
        own = self._own.get(peer)
        if own is not None:
            return own
        if len(self._own) >= MAX_PEERS and self._gone:
            self._drop(next(iter(self._gone)))
        if len(self._own) >= MAX_PEERS or not peer or short(peer) in self._own.values():
            return OTHER
        self._own[peer] = short(peer)
        return self._own[peer]

    def changed(self, peer: bytes, *, gone: bool) -> None:
        """A member is `gone`, or is back."""
        if gone and peer in self._own:
            self._gone[peer] = None
            for family in self._states:
                _remove(family, self._own[peer])
        else:
            self._gone.pop(peer, None)

    def _drop(self, peer: bytes) -> None:
        del self._gone[peer]
        label = self._own.pop(peer)
        for state in self._states:
            _remove(state, label)
        for total in self._totals:
            for lane in Lane:
                _remove(total, label, lane.name.lower())


def _remove(family: Counter | Gauge, *labels: str) -> None:
    """Drop a child if it exists. The library raises KeyError for a missing child up to version 0.21.1."""
    with suppress(KeyError):
        family.remove(*labels)
