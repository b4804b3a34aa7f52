"""The two state machines of `Rounds`, as tables.

`ROUNDS` says what the training process has, and what is done with its model and its snapshots. `SLOTS` says what
becomes of a sealed slot. Both run side by side. The page docs/design/algorithms.md shows `rounds_diagram`.
"""

from __future__ import annotations

import enum
from typing import Final

from gossipdp.protocol.state_machine import Table, diagram

__all__ = ["PASSES", "ROUNDS", "SLOTS", "Action", "Event", "Phase", "Slot", "rounds_diagram"]


class Phase(enum.Enum):
    """What the training process has."""

    ABSENT = "Absent"
    """There is none."""
    BOUND = "Bound"
    """Its buffers are bound. It has no model yet."""
    FOUNDING = "Founding"
    """Its x becomes the model."""
    KEEPING = "Keeping"
    """It keeps its x, which is checked."""
    MOVING = "Moving"
    """The anchor moves to its x."""
    ATTACHING = "Attaching"
    """Its x becomes the anchor."""
    READY = "Ready"
    """Its x is that of a session."""
    REFUSED = "Refused"
    """No model can be made of its x."""
    OPEN = "Open"
    """It has a session."""
    CHECKING = "Checking"
    """Its snapshot is checked."""
    STEPPING = "Stepping"
    """The outer step is made of its snapshot."""


class Slot(enum.Enum):
    """Where the sealed slot is."""

    FREE = "Free"
    """There is none."""
    SEALING = "Sealing"
    """The driver closes the open slot."""
    OUT = "Out"
    """The training process applies it."""
    APPLIED = "Applied"
    """It is applied. Its buffer is freed after the pass under way."""


class Event(enum.Enum):
    COMES = "a process attaches"
    FOUNDS = "it founds"
    KEEPS = "it keeps its x"
    STAYS = "it is still there"
    GONE = "it is gone"
    SUBMITS = "it submits a snapshot"
    DONE = "every chunk is done"
    NOT_FINITE = "NaN or Inf"
    MIXED = "corrections wait, and may go out"
    SEALED = "it has chunks, and is handed out"
    EMPTY = "it has no chunk, or there is no session"
    APPLIES = "the process has applied it"
    RESTS = "no pass is under way"


class Action(enum.Enum):
    BIND = "bind its buffers"
    UNBIND = "let its buffers go"
    FOUND = "the model is here"
    KEEP = "the model is its x"
    DISMISS = "it keeps no x"
    MEASURE = "measure how far x was"
    STEP = "count the round"
    OPEN = "open a session"
    REFUSE = "refuse the process (GD-402)"
    ACCEPT = "count its steps"
    DROP = "refuse the snapshot"
    TAKE = "count the round, free the snapshot"
    SEAL = "seal the open slot"
    RELEASE = "free its buffer"


PASSES: Final = {
    Phase.FOUNDING,
    Phase.KEEPING,
    Phase.MOVING,
    Phase.ATTACHING,
    Phase.CHECKING,
    Phase.STEPPING,
}
"""phases of jobs on every chunk, which run to their end: until then COMES, GONE, MIXED and RESTS wait"""

ROUNDS: Final[Table[Phase, Event, Action]] = {
    (Phase.ABSENT, Event.COMES): (Phase.BOUND, Action.BIND),
    (Phase.BOUND, Event.COMES): (Phase.BOUND, Action.BIND),
    (Phase.READY, Event.COMES): (Phase.BOUND, Action.BIND),
    (Phase.REFUSED, Event.COMES): (Phase.BOUND, Action.BIND),
    (Phase.OPEN, Event.COMES): (Phase.BOUND, Action.BIND),
    (Phase.BOUND, Event.FOUNDS): (Phase.FOUNDING, None),
    (Phase.BOUND, Event.KEEPS): (Phase.KEEPING, None),
    (Phase.BOUND, Event.STAYS): (Phase.ATTACHING, None),
    (Phase.FOUNDING, Event.DONE): (Phase.READY, Action.FOUND),
    (Phase.FOUNDING, Event.NOT_FINITE): (Phase.REFUSED, None),
    (Phase.KEEPING, Event.DONE): (Phase.MOVING, Action.KEEP),
    (Phase.KEEPING, Event.NOT_FINITE): (Phase.BOUND, Action.DISMISS),
    (Phase.MOVING, Event.DONE): (Phase.READY, Action.STEP),
    (Phase.ATTACHING, Event.DONE): (Phase.READY, Action.MEASURE),
    (Phase.READY, Event.STAYS): (Phase.OPEN, Action.OPEN),
    (Phase.REFUSED, Event.STAYS): (Phase.REFUSED, Action.REFUSE),
    (Phase.OPEN, Event.SUBMITS): (Phase.CHECKING, None),
    (Phase.CHECKING, Event.DONE): (Phase.STEPPING, Action.ACCEPT),
    (Phase.CHECKING, Event.NOT_FINITE): (Phase.OPEN, Action.DROP),
    (Phase.STEPPING, Event.DONE): (Phase.OPEN, Action.TAKE),
    (Phase.BOUND, Event.GONE): (Phase.ABSENT, Action.UNBIND),
    (Phase.READY, Event.GONE): (Phase.ABSENT, Action.UNBIND),
    (Phase.REFUSED, Event.GONE): (Phase.ABSENT, Action.UNBIND),
    (Phase.OPEN, Event.GONE): (Phase.ABSENT, Action.UNBIND),
}

SLOTS: Final[Table[Slot, Event, Action]] = {
    (Slot.FREE, Event.MIXED): (Slot.SEALING, Action.SEAL),
    (Slot.SEALING, Event.SEALED): (Slot.OUT, None),
    (Slot.SEALING, Event.EMPTY): (Slot.FREE, None),
    (Slot.OUT, Event.APPLIES): (Slot.APPLIED, None),
    (Slot.APPLIED, Event.RESTS): (Slot.FREE, Action.RELEASE),
    (Slot.OUT, Event.COMES): (Slot.FREE, None),
}


def rounds_diagram() -> str:
    """Both tables as one Mermaid diagram."""
    lines = ["stateDiagram-v2", "    state Rounds {"]
    lines += ["        " + line for line in diagram(ROUNDS, Phase.ABSENT)]
    lines += ["        --"]
    lines += ["        " + line for line in diagram(SLOTS, Slot.FREE)]
    return "\n".join([*lines, "    }"])
