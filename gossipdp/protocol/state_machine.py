"""State machines as data: a table says which state an event leads to, and which action runs.

`diagram` draws a table for the design pages.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeAlias, TypeVar

from gossipdp.errors import LocalProtocolError

__all__ = ["Table", "diagram", "follow", "next_state"]

State = TypeVar("State", bound=enum.Enum)
Event = TypeVar("Event", bound=enum.Enum)
Action = TypeVar("Action", bound=enum.Enum)

Table: TypeAlias = Mapping[tuple[State, Event], tuple[State, Action | None]]
"""(state, event) -> (next state, action or None)"""


def follow(table: Table[State, Event, Action], state: State, event: Event) -> tuple[State, Action | None]:
    """The state after `event`, and the action to run. A state ignores an event that the table does not list for it."""
    return table.get((state, event), (state, None))


def next_state(table: Table[State, Event, Action], state: State, event: Event) -> tuple[State, Action | None]:
    """The state that `event` leads to, and the action.

    Raises:
        LocalProtocolError: the table has no such transition (a bug in the caller).
    """
    if (state, event) not in table:
        raise LocalProtocolError(f"{state} does not expect: {event.value}")
    return table[state, event]


def diagram(table: Table[State, Event, Action], start: State) -> list[str]:
    """The table as lines of a Mermaid state diagram. A label reads: event / action."""
    lines = [f"[*] --> {start.value}"]
    for (state, event), (after, action) in table.items():
        label = event.value if action is None else f"{event.value} / {action.value}"
        lines.append(f"{state.value} --> {after.value}: {label}")
    return lines
