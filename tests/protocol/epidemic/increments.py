"""An increment, the schema of its model, and shares of earlier epochs."""

from __future__ import annotations

from gossipdp.protocol.epidemic.events import EpochClosed
from gossipdp.protocol.schema import Schema
from gossipdp.protocol.wire.epidemic_messages import Rumour


def closed(shares, first, *epochs):
    for epoch, (samples, origins) in enumerate(epochs, first):
        shares.closed(EpochClosed(epoch, bytes(16), origins, samples, origins, -(-samples // max(1, origins))))


SCHEMA = Schema.of([("w", (2 * 8192 + 9,), "float32", "parameter")])
RUMOUR = Rumour(b"o" * 32, 1, 7, 0, 0.25, 700, 10, 1, 1, bytes(32), bytes(64))
