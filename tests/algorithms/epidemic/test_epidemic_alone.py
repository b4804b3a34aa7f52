"""A lone peer with `epidemic` is the bare optimizer (algorithms section 9)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossipdp.protocol import jobs
from tests.algorithms.epidemic.epidemic_peer import SIZE, Peer


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_lone_peer_is_the_bare_optimizer_bit_for_bit(seed, rounds):
    peer = Peer(seed)
    for _ in range(rounds):
        peer.train()
        snapshot = peer.x.copy()
        peer.alone()
        peer.drain()
        assert (peer.x == snapshot).all() and (peer.ledger.a == snapshot).all()
        assert not peer.ledger.v.any() and not peer.region[1:].any()


def test_peer_left_alone_is_the_bare_optimizer_from_the_next_drain():
    peer = Peer(1)
    peer.train()
    peer.publish()
    peer.train()
    peer.alone()
    peer.drain()
    peer.release()
    assert not peer.ledger.v.any()
    for _ in range(3):
        peer.train()
        snapshot = peer.x.copy()
        peer.alone()
        peer.drain()
        assert (peer.x == snapshot).all() and (peer.ledger.a == snapshot).all()


@pytest.mark.parametrize(("lr", "momentum"), [(0.7, 0.0), (1.0, 0.8)])
def test_outer_step_with_other_settings_than_a_lone_peers_raises(lr, momentum):
    with pytest.raises(ValueError):
        Peer(1).algorithm.run(jobs.OuterStep(0, lr, momentum, 0))


def test_whole_increments_of_one_peer_reproduce_it_to_the_resolution_of_the_anchor():
    """With alpha 1, beta 0, p 1 and every parameter sent, c = D and a becomes x, but for two roundings."""
    peer = Peer(3, SIZE, SIZE)
    for _ in range(4):
        peer.train()
        snapshot, before = peer.x.copy(), peer.ledger.a.copy()
        peer.publish("raw", lr=1.0, beta=0.0, weight=1.0)
        assert not peer.ledger.v.any()
        near = 2.0**-32 + 2.0**-23 * np.maximum(np.abs(snapshot), np.abs(before))
        assert (np.abs(peer.ledger.a - snapshot) <= near).all()
        peer.drain()
        peer.release()
        assert (np.abs(peer.x - snapshot) <= 2 * near).all()
