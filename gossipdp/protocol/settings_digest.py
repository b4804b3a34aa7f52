"""What all peers of a network must have alike, in 16 bytes: four for all of it, and two for each key.

Two peers compare them before they exchange anything (GD-303), and from the bytes of its keys either can name what
differs. Values are not told. Which keys these are is the configuration's business.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

__all__ = ["digest_of", "keys_apart", "unlike"]

ALL: Final = 4
EACH: Final = 2
MOST: Final = 6
"""keys that there is room for"""


def digest_of(settings: Mapping[str, str]) -> bytes:
    """16 bytes that are equal if the settings are. settings: key -> value as text; the first says what the others mean.

    Raises:
        ValueError: there are more than MOST.
    """
    if len(settings) > MOST:
        raise ValueError(f"{len(settings)} settings, limit {MOST}")
    rows = [f"{key}={value}" for key, value in settings.items()]
    each = b"".join(_hash(row, EACH) for row in rows)
    return _hash("\n".join(rows), ALL) + each.ljust(EACH * MOST, b"\0")


def keys_apart(mine: bytes, theirs: bytes, keys: Sequence[str]) -> list[str]:
    """Which of `keys`, in the order of the settings; the first alone if it differs, for the others are its own."""
    places = range(ALL, ALL + EACH * len(keys), EACH)
    apart = [key for key, at in zip(keys, places, strict=True) if mine[at : at + EACH] != theirs[at : at + EACH]]
    return apart[:1] if apart and apart[0] == keys[0] else apart


def unlike(who: str, mine: bytes, theirs: bytes, keys: Sequence[str]) -> str:
    """The text of GD-303."""
    names = ", ".join(keys_apart(mine, theirs, keys))
    return f"{who} runs with other settings than this peer{names and f' ({names})'}: see `gossipdp config show` on both"


def _hash(text: str, size: int) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=size, person=b"gossipdp setting").digest()
