"""The daemon of this home: alive, training attached, last exchange, agreement, time lost."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil

from gossipdp.errors import UnreachableError
from gossipdp.runtime.observability.health import MOST_STALL, STATES, WIDE
from gossipdp.runtime.unix_sockets import address
from peers.control import ask, runs, socket_path
from peers.doctor.findings import Finding, Light, fine, grey, red, yellow
from peers.finished import read_about
from peers.home import RUN
from peers.rest import absence
from peers.tables import duration

__all__ = ["ABSENT", "Daemon", "alive", "look"]

PATIENCE: Final = 3.0
"""seconds for an answer on the control socket, which takes milliseconds"""


class Daemon(NamedTuple):
    """The daemon's answers. runs: it listens, though it may not answer."""

    runs: bool
    status: Mapping[str, Any]
    members: list[Mapping[str, Any]]
    stopped: int = 0
    """its process, if a signal has stopped it"""


ABSENT: Final = Daemon(False, {}, [])


def look(home: Path) -> Daemon:
    """Ask the daemon of `home`."""
    if not runs(home):
        return ABSENT
    try:
        status = ask(home, "status", timeout=PATIENCE)
        return Daemon(True, status, ask(home, "members", timeout=PATIENCE).get("members") or [])
    except UnreachableError:
        return Daemon(True, {}, [], _stopped(home))


def alive(home: Path, daemon: Daemon) -> list[Finding]:
    """Findings about the daemon."""
    if not daemon.runs:
        known = absence(home)
        said = "does not run" if known is None else f"does not run: {known.seen}"
        if known is None and (home / RUN).exists() and read_about(home) is None:
            do = "`gossipdp up -- CMD` starts it again, unless this peer has left for good"
            return [yellow("daemon", "daemon-down", f"{said}, but this home belongs to a run", do)]
        return [grey("daemon", said, "" if known is None else known.do)]
    if daemon.stopped:
        do = f"`kill -CONT {daemon.stopped}` lets it go on; look for what sent SIGSTOP: a debugger, Ctrl-Z, a scheduler"
        said = f"process {daemon.stopped} is stopped by a signal, so this peer neither answers nor exchanges"
        return [red("daemon", "daemon-stopped", said, do)]
    if not daemon.status:
        do = f"see the end of {home / 'log'}, and if the host swaps; after `kill`, the supervisor restarts the daemon"
        return [red("daemon", "daemon-hangs", f"does not answer within {PATIENCE:g} s", do)]
    return [_verdict(daemon.status), *_training(daemon.status)]


def _stopped(home: Path) -> int:
    """The daemon's process if a signal has stopped it, else 0. The kernel knows who listens on the control socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            with address(socket_path(home)) as where:
                probe.connect(where)
            pid, _, _ = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            return pid if psutil.Process(pid).status() == psutil.STATUS_STOPPED else 0
        except (OSError, psutil.Error):
            return 0


def _verdict(status: Mapping[str, Any]) -> Finding:
    verdict = status.get("verdict") or {}
    kind = next((kind for kind in STATES if kind.name == verdict.get("state")), None)
    light = {"red": Light.RED, "green": Light.GREEN}.get("" if kind is None else kind.colour, Light.YELLOW)
    if light is Light.YELLOW and kind is not None and kind.exit_code >= 10:
        light = Light.GREEN  # such as alone: nothing is to be mended
    do = "; ".join(verdict.get("do") or ())
    fault = f"peer-{verdict.get('state')}" if light is not Light.GREEN else ""
    said = str(verdict.get("text") or "no verdict").partition("; do: ")[0]
    return Finding("daemon", light, said, do, fault)


def _training(status: Mapping[str, Any]) -> list[Finding]:
    if status.get("training") != "attached":
        return [grey("training", "no training process is attached")]
    stall = status.get("stall")
    waits = "" if stall is None else f"; {stall:.1%} of its time lately is spent in gossipdp"
    said = f"attached, {status.get('steps') or 0:,} steps{waits}"
    exchange = status.get("last_exchange") or {}
    told = "none yet" if not exchange else f"{exchange.get('chunks')} of {exchange.get('of')} chunks averaged"
    if recent := status.get("recent_exchanges"):
        told += f", {duration(recent[0]['ago'])} ago"
    ratio = status.get("consensus_ratio")
    findings = [
        yellow("training", "stall", said, 'see docs/training.md: what "training waits" means')
        if stall is not None and stall > MOST_STALL
        else fine("training", said),
        fine("last exchange", told) if exchange else grey("last exchange", told),
    ]
    if ratio is not None:
        do = "let hosts exchange more often ([exchange] every), or look for a host whose link is too slow"
        wide = yellow("agreement", "apart", f"{ratio:.1f} times the usual distance of replicas", do)
        findings.append(wide if ratio > WIDE else fine("agreement", f"consensus ratio {ratio:.1f}"))
    return findings
