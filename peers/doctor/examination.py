"""The examination as a whole. Its parts run side by side, because each waits for something else."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from gossipdp.protocol.wire.messages import printable
from gossipdp.runtime.home_paths import homes_of_user
from gossipdp.runtime.network.nat_pmp import NatPmp, RouterError, default_gateway
from gossipdp.runtime.network.proxy import Proxy, probe
from gossipdp.runtime.network.reach import is_public
from gossipdp.runtime.network.upnp import Upnp
from gossipdp.runtime.room import Room
from peers.doctor import dial_back, host, ways
from peers.doctor.case import Case
from peers.doctor.daemon import Daemon, alive
from peers.doctor.findings import Finding, fine, grey, yellow
from peers.doctor.talk import LIMITS
from peers.doctor.visits import Visit, visit
from peers.settings import memory_plan

__all__ = ["SECONDS", "Outside", "Way", "examine", "outside", "router", "routers", "told_by"]


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


def routers() -> list[Way]:
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
        return grey(about, f"no router reports its outside address: {told.why or 'none was asked'}")
    said = f"reports the outside address {told.address}, asked by {told.way}"
    public = is_public(f"{told.address}:1")
    return fine(about, said if public else f"{said}; it is not public, so there is a second NAT")


SECONDS: Final = 13.0
"""seconds after which the last answers are not waited for"""
TOLD_WITHIN: Final = 6.0
"""seconds for an answer of the router"""


def examine(
    case: Case, *, fast: bool = False, with_torch: bool = True, wall: Callable[[], float] = time.time
) -> list[Finding]:
    """Examine this host and its ways. Nothing is changed.

    Args:
        fast: measure the throughput to the first member, too.
        with_torch: run the trial of torch, which takes seconds.
        wall: the system clock.

    Returns:
        The findings: the host first, then its ways, then its daemon.

    Raises:
        ConfigError: GD-206, the login of the proxy cannot be used.
    """
    until = time.monotonic() + SECONDS
    plan, proxy = memory_plan(case.config), case.proxy()
    port = host.port(case.port, alive=case.daemon.runs)  # before this process listens there itself
    with ThreadPoolExecutor(max_workers=16, thread_name_prefix="gossipdp-doctor") as pool:
        trial = pool.submit(host.torch) if with_torch else None
        folders = [pool.submit(host.disk, folder, needed) for folder, needed in _folders(case)]
        told = pool.submit(outside, routers(), time.monotonic() + TOLD_WITHIN)
        failed = None if proxy is None else probe(proxy, "", LIMITS.connect)
        proxied = [] if proxy is None else [ways.proxied(proxy, failed)]
        if failed is None:
            visits = [_visit(pool, case, number, proxy, fast, wall) for number in range(len(case.addresses))]
            network = _network(case, [each.result() for each in visits], told, until, proxied=proxy is not None)
        else:
            network = [grey("network", "not examined: all ways lead through the proxy")]
        return [
            host.python(),
            *([trial.result()] if trial is not None else []),
            host.files(),
            host.memory(Room(plan), plan, case.parameters),
            *(each.result() for each in folders),
            port,
            *proxied,
            *network,
            *(alive(case.home, case.daemon) if case.home is not None and case.home.exists() else []),
        ]


def _visit(
    pool: ThreadPoolExecutor, case: Case, number: int, proxy: Proxy | None, fast: bool, wall: Callable[[], float]
) -> Future[Visit]:
    address, alone = case.addresses[number], fast and number == 0
    return pool.submit(visit, address, case.network, case.identities, proxy=proxy, fast=alone, wall=wall)


def _folders(case: Case) -> list[tuple[Path, int]]:
    """The folders that the daemon writes to, and the bytes that each needs."""
    home = case.home if case.home is not None else homes_of_user()
    needed = memory_plan(case.config).on_disk(case.parameters) if case.parameters else 0
    kept = home / case.config.checkpoint.dir
    return [(home, needed)] if kept.is_relative_to(home) else [(home, 0), (kept, needed)]


def _network(case: Case, visits: list[Visit], told: Future[Outside], until: float, *, proxied: bool) -> list[Finding]:
    if not visits:
        return [grey("network", "no address to visit: give an invite (@FILE) or an address")]
    return [
        *ways.ways(visits),
        ways.clock(visits),
        *ways.packets(visits),
        *ways.speeds(visits),
        ways.seen(visits, dial_back.own_hosts(), told.result().address, proxy=proxied),
        router(told.result()),
        _dialled(case, visits, until, proxied=proxied),
    ]


def _dialled(case: Case, visits: list[Visit], until: float, *, proxied: bool) -> Finding:
    """Whether members can dial this host."""
    if case.daemon.status:
        return told_by(case.daemon)
    if proxied:
        return grey(dial_back.ABOUT, "not examined: members see the proxy; others reach this host through relays")
    met = [each.target for each in visits if each.peer]
    if case.network is None or not met:
        return grey(dial_back.ABOUT, "not examined: no member was met")
    if not case.port or case.daemon.runs:
        return grey(dial_back.ABOUT, "not examined: this peer listens on no fixed port, or its daemon does not answer")
    back = dial_back.dial_back(met, case.network, case.port, case.advertised, until)
    return dial_back.dialable(back, case.port, chosen=bool(case.advertised))


def told_by(daemon: Daemon) -> Finding:
    """What the daemon has found out about its own addresses."""
    addresses, why = daemon.status.get("addresses") or [], daemon.status.get("address_why") or ""
    if addresses:
        told = f"other peers are told to dial {', '.join(addresses)}" + (f" ({why})" if why else "")
        if daemon.status.get("dialled"):
            return fine(dial_back.ABOUT, told)
        name = daemon.status.get("name") or "this peer"
        return grey(dial_back.ABOUT, f"{told}; `gossipdp doctor --peer {name}` on another host shows whether they can")
    if relays := daemon.status.get("relays"):
        told = f"at no address: others reach this host through {' and '.join(map(printable, relays))}"
        do = "for direct links, open the port, or map it and set --advertise"
        return grey(dial_back.ABOUT, f"{told}; {do}")
    do = "open the port, or map it and set --advertise; without that this peer only dials out, which is enough"
    return yellow(dial_back.ABOUT, "not-dialable", f"at no address{': ' if why else ''}{why}", do)
