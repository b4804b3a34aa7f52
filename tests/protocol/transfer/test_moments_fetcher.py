"""What one peer does about moments, without vectors: it holds, gives and fetches them."""

from random import Random

from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.schema import Schema
from gossipdp.protocol.transfer.moments_fetcher import MomentsFetcher
from gossipdp.protocol.transfer.moments_holder import MomentsHolder
from gossipdp.protocol.transfer.source import TransferConfig

SCHEMA = Schema.of([("w", (300,), "float32", "parameter")])
A, B, C = b"a" * 32, b"b" * 32, b"c" * 32


def test_each_source_is_asked_under_a_number_of_its_own() -> None:
    """So a late message of a source that was left belongs to no transfer."""
    outputs = Outputs()
    fetcher = MomentsFetcher(
        TransferConfig(), outputs, lambda *_: True, Random(5), schema=SCHEMA, candidates=[A, B, C], preferred=A, now=0.0
    )
    while not fetcher.over:
        fetcher.gone(fetcher.source, 1.0)
    first, second, third = (said.message.transfer for said in outputs.messages)
    assert (second, third) == (first + 1, first + 2)


def test_seeking_with_nobody_to_ask_yet_does_not_count_as_tried():
    config, outputs = TransferConfig(), Outputs()
    holder = MomentsHolder(
        config, outputs, sign=lambda data: b"", verify=lambda *_: True, random=Random(1), incarnation=1, enabled=True
    )
    assert not holder.seek(SCHEMA, [], A, 0.0)
    assert holder.seek(SCHEMA, [B], A, 5.0) and len(outputs.messages) == 1
