"""What the supervisor asks the daemon: has training attached, why does it end, is it saving; and to end the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from gossipdp.errors import GossipdpError
from peers.control import ask

__all__ = ["AttachWatch", "Reason", "finish", "saving"]

ANSWER_WITHIN = 2.0
"""Seconds within which the daemon has to answer."""


class Reason(NamedTuple):
    """An error of gossipdp that ended the training command, as it told the daemon."""

    code: str
    text: str
    exit: int
    """exit code of the error"""
    alone: bool
    """the command trained on alone"""


class AttachWatch:
    """Whether the training command has attached to the daemon of `home` since its start, and why it ended."""

    def __init__(self, home: Path) -> None:
        self._answer: dict[str, Any] = {}
        self._parameters = 0
        self._home, self._before = home, ("", 0, 0)
        self.reason: Reason | None = None
        """what the training command told at the last look; None if it told nothing since its start"""
        self.other = 0
        """the process that was attached at the last look, though this start has not attached; 0 if there was none"""

    def begin(self, *, again: bool = False) -> None:
        """Record a start of the training command, and tell it the daemon. again: an earlier start has failed."""
        self._before = self._counted("started", again=again)

    def seen(self) -> bool | None:
        """Whether it has attached. None if the daemon does not answer, or was restarted in between."""
        (run, before, told_before), (now, count, told) = self._before, self._counted()
        seen = count > before if now and now == run else None
        self.other = int(self._answer.get("trainer") or 0) if seen is False else 0
        last = self._answer.get("reason") if seen is not None and told > told_before else None
        self.reason = Reason(last["code"], last["text"], last["exit"], last["alone"]) if last else None
        return seen

    def parameters(self) -> int:
        """Size of the daemon's model, as it answers now or answered last; 0 without one."""
        self._counted()
        return self._parameters

    def _counted(self, verb: str = "status", **about: bool) -> tuple[str, int, int]:
        """Incarnation of the daemon, and the numbers of processes that have attached and of reasons told to it."""
        try:
            self._answer = answer = ask(self._home, verb, timeout=ANSWER_WITHIN, **about)
        except GossipdpError:
            return "", 0, 0
        self._parameters = int(answer.get("parameters") or 0)
        counts = int(answer.get("attaches") or 0), int(answer.get("reasons") or 0)
        return str(answer.get("incarnation", "")), *counts


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
