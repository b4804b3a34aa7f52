"""The router of this host's network: the outside address that it reports by NAT-PMP or UPnP. Nothing is mapped."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from gossipdp.protocol.wire.messages import printable
from gossipdp.runtime.network.nat_pmp import NatPmp, RouterError, default_gateway
from gossipdp.runtime.network.reach import is_public
from gossipdp.runtime.network.upnp import Upnp
from peers.doctor.findings import Finding, fine, grey

__all__ = ["Outside", "Way", "outside", "router", "ways"]

FIRST_TIMEOUT: Final = 0.1
"""seconds for the first answer by NAT-PMP; five tries take 3 s"""


class Way(Protocol):
    """A protocol that routers speak. `outside_address` blocks, and raises RouterError."""

    name: str

    def outside_address(self) -> str: ...


class Outside(NamedTuple):
    """address: "" if no router tells. way: the protocol by which it was asked. why: why it is not known."""

    address: str = ""
    way: str = ""
    why: str = ""


def ways() -> list[Way]:
    """The protocols by which the router of this host is asked."""
    gateway = default_gateway()
    return [*([NatPmp(gateway, first_timeout=FIRST_TIMEOUT)] if gateway else []), Upnp()]


def outside(asked: Sequence[Way], until: float) -> Outside:
    """Ask by all ways at once. The first address counts.

    Args:
        until: time.monotonic() after which no answer is waited for.
    """
    answers: queue.SimpleQueue[Outside] = queue.SimpleQueue()

    def ask(way: Way) -> None:
        try:
            answers.put(Outside(way.outside_address(), way.name))
        except RouterError as error:
            answers.put(Outside(why=printable(str(error))))

    for way in asked:
        # A daemon thread: a library that waits for a router must not hold up the end of this process.
        threading.Thread(target=ask, args=(way,), name="gossipdp-router", daemon=True).start()
    reasons = []
    for _ in asked:
        try:
            answer = answers.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            reasons.append("no answer in time")
            break
        if answer.address:
            return answer
        reasons.append(answer.why)
    return Outside(why="; ".join(reasons))


def router(told: Outside) -> Finding:
    """What the router says of itself."""
    about = "router"
    if not told.address:
        return grey(about, f"no router tells its outside address: {told.why or 'none was asked'}")
    said = f"reports the outside address {told.address}, asked by {told.way}"
    public = is_public(f"{told.address}:1")
    return fine(about, said if public else f"{said}; it is not public, so another translation follows")
