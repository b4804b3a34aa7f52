"""State machines as data: a table says which state an event leads to, and which action runs.

`diagram` draws a table for the design pages.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Generic, TypeAlias, TypeVar

from gossipdp.errors import LocalProtocolError

__all__ = ["Machine", "Table", "diagram", "next_state"]

State = TypeVar("State", bound=enum.Enum)
Event = TypeVar("Event", bound=enum.Enum)
Action = TypeVar("Action", bound=enum.Enum)

Table: TypeAlias = Mapping[tuple[State, Event], tuple[State, Action | None]]
"""(state, event) -> (next state, action or None)"""


class Machine(Generic[State, Event, Action]):
    """One running state machine.

    Args:
        table: The transitions. A state ignores an event that the table does not list for it.
        start: The first state.
        actions: What each action of the table does, given the current time.
    """

    def __init__(
        self,
        table: Table[State, Event, Action],
        start: State,
        actions: Mapping[Action, Callable[[float], None]],
    ) -> None:
        self._table, self._actions = table, actions
        self.state = start

    def fire(self, event: Event, now: float) -> None:
        """Handle `event`. The state changes first, then the action runs."""
        self.state, action = self._table.get((self.state, event), (self.state, None))
        if action is not None:
            self._actions[action](now)


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
