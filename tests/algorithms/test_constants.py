"""A constant buffer element is 0 in every vector, and stays 0 while elements beside it change."""

import numpy as np
import pytest

from gossipdp.codecs import CODECS
from gossipdp.protocol import jobs
from simulations.simulator.settings import pairwise
from tests.algorithms.replicas import MIXING, opened

SIZE, TRAINABLE, WIDTH = 1024, 512, 512
BUFFERS = 1
"""the chunk that holds buffers"""
STILL = np.arange(SIZE - TRAINABLE) % 3 == 0
"""its constant elements"""


class Peer:
    def __init__(self, algorithm, seed):
        self.algorithm, self.random = algorithm, np.random.default_rng(seed)
        algorithm.allocate(SIZE, TRAINABLE, WIDTH)
        self.x = np.zeros(SIZE, np.float32)
        algorithm.ledger.bind((self.x, np.zeros(SIZE, np.float32)))

    def train(self):
        """Set x to the anchor, plus one step in every element that changes."""
        self.x[:] = self.algorithm.ledger.a
        self.x[TRAINABLE:] += np.where(STILL, 0.0, self.random.standard_normal(SIZE - TRAINABLE) * 0.01)

    @property
    def constants(self):
        return self.algorithm.ledger.a[TRAINABLE:][STILL]


def exchange(one, two, codec, number):
    key, first = jobs.ChunkKey(b"a", number, BUFFERS), True
    turn = opened(one, two, key, codec)
    while not turn.mixed:
        mine = one.run(jobs.Decode(key=key, buffers=turn.buffers, first=first))
        first, turn = False, two.run(jobs.DecodeAndMix(key=key, buffers=mine.buffers, bound=mine.bound, mixing=MIXING))
        assert not turn.refused
    assert one.run(jobs.Mix(key=key, buffers=turn.buffers, share=turn.share, mixing=MIXING)).mixed
    return turn


@pytest.mark.parametrize("codec", ["fp32", "fp16", "bf16", "int8", "modulo2", "modulo4", "modulo8"])
def test_constants_beside_moving_averages_after_many_exchanges_are_zero_to_the_last_bit(codec):
    assert codec in CODECS
    peers = [Peer(pairwise(), seed) for seed in (1, 2)]
    for number in range(100):
        for peer in peers:
            peer.train()
            peer.algorithm.run(jobs.OuterStep(BUFFERS, 1.0, 0.0, 1 << 40))
        turn = exchange(*(peer.algorithm for peer in peers), codec, number)
        assert turn.distance2 == 0.0 and turn.blocks == turn.escalated == 0, "buffers count in no metric"
    for peer in peers:
        assert peer.constants.tobytes() == bytes(peer.constants.nbytes)
        assert peer.algorithm.ledger.a[TRAINABLE:][~STILL].all(), "changing elements are averaged"


def test_huge_values_of_buffers_bound_no_chunk_of_parameters():
    peer = Peer(pairwise(), 1)
    peer.x[:TRAINABLE], peer.x[TRAINABLE:] = 1e-3, 1e9
    for chunk in range(2):
        peer.algorithm.run(jobs.OuterStep(chunk, 1.0, 0.0, 0))
    assert peer.algorithm._bound(0) < 1.0 < 1e9 < peer.algorithm._bound(BUFFERS)
