"""One child of the demo: its log, its status and the files it writes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gossipdp.errors import GossipdpError, HardwareError
from peers.finished import FINAL, MODEL, read_about

__all__ = ["Process"]

_RESTART = re.compile(rb" supervisor: (?:peer daemon|training command) .*; again in [\d.]+ s$")
"""the supervisor's line about a child that it will restart"""


@dataclass
class Process:
    """One child of the demo, and its files in `out`. `home` is None for the replica that trains alone."""

    name: str
    out: Path
    home: Path | None
    child: subprocess.Popen[bytes]
    status: dict[str, Any] = field(default_factory=dict)
    _restarts: int = 0
    _read: int = 0
    """bytes of `log` that `restarts` has read"""

    @property
    def log(self) -> Path:
        """Output of its processes."""
        return self.out / f"{self.name}.log"

    @property
    def losses(self) -> Path:
        return self.out / f"{self.name}.jsonl"

    @property
    def weights(self) -> Path:
        """The final model of a peer; the weights that the lone replica saves."""
        if self.home is not None:
            return self.home / FINAL / MODEL
        return self.out / f"{self.name}.safetensors"

    def final(self) -> dict[str, Any]:
        """What the peer says of its final model; empty for the lone replica."""
        return {} if self.home is None else read_about(self.home) or {}

    def last_line(self) -> dict[str, Any]:
        """The newest complete line of the training log with a training loss; empty if there is none."""
        try:
            with open(self.losses, "rb") as lines:
                lines.seek(max(0, lines.seek(0, os.SEEK_END) - 2000))
                complete = lines.read().split(b"\n")[:-1]
        except OSError:
            return {}
        lines_with_loss = [line for line in complete if line.startswith(b"{") and b'"loss"' in line]
        return json.loads(lines_with_loss[-1]) if lines_with_loss else {}

    def ask(self) -> None:
        """Update `status` from the daemon. Without a daemon the last status stays."""
        from peers.control import ask

        if self.home is not None and self.child.poll() is None:
            with contextlib.suppress(GossipdpError, OSError):
                self.status = ask(self.home, "status", timeout=2.0)

    def restarts(self) -> int:
        """Number of restarts of the daemon and the training command, as the supervisor logged them."""
        with open(self.log, "rb") as lines:
            lines.seek(self._read)
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                self._restarts += _RESTART.search(line.rstrip()) is not None
        return self._restarts

    def failed(self, cause: str) -> HardwareError:
        """GD-503 with the end of the log."""
        with open(self.log, "rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 2000))
            tail = log.read().decode(errors="replace").splitlines()[-12:]
        seen = "".join(f"\n    {line}" for line in tail) or " nothing"
        return HardwareError("GD-503", cause, seen=f"the end of its log:{seen}", do=f"see {self.log}")
