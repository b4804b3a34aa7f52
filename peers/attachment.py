"""What the supervisor asks the daemon: whether the training command has attached, and whether it is saving."""

from __future__ import annotations

from pathlib import Path

from gossipdp.errors import GossipdpError
from peers.control import ask

__all__ = ["Attachment", "saving"]

ANSWER = 2.0
"""seconds that a daemon that is to leave may take to say that it is saving"""


class Attachment:
    """Whether the training command has attached to the daemon of `home` since it was started."""

    def __init__(self, home: Path) -> None:
        self._home, self._before = home, ("", 0)

    def begin(self) -> None:
        """It is started now."""
        self._before = self._counted()

    def seen(self) -> bool | None:
        """None: the daemon does not answer, or was started again since."""
        (run, before), (now, count) = self._before, self._counted()
        return count > before if now and now == run else None

    def _counted(self) -> tuple[str, int]:
        """Which daemon it is, and how many processes have attached to it."""
        try:
            answer = ask(self._home, "status", timeout=ANSWER)
        except GossipdpError:
            return "", 0
        return str(answer.get("incarnation", "")), int(answer.get("attaches") or 0)


def saving(home: Path) -> bool:
    """Does the daemon of `home` write its last checkpoint? Nothing else may take longer than the grace."""
    try:
        return bool(ask(home, "status", timeout=ANSWER).get("saving"))
    except GossipdpError:
        return False
