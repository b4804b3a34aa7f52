"""The settings that all peers of a network must share, as a digest of 16 bytes: four for all, and two for each key.

Two peers compare digests before they exchange anything (GD-303). The bytes of each key let either name what differs.
The digest does not reveal values. The configuration decides which keys count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

__all__ = ["difference", "digest_of", "keys_apart"]

ALL: Final = 4
EACH: Final = 2
MOST: Final = 6
"""most keys in a digest"""


def digest_of(settings: Mapping[str, str]) -> bytes:
    """The digest of `settings`.

    Args:
        settings: key -> value as text. The first key decides the meaning of the others.

    Returns:
        16 bytes, equal for equal settings.

    Raises:
        ValueError: there are more than MOST settings.
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


def difference(peer: str, mine: bytes, theirs: bytes, keys: Sequence[str]) -> str:
    """The text of GD-303: `peer` has the digest `theirs`."""
    names = ", ".join(keys_apart(mine, theirs, keys))
    return (
        f"{peer} runs with other settings than this peer{names and f' ({names})'}: see `gossipdp config show` on both"
    )


def _hash(text: str, size: int) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=size, person=b"gossipdp setting").digest()
