"""The state machine of `Bootstrap`, as a table. The page docs/design/protocol.md shows `bootstrap_diagram`."""

from __future__ import annotations

import enum
from typing import Final

from gossipdp.protocol.state_machine import Table, diagram

__all__ = ["BOOTSTRAP", "Action", "Event", "Phase", "bootstrap_diagram"]


class Phase(enum.Enum):
    WAITING = "Waiting"
    """The daemon has not said yet whether this peer founds or joins."""
    FOUNDING = "Founding"
    """The first training process gives the network its model, or has given it."""
    SEEKING = "Seeking"
    """The peer fetches, or waits for members that may have something later than its own."""
    RESTORING = "Restoring"
    """The driver reads the newest checkpoint."""
    TAKING_OVER = "TakingOver"
    """The parameters of a live training process are read."""
    READY = "Ready"
    """The model is here."""


class Event(enum.Enum):
    FOUND = "told to found"
    JOIN = "told to join"
    FETCHED = "the model of a member is complete"
    CHECKPOINT_WINS = "no member's model goes before its checkpoint"
    PROCESS_WINS = "no member's model goes before its live training process"
    RESTORED = "the checkpoint is read"
    EARLIER = "only an earlier checkpoint could be read, and a member's may go before it"
    UNREADABLE = "no checkpoint could be read"
    TAKEN = "the parameters are read"
    NOT_FINITE = "the parameters have NaN or Inf"


class Action(enum.Enum):
    RESTORE = "read it"
    TAKE_OVER = "read its parameters"
    RESTART = "drop what was fetched"
    FORGET = "claim no checkpoint"
    DISMISS = "claim no process"
    END = "stop asking"


BOOTSTRAP: Final[Table[Phase, Event, Action]] = {
    (Phase.WAITING, Event.FOUND): (Phase.FOUNDING, None),
    (Phase.WAITING, Event.JOIN): (Phase.SEEKING, None),
    (Phase.SEEKING, Event.FETCHED): (Phase.READY, Action.END),
    (Phase.SEEKING, Event.CHECKPOINT_WINS): (Phase.RESTORING, Action.RESTORE),
    (Phase.SEEKING, Event.PROCESS_WINS): (Phase.TAKING_OVER, Action.TAKE_OVER),
    (Phase.RESTORING, Event.RESTORED): (Phase.READY, Action.END),
    (Phase.RESTORING, Event.EARLIER): (Phase.SEEKING, Action.RESTART),
    (Phase.RESTORING, Event.UNREADABLE): (Phase.SEEKING, Action.FORGET),
    (Phase.TAKING_OVER, Event.TAKEN): (Phase.READY, Action.END),
    (Phase.TAKING_OVER, Event.NOT_FINITE): (Phase.SEEKING, Action.DISMISS),
}


def bootstrap_diagram() -> str:
    """The table as a Mermaid diagram."""
    return "\n".join(["stateDiagram-v2", *("    " + line for line in diagram(BOOTSTRAP, Phase.WAITING))])
