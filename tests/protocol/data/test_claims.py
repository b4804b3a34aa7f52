"""No single member ends a pass over the data: what it tells is believed as fast as blocks can be read."""

import pytest

from gossipdp.protocol.data.claims import FASTER, LEAST, FinishedClaims, lowest
from tests.protocol.data.world import BLOCKS, World, word

A, B, C = b"a" * 32, b"b" * 32, b"c" * 32
ALL = (1 << 1000) - 1
USUAL = 2.0
"""seconds a block"""


@pytest.mark.parametrize(
    ("blocks", "most", "kept"), [(0b1011, 5, 0b1011), (0b1011, 2, 0b11), (0b1011, 0, 0), (0, 3, 0)]
)
def test_lowest(blocks, most, kept):
    assert lowest(blocks, most) == kept


def test_one_member_tells_all_blocks__few_are_believed_at_once_and_eight_times_the_own_rate_later():
    claims, told = FinishedClaims(), ALL
    believed = 0
    for second in range(11):
        believed |= claims.believed(A, told & ~believed, USUAL, float(second), voice=True)
    assert believed.bit_count() == LEAST + FASTER * 10.0 / USUAL


@pytest.mark.parametrize(
    ("voices", "believed"),
    [
        pytest.param((True, True), 1000, id="two members with a voice tell the same, as after a cut"),
        pytest.param((True, False), LEAST, id="the second one has no voice"),
        pytest.param((False, True), LEAST, id="the first one has no voice"),
    ],
)
def test_second_member_that_tells_the_same(voices, believed):
    claims = FinishedClaims()
    claims.believed(A, ALL, USUAL, 0.0, voice=voices[0])
    assert claims.believed(B, ALL, USUAL, 0.0, voice=voices[1]).bit_count() == believed


def test_member_that_tells_twice_is_no_second_voice__and_a_newcomer_believes_all():
    claims = FinishedClaims()
    claims.believed(A, ALL, USUAL, 0.0, voice=True)
    assert claims.believed(A, ALL, USUAL, 0.0, voice=True) == 0
    assert claims.believed(C, ALL, 0.0, 0.0, voice=False) == ALL


def test_next_epoch__what_was_told_of_it_counts_on():
    claims = FinishedClaims()
    claims.believed(A, ALL << 1000, USUAL, 0.0, voice=True)
    claims.next_epoch(1000)
    assert claims.believed(B, ALL, USUAL, 0.0, voice=True) == ALL


@pytest.mark.parametrize("epoch", [0, 1, 2, 1000])
def test_member_that_says_again_and_again_that_all_is_finished__the_pass_goes_on(epoch):
    world = World(4)
    world.run(30.0)
    host, liar = world[0], world[3]
    for _ in range(3):
        lease = host.take(world.now)
        world.run(2.0)
        host.finish(lease, world.now)
    before = host.table.epoch * BLOCKS + host.table.finished[0].bit_count()
    everything = (1 << BLOCKS) - 1
    for _ in range(50):
        host.leasing.receive(*word(host.table.epoch + epoch, finished=everything), liar.id, world.now)
    after = host.table.epoch * BLOCKS + host.table.finished[0].bit_count() + host.table.finished[1].bit_count()
    assert after - before <= LEAST + FASTER * 40.0 / host.table.usual
