"""A mark of a run: what was asked for, what was measured, and whether it was met."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Check"]


@dataclass(frozen=True)
class Check:
    """One mark."""

    name: str
    mark: str
    measured: str
    passed: bool
