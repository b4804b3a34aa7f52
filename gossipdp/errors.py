"""The errors of gossipdp, and their exit codes.

    GossipdpError
    ├── ConfigError            GD-3xx / usage: a mistake of the operator            exit 3
    ├── UnreachableError       GD-1xx: no peer answers at the given addresses       exit 4
    ├── RefusedError           GD-2xx: a peer answered and refused                  exit 5
    ├── MismatchError          GD-3xx: two peers that cannot train together         exit 6
    ├── HardwareError          GD-5xx: a fault of this host                         exit 7
    ├── DataError              GD-6xx: a checkpoint or a data file                  exit 8
    ├── LocalProtocolError     this process called the protocol out of order: a bug
    └── RemoteProtocolError    a peer sent what the protocol does not allow

A busy port (GD-104) is an UnreachableError too, because it may pass. A daemon that is a copy of a live one (GD-205)
exits with 9, and a daemon that should be restarted exits with 75.

An error has four parts: a code, the cause in one sentence, what was observed, and what to do. Its text ends with the
command that tells more. Nothing here may import another module of gossipdp, print, or log.
"""

from __future__ import annotations

import sys

__all__ = [
    "RETRY",
    "ConfigError",
    "DataError",
    "GossipdpError",
    "HardwareError",
    "LocalProtocolError",
    "MismatchError",
    "RefusedError",
    "RemoteProtocolError",
    "UnreachableError",
    "refuse_other_systems",
    "refused_here",
]

RETRY = 75
"""Exit code (EX_TEMPFAIL) of a daemon whose next start may work."""


class GossipdpError(Exception):
    """An error that an operator can act on.

    Args:
        code: stable identifier, such as ``GD-101``, listed in `gossipdp.error_codes`, or ``usage``.
        cause: one sentence without a full stop.
        seen: what was observed (addresses, values, names), or "".
        do: what to do, or "".
    """

    exit_code = 70

    def __init__(self, code: str, cause: str, *, seen: str = "", do: str = "") -> None:
        self.code, self.cause, self.seen, self.do = code, cause, seen, do
        super().__init__(code, cause, seen, do)

    def __str__(self) -> str:
        return f"{self.code} {self.text}"

    @property
    def text(self) -> str:
        """All but the code."""
        text = self.cause
        if self.seen:
            text += f"\n  seen: {self.seen}"
        if self.do:
            text += f"\n  do:   {self.do}"
        if self.code.startswith("GD-"):
            text += f"\n  more: gossipdp explain {self.code}"
        return text


class ConfigError(GossipdpError):
    exit_code = 3


class UnreachableError(GossipdpError):
    exit_code = 4


class RefusedError(GossipdpError):
    exit_code = 5


class MismatchError(GossipdpError):
    exit_code = 6


class HardwareError(GossipdpError):
    exit_code = 7


class DataError(GossipdpError):
    exit_code = 8


def refuse_other_systems(system: str = sys.platform) -> None:
    """Raise GD-510 where gossipdp cannot run.

    Raises:
        HardwareError: the operating system is not Linux.
    """
    if system != "linux":
        do = "use WSL2" if system == "win32" else "use a Linux host, or a Linux container"
        raise HardwareError("GD-510", "gossipdp runs on Linux alone", seen=system, do=do)


def refused_here(error: OSError) -> HardwareError:
    """GD-505: the operating system refused an operation."""
    do = "check the disk or device that it names"
    if isinstance(error, PermissionError):
        do = "let this user read and write there, or name another directory"
    return HardwareError("GD-505", "this host refused", seen=str(error), do=do)


class LocalProtocolError(Exception):
    """The caller broke the contract of a state machine: a bug."""


class RemoteProtocolError(Exception):
    """A peer sent what the protocol does not allow. The message is counted and dropped."""
