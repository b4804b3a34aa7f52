"""Sets of blocks on the wire, and a table of finished ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossipdp.protocol.data.block_table import BlockTable
from gossipdp.protocol.data.blocks import DataSet, Lease, pack, unpack

# -- sets on the wire -------------------------------------------------------------------------------------------------


@given(st.integers(1, 300).flatmap(lambda count: st.tuples(st.just(count), st.integers(0, (1 << count) - 1))))
def test_a_set_survives_the_wire(drawn):
    count, blocks = drawn
    data = pack(blocks, count)
    assert unpack(memoryview(data), count) == blocks and len(data) <= 1 + (count + 7) // 8


@pytest.mark.parametrize("left", [0, 1, 5])
def test_a_set_nearly_empty_or_nearly_full_is_short(left):
    few = sum(1 << 700 * place for place in range(left))
    everything = (1 << 4096) - 1
    assert len(pack(few, 4096)) == len(pack(everything ^ few, 4096)) == 1 + 2 * left


@given(st.binary(max_size=40), st.integers(1, 300))
def test_any_bytes_are_a_set_within_bounds_or_malformed(data, count):
    found = unpack(data, count)
    assert found is None or 0 <= found < 1 << count


# -- a table ---------------------------------------------------------------------------------------------------------

facts = st.lists(st.tuples(st.integers(0, 3), st.integers(0, (1 << 8) - 1), st.integers(0, (1 << 8) - 1)), max_size=12)


@given(facts, st.randoms())
def test_any_order_and_duplication_of_what_is_finished_gives_the_same(facts, random):
    shuffled = facts + facts[::2]
    random.shuffle(shuffled)
    one, two = (BlockTable(DataSet(bytes(16), "data", 8)) for _ in range(2))
    for table, words in ((one, facts), (two, shuffled)):
        for epoch, *finished in words:
            table.merge(epoch, finished)
        # What came before its epoch was known of is told again.
        for epoch, *finished in words:
            table.merge(epoch, finished)
    assert (one.epoch, one.finished) == (two.epoch, two.finished)


@given(facts)
def test_nothing_finished_is_ever_unfinished(facts):
    table = BlockTable(DataSet(bytes(16), "data", 8))
    done = set()
    for epoch, *finished in facts:
        table.merge(epoch, finished)
        assert all(table.is_finished(lease) for lease in done)
        done |= {Lease(e, b) for e in range(5) for b in range(8) if table.is_finished(Lease(e, b))}
