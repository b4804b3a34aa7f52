"""Why something happened, as values that decide. Each value is the word that messages, events and metrics carry.

A message of another version may carry a word that no member has. It is kept as text, and equals no member.
"""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Ending", "Fault", "Objection", "Outcome", "Unused"]


class Fault(StrEnum):
    """Why a peer's data are refused, or count against it."""

    PAYLOAD = "payload"
    """Codes of an exchange, or the sample of a witness, cannot be decoded."""
    NAN = "nan"
    """An exchange would put NaN or Inf into the anchor."""
    SHARE = "share"
    """The share of an acknowledgement is not from 0 to 1."""
    SCHEMA = "schema"
    """The schema cannot be read, or differs from the one here."""
    MANIFEST = "manifest"
    """The parts of a manifest contradict each other, or its signature is wrong."""
    HASH = "hash"
    """A chunk is not the one that the source signed."""
    IMPLAUSIBLE = "implausible"
    """A witness denied the state, and no witness confirmed it."""
    MOMENTS_MANIFEST = "manifest of moments"
    """As `MANIFEST`, of the optimizer's moments."""
    MOMENTS = "moments"
    """A chunk of moments is not the one that the source signed."""
    MEMBER_SIGNATURE = "signature of a member record"
    PROGRESS_SIGNATURE = "signature of a progress report"
    DECISION_SIGNATURE = "signature of a decision"
    GARBLED = "garbled"
    """The peer sent many undecodable messages."""


class Objection(StrEnum):
    """Why a member offers no exchange, or refuses one."""

    BUSY = "busy"
    """It is in an exchange, or has an offer out."""
    DONE = "done"
    """It has had all its exchanges until its next round begins."""
    IDLE = "idle"
    """It has no training process."""
    CROSSING = "crossing"
    """The partner has offered one, too, and this offer holds. It is never sent."""
    SCHEMA = "schema"
    """Its model has another layout."""
    SETTINGS = "settings"
    """It runs with other settings."""
    CODEC = "codec"
    """It does not know the codec."""
    TERMS = "terms"
    """The answer claims more than was offered."""
    APART = "apart"
    """One side has to fetch the model of the other first."""
    ASIDE = "aside"
    """The member is set aside."""
    JOINING = "joining"
    """It has no model, or is about to give its model up."""
    LEAVING = "leaving"
    """It leaves the network."""
    FINISHING = "finishing"
    """Its training is over."""
    UNSETTLED = "unsettled"
    """A lost exchange with it is still open."""
    SLOW = "slow"
    """It wasted time in earlier exchanges."""
    SILENT = "silent"
    """It did not answer the offer."""
    GONE = "gone"
    """It has left or failed."""
    OUTBOUND = "outbound-only"
    """No peer can dial it."""
    NOTHING = "nothing mixed"
    """The last exchange with it mixed no chunk."""
    UNASKED = "not asked"


class Ending(StrEnum):
    """Why one side ends an exchange; beside an `Objection`."""

    SETTLED = "settled"
    """The initiator asks nothing more."""
    UNWANTED = "unwanted"
    """The initiator has taken its offer back."""
    LOST = "lost"
    """The partner was silent or gone. Chunks may be in doubt."""
    UNKNOWN = "unknown"
    """The sender does not know this exchange."""
    ROUND = "round"
    """It has lasted longer than a round."""


class Outcome(StrEnum):
    """How an exchange ended."""

    DONE = "done"
    """All chunks were mixed."""
    CUT = "cut"
    """It ended early at a chunk boundary."""
    SLOW = "slow"
    """It was cut, because its chunks took far longer than usual."""
    LOST = "lost"
    """The partner went silent."""


class Unused(StrEnum):
    """Why a snapshot of the training process is not used."""

    NAN = "nan"
    """It has NaN or Inf."""
    SESSION = "session"
    """It belongs to an older session, or is not awaited."""
