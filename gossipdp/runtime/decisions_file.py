"""Keeps the decisions of the network's operator in a peer's home, so that they hold from the next start on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from gossipdp.errors import DataError
from gossipdp.protocol.wire.messages import Decision
from gossipdp.runtime.files import load_state, save_state, set_aside

__all__ = ["FILE", "load_decisions", "save_decisions"]

FILE: Final = "decisions.json"


def save_decisions(home: Path, decisions: Sequence[Decision]) -> None:
    """Keep `decisions` in `home`. Raises DataError GD-602."""
    save_state(home / FILE, list(decisions))


def load_decisions(home: Path) -> tuple[list[Decision], str]:
    """The decisions kept in `home`, and a notice if some could not be read. Members tell those again."""
    try:
        kept: list[Any] = load_state(home / FILE, list[Any]) or []
    except DataError as error:
        return [], set_aside(home / FILE, error)
    read = [decision for each in kept if (decision := _decision(each)) is not None]
    lost = len(kept) - len(read)
    return read, f"{home / FILE}: {lost} of {len(kept)} decisions of the operator cannot be read" if lost else ""


def _decision(kept: Any) -> Decision | None:
    try:
        return msgspec.convert(kept, Decision)
    except (msgspec.ValidationError, ValueError):
        return None
