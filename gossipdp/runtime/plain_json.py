"""JSON of values that may hold numpy's numbers, and JSON of files and sockets. Numpy may not be imported here."""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec

__all__ = ["decode", "encode", "parse"]

T = TypeVar("T")


def encode(value: object) -> bytes:
    """`value` as JSON. NaN and infinities become null. Raises TypeError for what JSON does not have."""
    return msgspec.json.encode(value, enc_hook=_plain)


def decode(text: bytes | bytearray | str, kind: type[T]) -> T:
    """The value in `text`, checked against the msgspec type `kind`. Raises ValueError, also for deep nesting."""
    try:
        return msgspec.json.decode(text, type=kind)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def parse(text: bytes | bytearray | str) -> Any:
    """The value in `text`, NaN and infinities too. Raises ValueError, also for deep nesting."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _plain(value: Any) -> Any:
    if callable(item := getattr(value, "item", None)):
        return item()
    raise TypeError(f"cannot send {type(value)}")
