"""Two live daemons with one identity, made by copying a home or a machine with one in it: which of them goes on.

The one that was started first, by the hosts' clocks: whoever comes second ends, with GD-205. If others have heard the
second one's higher start number, they take the first for its past; then it starts anew with a number that is higher by
far. Both know of each other by a hello that only the key's holder can say. No file or socket may be touched here.
"""

from __future__ import annotations

import time
from typing import Final

from gossipdp.errors import GossipdpError, RefusedError
from gossipdp.runtime.network.identity import started_at
from gossipdp.runtime.observability.notices import DO

__all__ = ["AHEAD", "CopyError", "OvertakenError", "judge"]

AHEAD: Final = 1000
"""starts; a copy that is started again and again does not soon catch up"""


class CopyError(RefusedError):
    """This daemon is the second one; no other start cures it."""

    exit_code = 9

    def __init__(self, seen: str) -> None:
        super().__init__("GD-205", "this identity is already live elsewhere", seen=seen, do=DO["GD-205"])


class OvertakenError(RefusedError):
    """This daemon was first, and is to be started again, its starts counted from `incarnation`."""

    def __init__(self, incarnation: int, seen: str) -> None:
        cause = "a copy of this home was live, and others take this one for its past: it starts anew"
        super().__init__("GD-205", cause, seen=seen, do=DO["GD-205"])
        self.incarnation = incarnation


def judge(mine: tuple[int, bytes], copy: tuple[int, bytes], address: str) -> GossipdpError | None:
    """What to end with, having met a copy at `address`; None: go on.

    Args:
        mine, copy: incarnation and start of each.
    """
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(started_at(copy[1])))
    seen = f"one at {address}, live since {when}, start {copy[0]} of its home; this is start {mine[0]}"
    if copy[1] <= mine[1]:  # a machine copied while it ran has two of one start, and no first
        return CopyError(seen)
    return OvertakenError(copy[0] + AHEAD, seen) if copy[0] > mine[0] else None
