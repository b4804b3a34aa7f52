"""JSON of values that may hold numpy's numbers. Numpy may not be imported here."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["encode"]


def encode(value: object) -> bytes:
    """`value` as JSON. NaN and infinities become null. Raises TypeError for what JSON does not have."""
    return msgspec.json.encode(value, enc_hook=_plain)


def _plain(value: Any) -> Any:
    if callable(item := getattr(value, "item", None)):
        return item()
    raise TypeError(f"cannot send {type(value)}")
