"""What tests need of a machine: programs of the table `.ci/programs`, and abilities such as to mount.

`lacks("promtool", "mounts")` says what this machine does not have. A test names its needs in the mark `needs`.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from simulations.processes.benchmarks.memory_limit import MemoryLimit
from simulations.processes.namespaces.hosts import Lab, LabError, Weather
from simulations.processes.namespaces.nats import Nat, behind

__all__ = ["ABILITIES", "PROGRAMS", "found", "lacks", "programs_of"]

TABLE: Final = Path(__file__).parents[2] / ".ci" / "programs"
FROM: Final = {"apt": "Debian's package", "apt-long": "Debian's package", "pip": "pip install", "other": "see"}


class Program(NamedTuple):
    names: tuple[str, ...]
    """any of them will do"""
    source: str
    """where to get it"""


def _programs() -> dict[str, Program]:
    rows = [line.split() for line in TABLE.read_text("utf-8").splitlines() if not line.startswith("#")]
    programs = [Program(tuple(names.split(",")), f"{FROM[place]} {package}") for names, place, package in rows]
    return {program.names[0]: program for program in programs}


PROGRAMS: Final = _programs()


class Ability(NamedTuple):
    try_out: Callable[[], None]
    """raises an error that says why it cannot be done here"""
    programs: tuple[str, ...] = ()
    root: bool = True


def _namespaces(weather: Weather | None = None) -> None:
    with Lab(1, weather=weather):
        pass


def _packet_filter() -> None:
    with Lab(1) as lab:
        _run(*lab.hosts[0].command(["iptables", "-w", "-A", "INPUT", "-p", "tcp", "-m", "length", "--length", "1301:"]))


def _nat() -> None:
    with Lab(1) as lab, behind(lab.hosts[0], Nat.DOUBLE):
        pass


def _mounts() -> None:
    with tempfile.TemporaryDirectory() as folder:
        _run("mount", "-t", "tmpfs", "none", folder)
        _run("umount", folder)


def _control_groups() -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            limit = MemoryLimit(1 << 30, process.pid)
        finally:
            process.kill()
            process.wait()
        limit.close()


def _packet_socket() -> None:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()


def _ipv6() -> None:
    socket.create_server(("::1", 0), family=socket.AF_INET6).close()


def _slurm() -> None:
    """Its daemons listen where this machine's name leads to, and both nodes have to be on loopback."""
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        address = "no address"
    if not address.startswith("127."):
        raise OSError(f"this machine's name leads to {address}, not to loopback")


SLURM: Final = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")
ABILITIES: Final = {
    "namespaces": Ability(_namespaces, ("ip", "tc")),
    "weather": Ability(lambda: _namespaces(Weather()), ("ip", "tc")),
    "packet filter": Ability(_packet_filter, ("ip", "tc", "iptables")),
    "NAT": Ability(_nat, ("ip", "tc", "iptables")),
    "mounts": Ability(_mounts, ("mount", "umount")),
    "control groups": Ability(_control_groups),
    "packet socket": Ability(_packet_socket),
    "IPv6": Ability(_ipv6, root=False),
    "Slurm": Ability(_slurm, SLURM),
    "docker compose": Ability(lambda: _run("docker", "compose", "version"), ("docker",), root=False),
}
"""what a test may need beside programs"""


def programs_of(need: str) -> tuple[str, ...]:
    """The programs of the table that a need is or includes."""
    return (need,) if need in PROGRAMS else ABILITIES[need].programs


def found(program: str) -> str:
    """Path of a program of the table; "" if it is not on PATH."""
    return next((path for name in PROGRAMS[program].names if (path := shutil.which(name))), "")


def lacks(*needs: str) -> str:
    """What this machine does not have of all these, and why; "" if it has all."""
    return "; ".join(reason for need in needs if (reason := _lack(need)))


@cache
def _lack(need: str) -> str:
    missing = [f"{name} ({PROGRAMS[name].source})" for name in programs_of(need) if not found(name)]
    reasons = [f"not on PATH: {', '.join(missing)}"] if missing else []
    if need in PROGRAMS:
        return "".join(reasons)
    ability = ABILITIES[need]
    if ability.root and os.geteuid() != 0:
        reasons.append("not root")
    if not reasons:
        try:
            ability.try_out()
        except (OSError, LabError) as error:
            reasons.append(" ".join(str(error).split()))
    return f"no {need} here: {'; '.join(reasons)}" if reasons else ""


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")
