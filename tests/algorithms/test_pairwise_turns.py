"""One exchange of two replicas: ranges, rounding, and differences of no finite length."""

from __future__ import annotations

import numpy as np
import pytest

from gossipdp.protocol import jobs
from simulations.simulator.settings import pairwise

SIZE = 256
KEY = jobs.ChunkKey(b"i" * 32, 1, 0)


class Pair:
    """An initiator with the lower id and a responder, with anchors of one block each."""

    def __init__(self, i: float, j: float) -> None:
        self.i, self.j = pairwise(), pairwise()
        shape = np.random.default_rng(1).standard_normal(SIZE).astype(np.float32)
        for side, scale in ((self.i, i), (self.j, j)):
            side.allocate(SIZE, SIZE, SIZE)
            side.ledger.a[:] = scale * shape

    def opened(self, codec: str) -> jobs.Turn:
        """Open the chunk, up to the turn that lets the responder mix if no check fails."""
        ranges = self.i.run(jobs.Begin(KEY, codec, True)).buffers[0]
        answer = self.j.run(jobs.Answer(KEY, codec, False, ranges))
        return self.i.run(jobs.Decode(KEY, answer.buffers, True))

    def exchange(self, codec: str) -> jobs.Turn:
        turn = self.opened(codec)
        while not (turn := self.j.run(jobs.DecodeAndMix(KEY, turn.buffers, np.inf, 0.5, 0.0))).mixed:
            turn = self.i.run(jobs.Decode(KEY, turn.buffers, False))
        assert self.i.run(jobs.Mix(KEY, turn.buffers, turn.share, 0.5, 0.0)).mixed
        return turn


@pytest.mark.parametrize("codec", ["modulo2", "modulo4", "modulo8"])
def test_equal_anchors_stay_equal_because_both_sides_round_with_one_stream(codec):
    pair = Pair(1.0, 1.0)
    before = pair.i.ledger.a.copy()
    assert pair.exchange(codec).distance2 == 0.0
    assert (pair.i.ledger.a == before).all() and (pair.j.ledger.a == before).all()


@pytest.mark.parametrize(("moved", "escalated"), [(8.0, 0), (0.0, 1)])
def test_range_told_allows_for_own_steps_since_the_last_exchange(moved, escalated):
    """Without that, each block that an outer step moved far would escalate."""
    pair = Pair(2.0, 1.0)
    for side in (pair.i, pair.j):
        side.range[:] = 0.01
    pair.i.moved[:] = moved
    assert pair.exchange("modulo4").escalated == escalated


@pytest.mark.parametrize("measured", [np.nan, np.inf])
def test_difference_without_a_finite_length_is_refused(measured, monkeypatch):
    pair = Pair(2.0, 1.0)
    turn = pair.opened("fp32")
    monkeypatch.setattr(type(pair.j._open[KEY].side), "norm2", lambda side: measured)
    before = pair.i.ledger.a.copy(), pair.j.ledger.a.copy()
    assert pair.j.run(jobs.DecodeAndMix(KEY, turn.buffers, np.inf, 0.5, 0.0)).refused == "nan"
    assert pair.i.run(jobs.Mix(KEY, (), 1.0, 0.5, 0.0)).refused == "nan"
    assert (pair.i.ledger.a == before[0]).all() and (pair.j.ledger.a == before[1]).all()
    assert not pair.i._open and not pair.j._open
