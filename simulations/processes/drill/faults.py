"""The faults of a drill. Each does something to one host, can be undone, and has words by which a tool names it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from simulations.processes.drill.town import Town
from simulations.processes.namespaces.processes import Host

__all__ = ["FAULTS", "Fault"]

Undo = Callable[[], object]


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    name: says in the answers of the drill which fault it was.
    inject: does it to a host, and returns what undoes it.
    words: pattern of the text by which a tool names the cause; `{name}` and `{address}` are those of the host.
    seconds: for which it is looked at.
    """

    name: str
    inject: Callable[[Town, Host], Undo]
    words: str
    seconds: float = 60.0


def _killed(town: Town, host: Host) -> Undo:
    for pid in town.place(host).processes():
        os.kill(pid, signal.SIGKILL)
    return lambda: town.start(host)


def _stopped(town: Town, host: Host) -> Undo:
    pid = host.children()["daemon"]
    os.kill(pid, signal.SIGSTOP)
    return lambda: os.kill(pid, signal.SIGCONT)


def _cut(town: Town, host: Host) -> Undo:
    town.lab.unplug(town.place(host))
    return lambda: town.lab.plug(town.place(host))


def _slow(town: Town, host: Host) -> Undo:
    town.lab.set_rate(town.place(host), "500kbit", burst="4kb", queue="1s")
    return lambda: town.lab.set_rate(town.place(host), "100mbit")


def _filtered(town: Town, host: Host, chain: str, *match: str) -> Undo:
    rule = [*match, "-j", "DROP"]
    subprocess.run(town.place(host).command(["iptables", "-w", "-I", chain, *rule]), check=True)
    return lambda: subprocess.run(town.place(host).command(["iptables", "-w", "-D", chain, *rule]), check=True)


def _port(town: Town, host: Host) -> Undo:
    return _filtered(town, host, "INPUT", "-p", "tcp", "--dport", "4710")


def _black_hole(town: Town, host: Host) -> Undo:
    """A router that loses large packets: on the cable alone, and each packet by itself."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(town.place(host).single_packets())
        large = ["-o", "eth0", "-p", "tcp", "-m", "length", "--length", "1301:"]
        stack.callback(_filtered(town, host, "OUTPUT", *large))
        return stack.pop_all().close


def _full_disk(town: Town, host: Host) -> Undo:
    filler = host.home / "filler"
    subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=64k"], capture_output=True, check=False)
    return filler.unlink


def _ordered(word: str) -> Callable[[Town, Host], Undo]:
    def inject(town: Town, host: Host) -> Undo:
        town.orders(host).write_text(word)

        def undo() -> None:
            town.orders(host).unlink()
            if word == "nan":
                os.kill(host.children()["training"], signal.SIGKILL)  # the supervisor starts it anew
            elif host.supervisor is not None and host.supervisor.code is not None:
                town.start(host)

        return undo

    return inject


def _banned(town: Town, host: Host) -> Undo:
    founder = town.hosts[0]
    told = town.tool(founder, "members", "ban", host.name, "--reason", "drill")
    assert "is banned" in told, told
    return lambda: town.tool(founder, "members", "unban", host.name)


FAULTS: Final = (
    Fault("all processes killed, as by loss of power", _killed, r"{name} failed|no daemon runs|was killed"),
    Fault("daemon stopped (SIGSTOP)", _stopped, r"stopped|does not answer"),
    Fault("cable unplugged", _cut, r"no other member is alive|{name} failed"),
    Fault("link of 0.5 Mbit/s", _slow, r"slow|[kM]bit/s"),
    Fault("firewall drops the port", _port, r"drops|no member can dial|firewall"),
    Fault("large packets are lost", _black_hole, r"large packets|MTU|WRONG +packets"),
    Fault("disk full", _full_disk, r"No space left|\d MB free"),
    Fault("NaN in the model of training", _ordered("nan"), r"not used: nan|NaN"),
    Fault("training crashes at each start", _ordered("crash"), r"training has ended|GD-316"),
    Fault("training hangs", _ordered("hang"), r"made no round", 170.0),
    Fault("banned by the operator", _banned, r"operator has banned|banned"),
)
