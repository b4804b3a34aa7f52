"""The two state machines of `Reunion`, as tables.

`GAP` says how far a reunion of two sides has come. `COURSE` says whether this peer exchanges, asks others whether it
lags, or follows another model. Both run side by side. The page docs/design/protocol.md shows `reunion_diagram`.
"""

from __future__ import annotations

import enum
from typing import Final

from gossipdp.protocol.state_machine import Table, diagram

__all__ = ["COURSE", "GAP", "Action", "Course", "Event", "Gap", "reunion_diagram"]


class Gap(enum.Enum):
    """Whether two sides are meeting."""

    TOGETHER = "Together"
    """No reunion is under way."""
    HEARING = "Hearing"
    """Members held apart are present. The verdict waits until all have said their lines."""
    JUDGED = "Judged"
    """The verdict is out. One side follows as soon as it can."""


class Course(enum.Enum):
    """What this peer does with its model."""

    JOINING = "Joining"
    """There is no model yet."""
    CURRENT = "Current"
    """It exchanges."""
    ASKING = "Asking"
    """It may lag. It asks others, and exchanges nothing."""
    FOLLOWING = "Following"
    """It gives up its model and fetches another."""


class Event(enum.Enum):
    APART = "a member is found to be apart"
    ABSENT = "no member held apart is present"
    VERDICT_DUE = "HEARING periods have passed"
    MISNAMED = "the line miscounts this side, ALONE periods after the verdict"
    CHANGED_SIDES = "a model of the other side is here"
    READY = "the model is here"
    SUSPECTED = "cut off and LAG_ROUNDS behind"
    CAUGHT_UP = "an exchange brought it into step"
    VOUCHED = "two vouchers, and still behind"
    UNVOUCHED = "ASKING periods without two vouchers"
    OUTRANKED = "a greater line is proven"
    OUTDATED = "no training here, and the model is old"
    FETCHED = "the other model is complete"
    GAVE_UP = "no source for DRY or STALLED periods"


class Action(enum.Enum):
    OPEN = "name the line of this side"
    EXTEND = "correct a line named by hearsay"
    CLOSE = "forget what was measured"
    ANNOUNCE = "notice GD-607"
    RENAME = "name it anew"
    ASK = "hold exchanges, ask for lags"
    RESUME = "exchange again"
    TRUST = "count as in step, exchange again"
    FOLLOW_SIDE = "follow that line (apart)"
    FOLLOW_NETWORK = "follow the vouchers (lag)"
    RENEW = "fetch it anew (idle, late)"
    TURN = "follow that line in place of its own side (idle, late)"
    ADOPT = "take over model and line"
    KEEP = "take all back"


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

COURSE: Final[Table[Course, Event, Action]] = {
    (Course.JOINING, Event.READY): (Course.CURRENT, None),
    (Course.CURRENT, Event.SUSPECTED): (Course.ASKING, Action.ASK),
    (Course.ASKING, Event.CAUGHT_UP): (Course.CURRENT, Action.RESUME),
    (Course.ASKING, Event.UNVOUCHED): (Course.CURRENT, Action.TRUST),
    (Course.ASKING, Event.VOUCHED): (Course.FOLLOWING, Action.FOLLOW_NETWORK),
    (Course.CURRENT, Event.OUTRANKED): (Course.FOLLOWING, Action.FOLLOW_SIDE),
    (Course.ASKING, Event.OUTRANKED): (Course.FOLLOWING, Action.FOLLOW_SIDE),
    (Course.CURRENT, Event.OUTDATED): (Course.FOLLOWING, Action.RENEW),
    (Course.ASKING, Event.OUTDATED): (Course.FOLLOWING, Action.RENEW),
    (Course.FOLLOWING, Event.OUTRANKED): (Course.FOLLOWING, Action.TURN),
    (Course.FOLLOWING, Event.FETCHED): (Course.CURRENT, Action.ADOPT),
    (Course.FOLLOWING, Event.GAVE_UP): (Course.CURRENT, Action.KEEP),
}


def reunion_diagram() -> str:
    """Both tables as one Mermaid diagram."""
    lines = ["stateDiagram-v2", "    state Reunion {"]
    lines += ["        " + line for line in diagram(GAP, Gap.TOGETHER)]
    lines += ["        --"]
    lines += ["        " + line for line in diagram(COURSE, Course.JOINING)]
    return "\n".join([*lines, "    }"])
