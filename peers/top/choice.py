"""What the user has chosen in the live view, and what each key changes. Nothing here may read a terminal or a clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

__all__ = ["SORTS", "Choice", "Row", "keys", "pressed", "shown"]

Row = Mapping[str, Any]
SORTS: Final = (
    ("name", False),
    ("round", True),
    ("samples_per_second", True),
    ("loss", False),
    ("rtt", True),
    ("received", True),
    ("last_exchange", True),
)
"""keys of a member's row, and whether the largest comes first"""
ESCAPES: Final = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"\x1b": "escape",
    b"\r": "enter",
    b"\n": "enter",
    b"\x7f": "delete",
    b"\x08": "delete",
    b"\x03": "q",
}
LONGEST: Final = 40
"""characters of a filter"""


@dataclass(frozen=True, slots=True)
class Choice:
    """sort: index in `SORTS`. at: the marked row. wanted: part of the names that are shown."""

    sort: int = 0
    at: int = 0
    wanted: str = ""
    typing: bool = False
    """the keys are letters of `wanted`"""
    opened: bool = False
    """the marked member is shown alone"""
    ended: bool = False


def keys(data: bytes) -> list[str]:
    """The keys in what a terminal sent. Sequences that are not known are left out."""
    if data in ESCAPES:
        return [ESCAPES[data]]
    if data.startswith(b"\x1b"):
        return []
    return [ESCAPES.get(bytes([byte]), chr(byte)) for byte in data if 32 <= byte < 127 or bytes([byte]) in ESCAPES]


def pressed(choice: Choice, key: str, rows: int) -> Choice:
    """The choice after `key`, with this number of rows on the screen."""
    if choice.typing:
        return _typed(choice, key)
    match key:
        case "q":
            return replace(choice, ended=True)
        case "escape":
            return replace(choice, opened=False) if choice.opened else replace(choice, wanted="")
        case "up" | "k":
            return replace(choice, at=max(0, min(choice.at, rows - 1) - 1))
        case "down" | "j":
            return replace(choice, at=max(0, min(choice.at + 1, rows - 1)))
        case "enter":
            return replace(choice, opened=not choice.opened)
        case "s":
            return replace(choice, sort=(choice.sort + 1) % len(SORTS), at=0)
        case "/":
            return replace(choice, typing=True, opened=False, wanted="", at=0)
    return choice


def _typed(choice: Choice, key: str) -> Choice:
    if key in ("enter", "escape"):
        return replace(choice, typing=False, wanted="" if key == "escape" else choice.wanted)
    if key == "delete":
        return replace(choice, wanted=choice.wanted[:-1])
    return replace(choice, wanted=(choice.wanted + key)[:LONGEST]) if len(key) == 1 else choice


def shown(choice: Choice, rows: Sequence[Row]) -> list[Row]:
    """The rows that are wanted, sorted. Rows without the value come last."""
    key, largest = SORTS[choice.sort]
    wanted = choice.wanted.casefold()
    found = [row for row in rows if wanted in f"{row.get('name')} {row.get('state')} {row.get('id')}".casefold()]
    have = [row for row in found if row.get(key) is not None]
    return sorted(have, key=lambda row: row[key], reverse=largest) + [row for row in found if row.get(key) is None]
