"""Two live daemons with one identity, from a copied home or machine image: which of them goes on.

The daemon that started first, by the hosts' clocks, goes on. The other ends with GD-205. If members have seen a higher
incarnation of the copy, they take the first daemon for its past. The first then starts again with a much higher
incarnation. The two know of each other by a hello that needs the key. No file or socket may be touched here.
"""

from __future__ import annotations

import time
from typing import Final

from gossipdp.error_codes import ADVICE
from gossipdp.errors import GossipdpError, RefusedError
from gossipdp.runtime.network.incarnation import started_at

__all__ = ["AHEAD", "CopyError", "OvertakenError", "judge"]

AHEAD: Final = 1000
"""starts added to the copy's count, so that a copy that restarts often does not soon catch up"""


class CopyError(RefusedError):
    """This daemon is the second one. Another start does not help."""

    exit_code = 9

    def __init__(self, seen: str) -> None:
        super().__init__("GD-205", "this identity is already live elsewhere", seen=seen, do=ADVICE["GD-205"])


class OvertakenError(RefusedError):
    """This daemon was first, and must start again with its starts counted from `incarnation`."""

    def __init__(self, incarnation: int, seen: str) -> None:
        cause = "a copy of this home was live, and members mistake this daemon for an older start: it restarts"
        super().__init__("GD-205", cause, seen=seen, do=ADVICE["GD-205"])
        self.incarnation = incarnation


def judge(mine: tuple[int, bytes], copy: tuple[int, bytes], address: str) -> GossipdpError | None:
    """What this daemon does after it met a copy at `address`.

    Args:
        mine: incarnation and start of this daemon.
        copy: incarnation and start of the copy.

    Returns:
        The error to end with; None to go on.
    """
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(started_at(copy[1])))
    seen = f"the daemon at {address} has been live since {when}, start {copy[0]} of its home; this is start {mine[0]}"
    if copy[1] <= mine[1]:  # a machine copied while it ran has two daemons of one start, and none is first
        return CopyError(seen)
    return OvertakenError(copy[0] + AHEAD, seen) if copy[0] > mine[0] else None
