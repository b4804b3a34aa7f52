"""Keeps the decisions of the network's operator in a peer's home, so that they hold from the next start on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from gossipdp.errors import DataError
from gossipdp.protocol.wire.messages import Decision, Receipt
from gossipdp.runtime.files import load_state, save_state, set_aside

__all__ = ["FILE", "Kept", "load_decisions", "save_decisions"]

FILE: Final = "decisions.json"


class Kept(NamedTuple):
    """What a home has of the operator's decisions."""

    decisions: list[Decision]
    receipts: list[Receipt]
    damage: str = ""
    """a notice if some could not be read; members tell those again"""


def save_decisions(home: Path, decisions: Sequence[Decision], receipts: Sequence[Receipt]) -> None:
    """Keep `decisions` and `receipts` in `home`. Raises DataError GD-602."""
    save_state(home / FILE, [*decisions, *({"receipt": receipt} for receipt in receipts)])


def load_decisions(home: Path) -> Kept:
    """What `save_decisions` kept in `home`."""
    try:
        kept: list[Any] = load_state(home / FILE, list[Any]) or []
    except DataError as error:
        return Kept([], [], set_aside(home / FILE, error))
    read = [made for each in kept if (made := _read(each)) is not None]
    decisions = [made for made in read if isinstance(made, Decision)]
    receipts = [made for made in read if isinstance(made, Receipt)]
    lost = len(kept) - len(read)
    damage = f"{home / FILE}: {lost} of {len(kept)} decisions of the operator cannot be read" if lost else ""
    return Kept(decisions, receipts, damage)


def _read(kept: Any) -> Decision | Receipt | None:
    try:
        if isinstance(kept, dict):
            return msgspec.convert(kept["receipt"], Receipt)
        return msgspec.convert(kept, Decision)
    except (msgspec.ValidationError, ValueError, KeyError):
        return None
