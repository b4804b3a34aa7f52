"""Keeps the decisions of the network's operator in a peer's home, so that they hold from the next start on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gossipdp.errors import DataError
from gossipdp.protocol.wire.messages import Decision
from gossipdp.runtime.files import load_state, save_state, set_aside

__all__ = ["FILE", "load_decisions", "save_decisions"]

FILE: Final = "decisions.json"


def save_decisions(home: Path, decisions: Sequence[Decision]) -> None:
    """Keep `decisions` in `home`. Raises DataError GD-602."""
    save_state(home / FILE, list(decisions))


def load_decisions(home: Path) -> tuple[list[Decision], str]:
    """The decisions kept in `home`, and a notice if their file was damaged. Members tell them again."""
    try:
        return load_state(home / FILE, list[Decision]) or [], ""
    except DataError as error:
        return [], set_aside(home / FILE, error)
