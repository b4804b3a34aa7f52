"""Why a member gives no state, and why a joiner leaves a source."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Refusal"]


class Refusal(StrEnum):
    """The value stands in messages and events. A member may send other words as well."""

    JOINING = "joining"
    """The member has no model, or is about to give its model up."""
    GONE = "gone"
    """The snapshot was dropped, or the member has left or failed."""
    BUSY = "busy"
    """Too many joiners wait for a sample, or the places asked for do not exist."""
    NEW = "new"
    """The witness has not stepped yet and cannot judge distances."""
    NONE = "none"
    """The member holds no moments."""
    SILENT = "silent"
    """The source sent nothing for too long."""
    OLD = "old"
    """The state is not newer than the one here."""
    SETTINGS = "settings"
    """The source runs with other settings."""
    CLOCK = "clock"
    """The state's clock or rounds are beyond any limit."""
    SIZE = "size"
    """The model does not fit this host's memory."""
