"""The base of all events, and the text for an operator."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Event", "Notice"]


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events."""


@dataclass(frozen=True, slots=True)
class Notice(Event):
    """A text that the operator should read."""

    code: str
    """GD-nnn"""
    text: str
