"""Bounds on memory: no table, log, set or queue of a peer may grow with its history (I9).

The check counts every container that a peer or its algorithm can reach, so a new table is checked from its first day.
In a run a peer sees hundreds of messages, exchanges and rounds of a few members and chunks. A container larger than
these and a small constant has been growing, unless `DECLARED` allows it a cap of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gossipdp.protocol.membership.probing import MAX_PINGS
from gossipdp.protocol.pairwise import terms
from gossipdp.protocol.rounds import runaway, speed
from simulations.simulator.host import Host

__all__ = ["check_bounds", "containers"]

ROOM: Final = 16
"""entries that any container may have, in the smallest network"""
DECLARED: Final[Mapping[str, int]] = {
    "Prober.sent": MAX_PINGS,  # an answer may take as long as it likes
    "AveragingConfig.fineness": 64,  # codecs
    "LinkLoad._times": terms.REMEMBERED,
    "Runaway._lengths": runaway.WINDOW,
    "Speed._rounds": speed.MOST,  # of the last minute
}
CONTAINERS: Final = (dict, list, set, frozenset, tuple, deque)


def check_bounds(host: Host, hosts: int) -> None:
    """Check I9 for one host.

    Args:
        hosts: number of hosts in the network.

    Raises:
        AssertionError: a container has grown.
    """
    assert host.peer is not None
    # A joiner has a ledger before it has the model.
    ledger = getattr(host.algorithm, "ledger", None)
    most = max(ROOM, 2 * hosts, 2 * (0 if ledger is None else ledger.chunks))
    for where, held in containers(host.peer, host.algorithm):
        assert held <= DECLARED.get(where, most), f"I9 {host.name}: {where} holds {held}"
    assert len(host.waiting) <= most, f"I9 {host.name}: {len(host.waiting)} jobs wait"


def containers(*roots: object) -> Iterator[tuple[str, int]]:
    """Class and attribute, and number of entries, of all containers reachable through objects of the package."""
    seen: set[int] = set()
    waiting: list[tuple[str, object]] = [(type(root).__name__, root) for root in roots]
    while waiting:
        where, what = waiting.pop()
        if id(what) in seen:
            continue
        seen.add(id(what))
        if isinstance(what, CONTAINERS):
            yield where, len(what)
            inside = what.values() if isinstance(what, dict) else what
            waiting += [(where, one) for one in inside if _ours(one)]
        else:
            found = ((name, getattr(what, name, None)) for name in _names(what))
            waiting += [(f"{type(what).__name__}.{name}", one) for name, one in found if _ours(one)]


def _ours(what: object) -> bool:
    return isinstance(what, CONTAINERS) or type(what).__module__.startswith("gossipdp.")


def _names(what: Any) -> Iterator[str]:
    yield from getattr(what, "__dict__", ())
    yield from getattr(what, "__struct_fields__", ())
    for kind in type(what).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots
