"""Named points at which a test may have this process killed, as a power cut would: `fail at`, never mocked.

`GOSSIPDP_KILL_AT` names a point and how many times it must have been passed: ``chunk 7 sent``, ``ACK sent@3``,
``outer step half done``. Unset, which is the normal state, nothing here costs anything. Nothing else may read it.
"""

from __future__ import annotations

import os
import signal

__all__ = ["FaultPoint"]


class FaultPoint:
    """Counts passages of one named point and kills this process at the one asked for."""

    def __init__(self, spec: str) -> None:
        name, _, count = spec.partition("@")
        self._name, self._left = name.strip(), int(count or 1)

    @classmethod
    def from_environment(cls) -> FaultPoint | None:
        spec = os.environ.get("GOSSIPDP_KILL_AT", "")
        return cls(spec) if spec else None

    def passed(self, name: str) -> None:
        """This process has got to `name`."""
        if name == self._name:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
