"""The number and the mark of one start of a daemon, by which its starts and its copies are told apart."""

from __future__ import annotations

import secrets
import struct
from pathlib import Path
from typing import Final

from gossipdp.errors import DataError
from gossipdp.runtime.network.key_files import replace_file

__all__ = ["INCARNATION_FILE", "count_from", "draw_start", "next_incarnation", "started_at"]

INCARNATION_FILE: Final = "incarnation"
_START: Final = struct.Struct(">I4s")


def next_incarnation(home: Path) -> int:
    """Count one more start of this peer. The new number is on the disk before this returns.

    Raises:
        DataError: GD-603, the counter is damaged. With a count from 1 every member would take this daemon for an
            earlier start of the same peer.
    """
    path = home / INCARNATION_FILE
    try:
        text = path.read_text("ascii").strip()
        if not text.isdigit() or int(text) >= 0xFFFF_FFFF:
            raise ValueError
        incarnation = int(text) + 1
    except FileNotFoundError:
        incarnation = 1
    except (OSError, ValueError):
        raise DataError(
            "GD-603",
            "the count of this peer's starts is damaged",
            seen=str(path),
            do="write a larger number into it than the incarnation in `gossipdp members --json` on another host",
        ) from None
    replace_file(path, b"%d\n" % incarnation)
    return incarnation


def draw_start(now: float) -> bytes:
    """The mark of a start at Unix time `now`, 8 bytes. Earlier starts compare as less, as far as clocks agree."""
    return _START.pack(int(now) & 0xFFFF_FFFF, secrets.token_bytes(4))


def started_at(start: bytes) -> int:
    """Unix time of a start, in seconds."""
    at: int = _START.unpack(start)[0]
    return at


def count_from(home: Path, incarnation: int) -> None:
    """Count on from `incarnation`: the next start gets a greater number."""
    replace_file(home / INCARNATION_FILE, b"%d\n" % min(incarnation, 0xFFFF_FFFE))
