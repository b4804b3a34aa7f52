"""Table of all messages: the id of each on the wire, its number of raw buffers, and its lane.

To add a message, define it in `messages` and append it to `MESSAGES` with the next id. `SINCE` says to which protocol
version it belongs. Never reuse an id. No message and no behaviour is defined here; `encoding` and `outputs` act on
these tables.
"""

from __future__ import annotations

from typing import Final

from gossipdp.protocol.wire.messages import (
    MAX_FRAMES,
    OLDEST_VERSION,
    Accept,
    Ack,
    Ask,
    Coverage,
    Data,
    Decisions,
    End,
    Lineage,
    Message,
    Miss,
    MomentsAsk,
    MomentsChunk,
    MomentsManifest,
    MomentsRefuse,
    MomentsRequest,
    Nack,
    Offer,
    Ping,
    PingRequest,
    Pong,
    PushPull,
    Ranges,
    Refuse,
    Standing,
    StateAsk,
    StateChunk,
    StateManifest,
    StateProbe,
    StateRefuse,
    StateRequest,
    StateSample,
    StateSketches,
    StateWait,
    Void,
)

MESSAGES: Final[dict[int, type[Message]]] = {
    1: Ping,
    2: Pong,
    3: PingRequest,
    4: Nack,
    5: PushPull,
    6: Offer,
    7: Accept,
    8: Refuse,
    9: Ranges,
    10: Data,
    11: Ack,
    12: Ask,
    13: Miss,
    14: Void,
    15: End,
    16: StateRequest,
    17: StateManifest,
    18: StateAsk,
    19: StateChunk,
    20: StateRefuse,
    21: Standing,
    22: StateProbe,
    23: StateSample,
    24: Lineage,
    25: Coverage,
    26: MomentsRequest,
    27: MomentsManifest,
    28: MomentsAsk,
    29: MomentsChunk,
    30: MomentsRefuse,
    38: StateWait,
    39: Decisions,
    40: StateSketches,
}
"""Append only."""

RESERVED: Final = frozenset(range(31, 38))
"""Ids of messages that earlier versions had. No new message takes one."""

SINCE: Final[dict[type[Message], int]] = {Decisions: 4, StateSketches: 6}
"""The first protocol version that has the message, for types that not every spoken version has. Such a message goes to
members of that version alone."""

BUFFERS: Final[dict[type[Message], tuple[int, int]]] = {
    Ranges: (1, 1),
    Data: (1, MAX_FRAMES - 1),
    Ack: (0, MAX_FRAMES - 1),
    StateManifest: (3, 3),
    StateChunk: (1, 1),
    StateSample: (1, 1),
    StateSketches: (2, 2),
    Coverage: (2, 2),
    Decisions: (0, 1),
    MomentsManifest: (2, 2),
    MomentsChunk: (1, 1),
}
"""Fewest and most raw buffers that may follow; (0, 0) for a type not listed."""

DATA_LANE: Final[frozenset[type[Message]]] = frozenset(
    {
        Ranges,
        Data,
        Ack,
        Ask,
        Miss,
        Void,
        StateManifest,
        StateChunk,
        StateSample,
        StateSketches,
        MomentsManifest,
        MomentsChunk,
    }
)
"""Message types that travel on the data connection. Ask is one of them, so it never overtakes what it asks for."""


def since(kind: type[Message]) -> int:
    """The oldest protocol version that this peer speaks and that has messages of this type."""
    return SINCE.get(kind, OLDEST_VERSION)
