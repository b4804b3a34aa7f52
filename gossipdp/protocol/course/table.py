"""Whose model this peer holds, and how far a meeting of two sides has come: two tables of states.

`COURSE` says whether this peer waits for its first model, exchanges, doubts that it is in step, or replaces its model.
`GAP` says whether two sides of the network are meeting, and runs beside it. The page docs/design/protocol.md shows
`course_diagram`.
"""

from __future__ import annotations

import enum
from typing import Final

from gossipdp.protocol.state_machine import Table, diagram

__all__ = ["COURSE", "GAP", "HAVE_MODEL", "SPARE", "Action", "Event", "Gap", "Reason", "State", "course_diagram"]


class State(enum.Enum):
    """What this peer does with its model."""

    EMPTY = "Empty"
    """The daemon has not said yet whether this peer founds or joins."""
    FOUNDING = "Founding"
    """The first training process gives the network its model."""
    FETCHING = "Fetching"
    """It fetches its first model, or waits for members that may have something later than its own."""
    RESTORING = "Restoring"
    """The driver reads the newest checkpoint."""
    TAKING_OVER = "TakingOver"
    """The parameters of a live training process are read."""
    CURRENT = "Current"
    """The model is here, and is exchanged."""
    DOUBTING = "Doubting"
    """It may lag. It asks others, and exchanges nothing."""
    REPLACING = "Replacing"
    """It gives up its model and fetches another."""


HAVE_MODEL: Final = frozenset({State.CURRENT, State.DOUBTING, State.REPLACING})
"""States of a peer that has a model."""


class Reason(enum.StrEnum):
    """Why a peer gives up its model for the network's. Events, the status and the checkpoint's job have the value."""

    APART = "apart"
    """Its side has met a greater one after a long partition."""
    LAG = "lag"
    """It was cut off and has fallen behind."""
    IDLE = "idle"
    """It has no training process, and its model is old."""
    LATE = "late"
    """A training process waits, and the model here is old."""


SPARE: Final = (Reason.IDLE, Reason.LATE)
"""Reasons of a peer that does not train."""


class Gap(enum.Enum):
    """Whether two sides are meeting."""

    TOGETHER = "Together"
    """No reunion is under way."""
    HEARING = "Hearing"
    """Members held apart are present. The verdict waits until all have said their lines."""
    JUDGED = "Judged"
    """The verdict is out. One side follows as soon as it can."""


class Event(enum.Enum):
    FOUND = "told to found"
    JOIN = "told to join"
    FOUNDED = "its first training process has given the model"
    FETCHED = "the model of a member is complete"
    CHECKPOINT_WINS = "no member's model goes before its checkpoint"
    PROCESS_WINS = "no member's model goes before its live training process"
    RESTORED = "the checkpoint is read"
    EARLIER = "only an earlier checkpoint could be read, and a member's may go before it"
    UNREADABLE = "no checkpoint could be read"
    TAKEN = "the parameters are read"
    NOT_FINITE = "the parameters have NaN or Inf"
    SUSPECTED = "cut off and LAG_ROUNDS behind"
    CAUGHT_UP = "an exchange brought it into step"
    VOUCHED = "two vouchers, and still behind"
    UNVOUCHED = "ASKING periods without two vouchers"
    OUTRANKED = "a greater line is proven"
    OUTDATED = "no training here, and the model is old"
    REPLACED = "the other model is complete"
    GAVE_UP = "no source for DRY or STALLED periods"
    APART = "a member is found to be apart"
    ABSENT = "no member held apart is present"
    VERDICT_DUE = "HEARING periods have passed"
    MISNAMED = "the line misdescribes this side, ALONE periods after the verdict"
    CHANGED_SIDES = "a model of the other side is here"


class Action(enum.Enum):
    ADOPT = "take over the model"
    RESTORE = "read it"
    TAKE_OVER = "read its parameters"
    RESTART = "drop what was fetched"
    FORGET = "claim no checkpoint"
    DISMISS = "claim no process"
    ASK = "hold exchanges, ask for lags"
    RESUME = "exchange again"
    TRUST = "count as in step, exchange again"
    FOLLOW_SIDE = "follow that line (apart)"
    FOLLOW_NETWORK = "follow the vouchers (lag)"
    RENEW = "fetch it anew (idle, late)"
    TURN = "follow that line in place of its own side (idle, late)"
    CHANGE = "take over model and line"
    KEEP = "take all back"
    OPEN = "name the line of this side"
    EXTEND = "correct a line named by hearsay"
    CLOSE = "forget what was measured"
    ANNOUNCE = "notice GD-607"
    RENAME = "name it anew"


COURSE: Final[Table[State, Event, Action]] = {
    (State.EMPTY, Event.FOUND): (State.FOUNDING, None),
    (State.EMPTY, Event.JOIN): (State.FETCHING, None),
    (State.FOUNDING, Event.FOUNDED): (State.CURRENT, Action.ADOPT),
    (State.FETCHING, Event.FETCHED): (State.CURRENT, Action.ADOPT),
    (State.FETCHING, Event.CHECKPOINT_WINS): (State.RESTORING, Action.RESTORE),
    (State.FETCHING, Event.PROCESS_WINS): (State.TAKING_OVER, Action.TAKE_OVER),
    (State.RESTORING, Event.RESTORED): (State.CURRENT, Action.ADOPT),
    (State.RESTORING, Event.EARLIER): (State.FETCHING, Action.RESTART),
    (State.RESTORING, Event.UNREADABLE): (State.FETCHING, Action.FORGET),
    (State.TAKING_OVER, Event.TAKEN): (State.CURRENT, Action.ADOPT),
    (State.TAKING_OVER, Event.NOT_FINITE): (State.FETCHING, Action.DISMISS),
    (State.CURRENT, Event.SUSPECTED): (State.DOUBTING, Action.ASK),
    (State.DOUBTING, Event.CAUGHT_UP): (State.CURRENT, Action.RESUME),
    (State.DOUBTING, Event.UNVOUCHED): (State.CURRENT, Action.TRUST),
    (State.DOUBTING, Event.VOUCHED): (State.REPLACING, Action.FOLLOW_NETWORK),
    (State.CURRENT, Event.OUTRANKED): (State.REPLACING, Action.FOLLOW_SIDE),
    (State.DOUBTING, Event.OUTRANKED): (State.REPLACING, Action.FOLLOW_SIDE),
    (State.CURRENT, Event.OUTDATED): (State.REPLACING, Action.RENEW),
    (State.DOUBTING, Event.OUTDATED): (State.REPLACING, Action.RENEW),
    (State.REPLACING, Event.OUTRANKED): (State.REPLACING, Action.TURN),
    (State.REPLACING, Event.REPLACED): (State.CURRENT, Action.CHANGE),
    (State.REPLACING, Event.GAVE_UP): (State.CURRENT, Action.KEEP),
}

GAP: Final[Table[Gap, Event, Action]] = {
    (Gap.TOGETHER, Event.APART): (Gap.HEARING, Action.OPEN),
    (Gap.HEARING, Event.APART): (Gap.HEARING, Action.EXTEND),
    (Gap.JUDGED, Event.APART): (Gap.HEARING, Action.EXTEND),
    (Gap.HEARING, Event.VERDICT_DUE): (Gap.JUDGED, Action.ANNOUNCE),
    (Gap.TOGETHER, Event.MISNAMED): (Gap.TOGETHER, Action.RENAME),
    (Gap.JUDGED, Event.MISNAMED): (Gap.JUDGED, Action.RENAME),
    (Gap.HEARING, Event.ABSENT): (Gap.TOGETHER, Action.CLOSE),
    (Gap.JUDGED, Event.ABSENT): (Gap.TOGETHER, Action.CLOSE),
    (Gap.TOGETHER, Event.CHANGED_SIDES): (Gap.HEARING, None),
    (Gap.HEARING, Event.CHANGED_SIDES): (Gap.HEARING, None),
    (Gap.JUDGED, Event.CHANGED_SIDES): (Gap.HEARING, None),
}


def course_diagram() -> str:
    """Both tables as one Mermaid diagram."""
    lines = ["stateDiagram-v2", "    state Model {"]
    lines += ["        " + line for line in diagram(COURSE, State.EMPTY)]
    lines += ["        --"]
    lines += ["        " + line for line in diagram(GAP, Gap.TOGETHER)]
    return "\n".join([*lines, "    }"])
