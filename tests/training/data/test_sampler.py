"""Samplers without a daemon: each pass has every sample once, in an order of its epoch."""

import collections

import numpy as np
import pytest
from torch.utils.data import DataLoader

from gossipdp.errors import DataError
from gossipdp.protocol.data.blocks import Lease
from gossipdp.training.data import Sampler, Stream
from gossipdp.training.data.plan import Plan, shuffled
from tests.training.data.readers import SIZE, Numbers, drawn, rank_of


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pass_alone_holds_every_sample_once_in_an_order_of_the_epoch(monkeypatch, tmp_path, workers):
    monkeypatch.setenv("GOSSIPDP_OFF", "1")
    orders = []
    for kind in (Sampler, Stream):
        source = kind(Numbers(), block=64, home=tmp_path)
        if kind is Sampler:
            loader = DataLoader(Numbers(), batch_size=8, sampler=source, num_workers=workers)
        else:
            loader = DataLoader(source, batch_size=8, num_workers=workers)
        for epoch in (0, 1, 0):
            source.set_epoch(epoch)
            orders.append(drawn(loader))
            assert sorted(orders[-1]) == list(range(SIZE))
        assert orders[-3] == orders[-1] != orders[-2]


@pytest.mark.parametrize("world", [2, 3, 7])
@pytest.mark.parametrize("kind", [Sampler, Stream])
def test_ranks_alone_take_disjoint_parts_of_one_length(monkeypatch, world, kind):
    parts = []
    for rank in range(world):
        rank_of(monkeypatch, world, rank, None)
        source = kind(Numbers(), block=64)
        source.set_epoch(3)
        chosen = {"dataset": source} if kind is Stream else {"dataset": Numbers(), "sampler": source}
        parts.append(drawn(DataLoader(**chosen, batch_size=8)))
    assert {len(part) for part in parts} == {-(-SIZE // world)}
    counts = collections.Counter(number for part in parts for number in part)
    assert sorted(counts) == list(range(SIZE)) and sum(counts.values()) - SIZE == -SIZE % world


def test_a_pass_without_shuffle_is_in_order(monkeypatch):
    rank_of(monkeypatch, 1, 0, None)
    assert list(Sampler(100, block=7, shuffle=False)) == list(range(100))


def test_a_pass_goes_on_in_the_middle(monkeypatch):
    rank_of(monkeypatch, 2, 1, None)
    sampler = Sampler(SIZE, block=64, ahead=10)
    sampler.set_epoch(5)
    walk = iter(sampler)
    begun = [next(walk) for _ in range(111)]
    state = sampler.state_dict()
    again = Sampler(SIZE, block=64, ahead=10)
    again.load_state_dict(state)
    again.set_epoch(5)
    rest = list(again)
    assert state["used"] == 100 and rest[:10] == begun[100:110] and begun[:100] + rest == list(_full(5))


def _full(epoch):
    sampler = Sampler(SIZE, block=64)
    sampler.set_epoch(epoch)
    return sampler


def test_state_of_other_data_is_refused(monkeypatch):
    rank_of(monkeypatch, 1, 0, None)
    with pytest.raises(DataError) as error:
        Sampler(100).load_state_dict(Sampler(101).state_dict())
    assert error.value.code == "GD-309"


@pytest.mark.parametrize("size", [1, 2, 3, 64, 1000, 4097])
def test_the_shuffle_is_a_permutation_that_differs_with_epoch_and_seed(size):
    numbers = np.arange(size)
    orders = {tuple(shuffled(numbers, size, seed, epoch).tolist()) for seed in (0, 1) for epoch in (0, 1, 2)}
    assert all(sorted(order) == list(range(size)) for order in orders)
    assert len(orders) == 6 or size < 64


def test_the_shuffle_is_the_same_everywhere():
    assert shuffled(np.arange(8), 1000, 7, 3).tolist() == PINNED
    assert Plan.of("data", "samples", 1000, 8, 7, True).samples(Lease(3, 0)).tolist() == PINNED


PINNED = [440, 7, 677, 735, 74, 404, 72, 394]
