"""What one peer does about moments: it holds, gives and fetches them."""

from __future__ import annotations

from random import Random

from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.schema import Schema
from gossipdp.protocol.transfer.moments_holder import MomentsHolder
from gossipdp.protocol.transfer.source import TransferConfig

SCHEMA = Schema.of([("w", (300,), "float32", "parameter")])
CONFIG = TransferConfig()
A, B = b"a" * 32, b"b" * 32


def test_seeking_with_nobody_to_ask_yet_does_not_count_as_tried():
    outputs = Outputs()
    holder = MomentsHolder(
        CONFIG, outputs, sign=lambda data: b"", verify=lambda *_: True, random=Random(1), incarnation=1, enabled=True
    )
    assert not holder.seek(SCHEMA, list, A, 0.0)
    assert holder.seek(SCHEMA, lambda: [B], A, 5.0) and len(outputs.messages) == 1
