"""Tells the daemon the errors of gossipdp here: what ends this process, makes it train alone, or cannot be written.

An exit code alone does not tell a refusal of gossipdp from a script's own end. Nothing here waits for the daemon, and
without one nothing is told.
"""

from __future__ import annotations

from pathlib import Path

from gossipdp.errors import GossipdpError, UnreachableError
from gossipdp.runtime import link as links

__all__ = ["tell", "tell_lost"]

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
    text = f"{error.cause}: {error.seen}" if error.seen else error.cause
    code = error.exit_code if ends or alone else 0
    try:
        link = links.Link.connect(home)
    except (UnreachableError, OSError):
        return
    link.send(links.Reason(links.LINK_VERSION, error.code, text[:MOST_TEXT], code, alone, lost_steps))
    link.close()


def tell_lost(home: Path | None, error: GossipdpError, steps: int, *, alone: bool) -> None:
    """Tell the daemon that training has ended, and that its last `steps` steps are in no model of the network.

    Args:
        error: why.
        alone: as of `tell`. False: the daemon finishes the run without them.
    """
    cause = f"training has ended, and {steps} of its steps reached no other peer"
    seen = f"{error.cause}: {error.seen}" if error.seen else error.cause
    tell(home, type(error)(error.code, cause, seen=seen), alone=alone, lost_steps=steps)
