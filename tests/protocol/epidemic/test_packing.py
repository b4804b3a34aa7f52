"""The payloads of an increment are packed into parts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gossipdp.protocol.epidemic import packing as increments
from gossipdp.protocol.wire.epidemic_messages import MAX_PARTS


@given(st.lists(st.binary(max_size=9), min_size=1, max_size=200))
def test_payloads_of_all_chunks_come_back_from_few_parts(payloads):
    parts = increments.pack(payloads)
    assert 1 <= len(parts) <= MAX_PARTS and all(parts)
    assert [bytes(payload) for payload in increments.unpack(parts, len(payloads))] == payloads
    assert increments.unpack(parts, len(payloads) + MAX_PARTS) is None


@given(st.lists(st.binary(max_size=30), max_size=4), st.integers(1, 130))
def test_arbitrary_parts_are_refused_or_hold_a_payload_for_each_chunk(parts, chunks):
    payloads = increments.unpack(parts, chunks)
    assert payloads is None or (len(payloads) == chunks and increments.pack(payloads) == parts)


def test_largest_payloads():
    assert increments.fit(60, (1 << 20) - 4) and not increments.fit(60, 1 << 20)
    assert increments.fit(120, (1 << 19) - 4) and not increments.fit(121, (1 << 19) - 4)
