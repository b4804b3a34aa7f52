"""What the supervisor asks the daemon: has the training command attached, is it saving; and to end the run."""

from __future__ import annotations

from pathlib import Path

from gossipdp.errors import GossipdpError
from peers.control import ask

__all__ = ["AttachWatch", "finish", "saving"]

ANSWER_WITHIN = 2.0
"""Seconds within which the daemon has to answer."""


class AttachWatch:
    """Whether the training command has attached to the daemon of `home` since its start."""

    def __init__(self, home: Path) -> None:
        self._trainer = self._parameters = 0
        self._home, self._before = home, ("", 0)
        self.other = 0
        """the process that was attached at the last look, though this start has not attached; 0 if there was none"""

    def begin(self) -> None:
        """Record a start of the training command."""
        self._before = self._counted()

    def seen(self) -> bool | None:
        """Whether it has attached. None if the daemon does not answer, or was restarted in between."""
        (run, before), (now, count) = self._before, self._counted()
        seen = count > before if now and now == run else None
        self.other = self._trainer if seen is False else 0
        return seen

    def parameters(self) -> int:
        """Size of the daemon's model, as it answers now or answered last; 0 without one."""
        self._counted()
        return self._parameters

    def _counted(self) -> tuple[str, int]:
        """Incarnation of the daemon, and the number of processes that have attached to it."""
        try:
            answer = ask(self._home, "status", timeout=ANSWER_WITHIN)
        except GossipdpError:
            return "", 0
        self._trainer = int(answer.get("trainer") or 0)
        self._parameters = int(answer.get("parameters") or 0)
        return str(answer.get("incarnation", "")), int(answer.get("attaches") or 0)


def saving(home: Path) -> bool:
    """Whether the daemon of `home` writes its last checkpoint, which may take longer than the grace."""
    try:
        return bool(ask(home, "status", timeout=ANSWER_WITHIN).get("saving"))
    except GossipdpError:
        return False


def finish(home: Path) -> bool:
    """Tell the daemon of `home` that training is over, so that it ends the run in order. False if it cannot be told."""
    try:
        ask(home, "finish", timeout=ANSWER_WITHIN, calls=False)
    except GossipdpError:
        return False
    return True
