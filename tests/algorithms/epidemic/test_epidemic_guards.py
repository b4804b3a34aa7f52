"""What a sender holds back, and how far a hostile payload moves the anchor (algorithms sections 4 and 9)."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossipdp.algorithms.epidemic import epidemic
from gossipdp.protocol import jobs
from tests.algorithms.epidemic.epidemic_peer import CHUNK, CHUNKS, INFINITE, Peer, scale

# -- guards ----------------------------------------------------------------------------------------------------


def test_sender_stays_under_the_bound_and_keeps_the_rest():
    free, held = Peer(6), Peer(6)
    for peer in (free, held):
        peer.train()
    _, said = free.publish(lr=4.0, weight=1.0)
    bound = 0.2 * max(one.movement for one in said)
    d = held.ledger.a - held.x
    message, told = held.publish(lr=4.0, weight=1.0, bound=bound)
    assert max(one.movement for one in said) > bound
    for before, one in zip(said, told, strict=True):
        assert one.movement <= bound and (one.share < 1.0) == (before.movement > bound)
    np.testing.assert_allclose(held.ledger.v + held.decode(message), d, atol=1e-6)


def pull(rounds=60, steps=20, alpha=2.0, size=4096, count=2):
    """Ratio of the final to the first distance of `count` peers to the optimum of a quadratic.

    Inner steps converge within a round, so a parameter that waited has gathered many times the remaining distance.
    """
    peers = [Peer((1, number), size, size, size) for number in range(count)]
    curvature = np.random.default_rng(1).permutation(np.logspace(-2, 0, size))
    ratio, start = (1.0 - 0.3 * curvature) ** steps, np.linalg.norm(peers[0].ledger.a)
    for _ in range(rounds):
        messages = []
        for peer in peers:
            peer.x[:] = peer.ledger.a * ratio + 1e-3 * peer.random.standard_normal(size)
            messages.append(peer.publish(lr=alpha, weight=1 / count)[0])
        for number, peer in enumerate(peers):
            peer.apply(messages[1 - number])
            peer.attach()
    assert peers[0].state() == peers[1].state()
    return np.linalg.norm(peers[0].ledger.a) / start


def test_overshoot_is_detected_and_held_back(monkeypatch):
    assert pull() < 0.3
    monkeypatch.setattr(epidemic, "OVERSHOT", -2.0)
    assert pull() > 3.0, "without the guard the same run ends further away than it began"


@pytest.mark.parametrize("how", ["alone", "adopts", "resyncs"])
def test_adopted_anchor_resets_the_share_that_the_overshoot_guard_offers(how):
    peer, other = Peer(7), Peer(8)
    for _ in range(3):
        message, said = peer.publish(lr=4.0, weight=1.0)
        peer.drain()
        peer.release()
        peer.x += (0.5 * scale(4.0, 1.0) * peer.decode(message)).astype(np.float32)
        peer.train(0.001)
    assert min(one.share for one in said) < 1.0
    if how == "alone":
        peer.alone()
    for chunk in range(CHUNKS):
        frozen = other.algorithm.run(jobs.Freeze(chunk))
        if how != "alone":
            take = jobs.Adopt if how == "adopts" else jobs.Resync
            assert peer.algorithm.run(take(chunk, frozen.payload, frozen.hash)).finite
    peer.attach()
    peer.x += (0.5 * scale(4.0, 1.0) * peer.decode(message)).astype(np.float32)
    _, said = peer.publish(lr=4.0, weight=1.0)
    assert all(one.share == 1.0 for one in said)


def test_progress_that_is_not_finite_changes_nothing():
    peer = Peer(7)
    peer.train()
    peer.publish()
    for value in (np.nan, np.inf, 3e38):
        peer.region[0] = peer.x
        peer.region[0, 3] = value
        before = peer.state(), peer.ledger.v.copy(), peer.region[1:].copy()
        said = peer.algorithm.run(jobs.Publish(0, "topk128", 1.0, 0.95, 0.5, peer.applied, 0))
        assert said == jobs.Published(b"")
        assert peer.state() == before[0] and (peer.ledger.v == before[1]).all()
        assert (peer.region[1:] == before[2]).all()


@pytest.mark.parametrize(
    "settings_",
    [{"lr": 8.1}, {"lr": -1.0}, {"lr": math.nan}, {"weight": 0.0}, {"weight": 1.5}, {"beta": 1.1}, {"beta": -0.1}],
)
def test_settings_out_of_range_are_refused(settings_):
    with pytest.raises(ValueError):
        Peer(1).publish(**settings_)


# -- hostile payloads ------------------------------------------------------------------------------------------


LR_OR_NOT = st.one_of(st.sampled_from([0.0, 1.0, 8.0, 8.0001, -1.0, math.nan, math.inf]), st.floats())
WEIGHT_OR_NOT = st.one_of(st.sampled_from([0.0, 1e-300, 1.0, 1.0001, -0.5, math.nan, math.inf]), st.floats())


@st.composite
def hostile(draw):
    """Random bytes, or a sound payload with extreme values, possibly damaged."""
    chunk, compressor = draw(CHUNK), draw(st.sampled_from(["topk128", "whole", "sign", "raw"]))
    if draw(st.booleans()):
        return chunk, compressor, draw(st.binary(max_size=300))
    author = Peer(draw(st.integers(0, 9)))
    most = draw(st.sampled_from([1e-20, 1.0, 1e4, 1e25]))
    values = (author.random.standard_normal(2048) * most).astype(np.float32)
    span = author.ledger.span(chunk)
    payload = bytearray(author.algorithm._encode(chunk, compressor, values[: span.stop - span.start], 0))
    for place, value in draw(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4)):
        payload[place % len(payload)] = value
    return chunk, compressor, bytes(payload)


@settings(max_examples=80, deadline=None)
@given(hostile(), LR_OR_NOT, WEIGHT_OR_NOT, st.sampled_from([0.0, 2e-10, 1e-6, 1.0, INFINITE]))
def test_hostile_payload_moves_the_anchor_by_at_most_the_bound_and_never_raises(attack, lr, weight, bound):
    """Algorithms section 9, 11."""
    chunk, compressor, payload = attack
    peer = Peer(8)
    before = peer.state()
    fixed, slots = peer.ledger.fixed.copy(), peer.region[1:].copy()
    looked = peer.algorithm.run(jobs.CheckIncrement(chunk, compressor, payload, lr, weight))
    assert peer.state() == before
    done = peer.algorithm.run(jobs.Apply(chunk, compressor, payload, lr, weight, bound))
    assert dataclasses.replace(done, fingerprint=0) == looked and math.isfinite(done.movement)
    moved = (peer.ledger.fixed - fixed) * 2.0**-32
    if not done.sound:
        assert peer.state() == before and (peer.region[1:] == slots).all()
    assert np.linalg.norm(moved) <= min(bound, done.movement) * (1 + 1e-9)
    assert np.abs(moved).max() <= epidemic.MOST_MOVED and np.isfinite(peer.ledger.a).all()


def test_rounding_does_not_lengthen_a_cut_movement():
    """256 parameters of three units each are cut to 0.9 times their length. Rounding up to three would be too long."""
    peer = Peer(8, 256, 256, 256)
    peer.algorithm.ledger.digest(0)
    fixed = peer.ledger.fixed.copy()
    payload = np.full(256, 3 * 2.0**-32, np.float32).tobytes()
    bound = 0.9 * 16 * 3 * 2.0**-32
    done = peer.algorithm.run(jobs.Apply(0, "raw", payload, 1.0, 1.0, bound))
    assert (done.sound, done.movement) == (True, 48 * 2.0**-32)
    assert (fixed - peer.ledger.fixed == 2).all()


@settings(max_examples=40, deadline=None)
@given(st.lists(hostile(), min_size=1, max_size=4), st.sampled_from(["mean", "nnm-trimmed", "median"]))
def test_hostile_epoch_never_raises_and_moves_no_more_than_all_its_terms(attacks, rule):
    peer = Peer(8)
    chunk = attacks[0][0]
    before = peer.state()
    fixed = peer.ledger.fixed.copy()
    weights = tuple(1.0 for _ in attacks)
    terms = tuple(jobs.Term(row, attacks[0][1], payload, 1.0, 1.0, 0.5) for row, (_, _, payload) in enumerate(attacks))
    for number in range(CHUNKS):
        said = peer.algorithm.run(jobs.MeasureEpoch(number, weights, terms))
        assert len(said.sound) == len(said.movements) == len(attacks)
        if number == chunk:
            most = sum(said.movements)
    assert peer.state() == before
    done = peer.algorithm.run(jobs.ApplyEpoch(chunk, weights, terms, rule))
    moved = (peer.ledger.fixed - fixed) * 2.0**-32
    assert len(done.counted) == len(attacks) and math.isfinite(done.movement)
    assert np.linalg.norm(moved) <= done.movement * (1 + 1e-9)
    assert np.linalg.norm(moved) <= 0.5 * most * (1 + 1e-6) + 1e-9
