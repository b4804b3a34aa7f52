"""Named points at which a test may have a process killed, as a power cut would: `fail at`, never mocked.

`GOSSIPDP_KILL_AT` names a point, how many times it must have been passed, who dies there if not this process, and a
file without which nobody does: ``chunk 7 sent``, ``ACK sent@3``, ``training: outer step half done``,
``both: ACK sent if /tmp/now``. Unset, which is the normal state, nothing here costs anything. Nothing else may read it.
"""

from __future__ import annotations

import os
import signal

__all__ = ["FaultPoint"]

VICTIMS = ("training", "both")


class FaultPoint:
    """Counts passages of one named point, and kills at the one asked for.

    Args:
        spec: what the variable says.
    """

    def __init__(self, spec: str) -> None:
        victim, colon, point = spec.partition(":")
        self._victim, point = (victim.strip(), point) if colon else ("", spec)
        if colon and self._victim not in VICTIMS:
            raise ValueError(f"GOSSIPDP_KILL_AT={spec}: who dies is one of {', '.join(VICTIMS)}, or this process")
        point, _, self._file = point.partition(" if ")
        name, _, count = point.partition("@")
        self._name, self._left = name.strip(), int(count or 1)
        self.training = 0
        """the attached training process, 0 while there is none"""

    @classmethod
    def from_environment(cls) -> FaultPoint | None:
        spec = os.environ.get("GOSSIPDP_KILL_AT", "")
        return cls(spec) if spec else None

    def passed(self, name: str) -> None:
        """This process has got to `name`."""
        if name != self._name or (self._victim and not self.training):
            return
        if self._file and not os.path.exists(self._file):
            return
        self._left -= 1
        if self._left == 0:
            if self._victim:
                os.kill(self.training, signal.SIGKILL)
            if self._victim != "training":
                os.kill(os.getpid(), signal.SIGKILL)
