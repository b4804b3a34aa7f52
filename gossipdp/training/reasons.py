"""Tells the daemon the errors of gossipdp here: what ends this process, makes it train alone, or is a warning.

An exit code alone does not tell a refusal of gossipdp from a script's own end. Nothing here waits for the daemon, and
without one nothing is told.
"""

from __future__ import annotations

from pathlib import Path

from gossipdp.errors import GossipdpError, UnreachableError
from gossipdp.runtime import link as links
from gossipdp.training.messages import log

__all__ = ["tell", "tell_lost", "warn"]

MOST_TEXT = 1000
"""characters of a message"""


def tell(
    home: Path | None, error: GossipdpError, *, ends: bool = False, alone: bool = False, lost_steps: int = 0
) -> None:
    """Tell the daemon of `home` an error of this process.

    Args:
        home: None if gossip is off.
        ends: the process ends because of it.
        alone: it trains on, and nothing of that reaches the network.
        lost_steps: steps trained alone that no earlier message counted.
    """
    if home is None:
        return
    text, code = _said(error), error.exit_code if ends or alone else 0
    try:
        link = links.Link.connect(home)
    except (UnreachableError, OSError):
        return
    link.send(links.Reason(links.LINK_VERSION, error.code, text[:MOST_TEXT], code, alone, lost_steps))
    link.close()


def warn(error: GossipdpError, home: Path | None = None) -> None:
    """Log an error that does not end training, and tell it the daemon: the script may have silenced the log."""
    log.warning("%s %s; do: %s", error.code, _said(error), error.do)
    tell(home, error)


def tell_lost(home: Path | None, error: GossipdpError, steps: int, *, alone: bool) -> None:
    """Tell the daemon that training has ended, and that its last `steps` steps are in no model of the network.

    Args:
        error: why.
        alone: as of `tell`. False: the daemon finishes the run without them.
    """
    cause = f"training has ended, and {steps} of its steps reached no other peer"
    tell(home, type(error)(error.code, cause, seen=_said(error)), alone=alone, lost_steps=steps)


def _said(error: GossipdpError) -> str:
    return f"{error.cause}: {error.seen}" if error.seen else error.cause
