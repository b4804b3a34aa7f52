"""Hosts behind routers that translate addresses or filter: what homes, carriers and companies have.

    host 192.168.7.2 ─── router, a host of the lab ─── the lab's switch, which stands for the Internet

A router is a host of a `Lab`; the host behind it is one more namespace. Connections go out. None comes in, unless the
router forwards a port. iptables does all of it. This module knows nothing of gossipdp.

References: RFC 4787 and RFC 5382 for the kinds of NAT.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Final

from simulations.processes.namespaces.hosts import Host, LabError

__all__ = ["Nat", "behind", "forget_idle", "move"]

CONNTRACK: Final = Path("/proc/sys/net/netfilter")
FORWARDING: Final = Path("/proc/sys/net/ipv4/ip_forward")


class Nat(Enum):
    """What stands between a host and the Internet."""

    PORT_RESTRICTED = "port-restricted NAT"
    """keeps the inside port, as home routers do"""
    SYMMETRIC = "symmetric NAT"
    """a random outside port for each connection, as carriers do"""
    FULL_CONE = "full-cone NAT"
    """the router forwards one port to the host"""
    DOUBLE = "home NAT behind a carrier's"
    """two in a row"""
    WEB_ONLY = "firewall that lets only ports 80 and 443 out"
    """as companies have"""


@contextlib.contextmanager
def behind(router: Host, nat: Nat, port: int = 4710) -> Iterator[Host]:
    """A host behind a router, for the length of the context.

    Args:
        router: a host of a lab, with nothing else on it.
        port: the port that `Nat.FULL_CONE` forwards.

    Raises:
        LabError: a command failed.
    """
    with contextlib.ExitStack() as stack:
        if nat is Nat.DOUBLE:
            router = stack.enter_context(_behind(router, "100.64.0", Nat.SYMMETRIC, port))
            nat = Nat.PORT_RESTRICTED
        yield stack.enter_context(_behind(router, f"192.168.{router.number}", nat, port))


def forget_idle(router: Host, seconds: int) -> None:
    """Let the router forget a connection that has been idle for so long. Its later packets go nowhere."""
    with router.inside():
        (CONNTRACK / "nf_conntrack_tcp_timeout_established").write_text(str(seconds))
        (CONNTRACK / "nf_conntrack_tcp_loose").write_text("0")


def move(router: Host, address: str) -> Host:
    """Give the router another outside address, as a provider does over night. Its open connections are lost.

    Returns:
        The router with its new address.
    """
    _run("ip", "-n", router.namespace, "address", "flush", "dev", "eth0")
    _run("ip", "-n", router.namespace, "address", "add", f"{address}/16", "dev", "eth0")
    return Host(router.number, router.namespace, address)


@contextlib.contextmanager
def _behind(router: Host, subnet: str, nat: Nat, port: int) -> Iterator[Host]:
    host = Host(router.number, f"{router.namespace}-in", f"{subnet}.2")
    _run("ip", "netns", "add", host.namespace)
    try:
        end = ("peer", "name", "eth0", "netns", host.namespace)
        _run("ip", "-n", router.namespace, "link", "add", "in0", "type", "veth", *end)
        for namespace, device, address in (
            (router.namespace, "in0", f"{subnet}.1"),
            (host.namespace, "eth0", host.address),
        ):
            _run("ip", "-n", namespace, "address", "add", f"{address}/24", "dev", device)
            _run("ip", "-n", namespace, "link", "set", device, "up")
            _run("ip", "-n", namespace, "link", "set", "lo", "up")
        _run("ip", "-n", host.namespace, "route", "add", "default", "via", f"{subnet}.1")
        _translate(router, host, nat, port)
        yield host
    finally:
        with contextlib.suppress(LabError):
            _run("ip", "netns", "delete", host.namespace)


def _translate(router: Host, host: Host, nat: Nat, port: int) -> None:
    def filters(*words: str) -> None:
        _run(*router.command(["iptables", "-w", *words]))

    with router.inside():
        FORWARDING.write_text("1")
    for chain in ("INPUT", "FORWARD"):
        filters("-P", chain, "DROP")
    filters("-A", "FORWARD", "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT")
    out = ("-i", "in0", "-m", "conntrack", "--ctstate", "NEW")
    if nat is Nat.WEB_ONLY:
        filters("-A", "FORWARD", *out, "-p", "tcp", "-m", "multiport", "--dports", "80,443", "-j", "ACCEPT")
    else:
        filters("-A", "FORWARD", *out, "-j", "ACCEPT")
    random = ("--random-fully",) if nat is Nat.SYMMETRIC else ()
    filters("-t", "nat", "-A", "POSTROUTING", "-o", "eth0", "-j", "MASQUERADE", *random)
    if nat is Nat.FULL_CONE:
        forward = ("-p", "tcp", "--dport", str(port))
        filters("-A", "FORWARD", "-i", "eth0", *forward, "-j", "ACCEPT")
        filters("-t", "nat", "-A", "PREROUTING", "-i", "eth0", *forward, "-j", "DNAT", "--to", host.address)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"{' '.join(words)}: {done.stderr.strip()}")
