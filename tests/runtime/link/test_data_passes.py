"""Passes of a training group: all ranks get the same blocks, each block is finished once, and none is lost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossipdp.protocol.data.blocks import Lease
from gossipdp.runtime.link.data_passes import Passes


class Network:
    """A network of one peer: blocks in order, two epochs open."""

    def __init__(self, blocks=4):
        self.blocks, self.finished, self.held, self.released = blocks, [], [], []

    @property
    def epoch(self):
        done = set(self.finished)
        epoch = 0
        while all(Lease(epoch, block) in done for block in range(self.blocks)):
            epoch += 1
        return epoch

    def lease(self, latest, first, must):
        for epoch in range(self.epoch, min(self.epoch + 1, latest) + 1):
            for block in range(self.blocks):
                lease = Lease(epoch, block)
                if lease not in self.held and lease not in self.finished:
                    self.held.append(lease)
                    return lease
        return None

    def finish(self, lease):
        self.held.remove(lease)
        self.finished.append(lease)

    def release(self, lease):
        self.held.remove(lease)
        self.released.append(lease)

    def passes(self, world):
        return Passes(world, epoch=lambda: self.epoch, lease=self.lease, finish=self.finish, release=self.release)


def walk(passes, place, use=True):
    """A whole pass of one reader."""
    passes.begin(place)
    found, key = [], 0
    while (lease := passes.next(place, key, -1)) is not None:
        found.append(lease)
        key += 1
        if use:
            passes.used(place, lease)
    return found


def test_ranks_get_the_same_blocks__and_the_last_rank_finishes_a_block():
    network = Network()
    passes = network.passes(2)
    first = walk(passes, (0, 0))
    assert first == [Lease(0, block) for block in range(4)] and network.finished == []
    assert walk(passes, (1, 0)) == first and network.finished == first


def test_pass_ends_with_the_epoch__and_the_next_pass_has_the_next_epoch():
    network = Network()
    passes = network.passes(1)
    for epoch in range(5):
        assert passes.begin((0, 0)) == (epoch + 1, epoch)
        found = [passes.next((0, 0), key, -1) for key in range(5)]
        assert found == [*(Lease(epoch, block) for block in range(4)), None]


def test_blocks_of_a_pass_that_is_over_count_as_used():
    network = Network()
    passes = network.passes(1)
    walk(passes, (0, 0), use=False)
    assert network.finished == []
    passes.begin((0, 0))
    assert network.finished == [Lease(0, block) for block in range(4)]


def test_blocks_of_an_aborted_pass_are_released():
    network = Network()
    passes = network.passes(2)
    for rank in range(2):
        passes.begin((rank, 0))
        assert passes.next((rank, 0), 0, -1) == Lease(0, 0)
    passes.used((0, 0), Lease(0, 0))
    passes.begin((0, 0))
    assert network.released == []
    passes.begin((1, 0))
    assert network.released == [Lease(0, 0)] and network.finished == []


@pytest.mark.parametrize(("used", "finished"), [(True, 4), (False, 0)])
def test_reader_leaves_after_the_end__its_blocks_count_as_it_says(used, finished):
    network = Network()
    passes = network.passes(1)
    walk(passes, (0, 0), use=False)
    passes.gone((0, 0), used=used)
    assert len(network.finished) == finished and len(network.released) == 4 - finished


def test_slot_without_blocks_has_an_empty_pass():
    network = Network(blocks=2)
    passes = network.passes(1)
    numbers = [passes.begin((0, slot)) for slot in range(4)]
    assert numbers == [(1, 0)] * 4
    assert [passes.next((0, slot), 0, -1) for slot in range(4)] == [Lease(0, 0), Lease(0, 1), None, None]


def test_pass_goes_on_by_its_number_after_a_restart_of_the_daemon():
    network = Network()
    passes = network.passes(1)
    assert passes.begin((0, 0), 7) == (7, 0)
    assert passes.next((0, 0), 3, -1) == Lease(0, 0)
    assert passes.begin((0, 0), 7) == (7, 0) and passes.begin((0, 0)) == (8, 0)


def test_used_for_a_block_never_given_changes_nothing():
    network = Network()
    passes = network.passes(1)
    passes.begin((0, 0))
    passes.used((0, 0), Lease(3, 3))
    passes.gone((5, 5), used=True)
    assert network.finished == network.released == []


def test_group_is_gone__all_its_blocks_are_released():
    network = Network()
    passes = network.passes(2)
    passes.begin((0, 0))
    passes.next((0, 0), 0, -1)
    passes.close()
    assert network.held == [] and network.released == [Lease(0, 0)]


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 6), st.data())
def test_all_ranks_see_one_sequence_however_readers_interleave(world, slots, blocks, data):
    network = Network(blocks)
    passes = network.passes(world)
    seen = {(rank, slot): [] for rank in range(world) for slot in range(slots)}
    keys = dict.fromkeys(seen, 0)
    over = dict.fromkeys(seen, False)
    for place in seen:
        passes.begin(place)
    while not all(over.values()):
        place = data.draw(st.sampled_from([place for place in seen if not over[place]]))
        lease = passes.next(place, keys[place], -1)
        keys[place] += 1
        over[place] = lease is None
        if lease is not None:
            seen[place].append(lease)
            passes.used(place, lease)
    for rank, slot in seen:
        assert seen[rank, slot] == seen[0, slot]
    assert sorted(network.finished) == [Lease(0, block) for block in range(blocks)] and network.held == []


def test_reader_that_asks_after_the_end_gets_the_same_answer_and_leaves_no_state():
    passes = Network().passes(2)
    assert walk(passes, (0, 0)) and passes.next((0, 0), 4, -1) is None
    held = len(passes._answers)
    assert {passes.next((0, 0), key, -1) for key in range(5, 500)} == {None} and len(passes._answers) == held
