"""Named points at which a test can kill a process, as a power cut would. Nothing is mocked.

`GOSSIPDP_KILL_AT` names a point, and optionally which passage of it counts, which process dies, and a file that must
exist: ``chunk 7 sent``, ``ACK sent@3``, ``training: outer step half done``, ``both: ACK sent if /tmp/now``. By default
the first passage counts and the process itself dies. Without the variable, which is the normal state, nothing happens.
"""

from __future__ import annotations

import os
import signal

__all__ = ["FaultPoint"]

VICTIMS = ("training", "both")


class FaultPoint:
    """Counts passages of one named point, and kills at the chosen one.

    Args:
        spec: value of the variable; "" for no point.
    """

    def __init__(self, spec: str) -> None:
        victim, colon, point = spec.partition(":")
        self._victim, point = (victim.strip(), point) if colon else ("", spec)
        if colon and self._victim not in VICTIMS:
            raise ValueError(f"GOSSIPDP_KILL_AT={spec}: the victim is one of {', '.join(VICTIMS)}, or this process")
        point, _, self._file = point.partition(" if ")
        name, _, count = point.partition("@")
        self._name, self._left = name.strip(), int(count or 1)
        self._training = 0
        """process id of the attached training process, 0 without one"""

    @classmethod
    def from_environment(cls) -> FaultPoint:
        return cls(os.environ.get("GOSSIPDP_KILL_AT", ""))

    def attached(self, pid: int) -> None:
        """Process `pid` is the training process now."""
        self._training = pid

    def detached(self) -> None:
        """There is no training process."""
        self._training = 0

    def passed(self, name: str) -> None:
        """This process has reached the point `name`."""
        if name != self._name or (self._victim and not self._training):
            return
        if self._file and not os.path.exists(self._file):
            return
        self._left -= 1
        if self._left == 0:
            if self._victim:
                os.kill(self._training, signal.SIGKILL)
            if self._victim != "training":
                os.kill(os.getpid(), signal.SIGKILL)
