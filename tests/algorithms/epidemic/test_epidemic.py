"""The ledger and the equations of `epidemic` on the vectors of one peer (algorithms sections 4 and 9)."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossipdp.protocol import jobs
from tests.algorithms.epidemic.epidemic_peer import CHUNK, CHUNKS, SIZE, TOLERANCE, TRAINABLE, Peer, scale, spread

# -- the ledger ------------------------------------------------------------------------------------------------


class Host(Peer):
    """A peer, and another peer with the same model that sends messages to it."""

    def __init__(self):
        super().__init__(1)
        self.other = Peer(2)

    def own(self, lr, compressor, lead):
        self.publish(compressor, lr=lr, weight=0.5, lead=lead)

    def theirs(self, lr, compressor):
        self.other.train()
        self.apply(self.other.publish(compressor, lr=lr, weight=0.5)[0])

    def part(self, chunk):
        self.other.train()
        self.apply(self.other.publish()[0], [chunk])

    def follow(self, chunk):
        frozen = self.other.algorithm.run(jobs.Freeze(chunk))
        assert self.algorithm.run(jobs.Resync(chunk, frozen.payload, frozen.hash)).finite

    def leave(self, chunk):
        self.algorithm.run(jobs.Conclude(chunk, True))


LR = st.sampled_from([0.5, 1.0, 2.0])
CODEC = st.sampled_from(["topk128", "whole", "sign"])
EVENTS = st.one_of(
    st.just(("train",)),
    st.just(("train",)),
    st.tuples(st.just("own"), LR, CODEC, st.booleans()),
    st.tuples(st.just("theirs"), LR, CODEC),
    st.tuples(st.just("part"), CHUNK),
    st.just(("drain",)),
    st.just(("drain",)),
    st.just(("release",)),
    st.just(("alone",)),
    st.just(("attach",)),
    st.tuples(st.just("follow"), CHUNK),
    st.tuples(st.just("leave"), CHUNK),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(EVENTS, min_size=10, max_size=40))
def test_invariant_holds_after_every_event_whatever_the_order(events):
    """Own and received increments, late drains, lone steps, new sessions, and resyncs."""
    host = Host()
    for name, *arguments in events:
        getattr(host, name)(*arguments)
        assert host.error() < TOLERANCE, name


# -- equations -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compressor", ["topk64", "topk128", "whole", "twobit", "lowrank4"])
def test_messages_without_delay_give_sparseloco(compressor):
    """SparseLoCo (arXiv 2508.15706): e_i <- beta e_i + D_i, c_i = Q(e_i), e_i <- e_i - c_i,
    a <- a - alpha/N sum c_i. Buffers are averages."""
    count, rounds, alpha, beta = 4, 5, 1.0, 0.95
    peers = [Peer(seed) for seed in range(count)]
    codec = peers[0].algorithm._compressors
    a, e = peers[0].ledger.a.astype(np.float64), np.zeros((count, SIZE))
    for _ in range(rounds):
        messages, total = [], np.zeros(SIZE)
        for number, peer in enumerate(peers):
            peer.train()
            x = peer.x.astype(np.float64)
            e[number] += (beta - 1.0) * np.where(np.arange(SIZE) < TRAINABLE, e[number], 0.0) + (a - x)
            for chunk in range(CHUNKS):
                span = peer.ledger.span(chunk)
                for kind, start, stop in (
                    (compressor, span.start, min(span.stop, TRAINABLE)),
                    ("whole", max(span.start, TRAINABLE), span.stop),
                ):
                    if start < stop:
                        part = e[number, start:stop].astype(np.float32)
                        sent = codec[kind].decode(codec[kind].encode(part, seed=chunk), stop - start)
                        e[number, start:stop] -= sent
                        total[start:stop] += sent
        a -= np.where(np.arange(SIZE) < TRAINABLE, alpha, 1.0) * total / count
        for peer in peers:
            message, said = peer.publish(compressor, lr=alpha, beta=beta, weight=1 / count)
            assert all(one.share == 1.0 for one in said)
            messages.append(message)
        spread(messages, peers)
        assert all(peer.state() == peers[0].state() for peer in peers)
        # The last bit of fp32 may decide a tie, or the level of a value. A value of a factor concerns a whole row.
        assert np.mean(np.abs(peers[0].ledger.a - a) > 1e-6) < (1e-2 if compressor == "lowrank4" else 2e-3)
        for number, peer in enumerate(peers):
            assert np.abs(peer.x - peer.ledger.a).max() < 1e-6
            a[:], e[number] = peer.ledger.a, peer.ledger.v


def test_buffers_become_the_weighted_mean_of_the_peers_buffers():
    weights = [0.5, 0.3, 0.2]
    peers = [Peer(seed) for seed in range(3)]
    for _ in range(2):
        for peer in peers:
            peer.train(0.3)
        mean = sum(weight * peer.x.astype(np.float64) for weight, peer in zip(weights, peers, strict=True))
        messages = [peer.publish(lr=2.0, weight=w)[0] for peer, w in zip(peers, weights, strict=True)]
        spread(messages, peers)
        # bfloat16 loses 2^-9 of a difference. The next round sends it.
        assert np.abs(peers[0].ledger.a - mean)[TRAINABLE:].max() < 2.0**-9 * 1.5


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.5, 1.0, 2.0, 4.0]), st.sampled_from(["topk64", "sign", "whole"]))
def test_compression_loses_nothing(seed, lr, compressor):
    """Algorithms section 9, 7: with beta 1, a - alpha mean(e) moves by exactly -alpha mean(D)."""
    peers = [Peer((seed, number)) for number in range(3)]
    weight = scale(lr, 1 / 3)
    start, given_ = peers[0].ledger.a.astype(np.float64), np.zeros(SIZE)
    for _ in range(4):
        messages = []
        for peer in peers:
            peer.train()
            given_ += peer.ledger.a - peer.x.astype(np.float64)
            messages.append(peer.publish(compressor, lr=lr, beta=1.0, weight=1 / 3, bound=0.05)[0])
        spread(messages, peers)
        residual = sum(peer.ledger.v.astype(np.float64) for peer in peers)
        np.testing.assert_allclose(peers[0].ledger.a - weight * residual, start - weight * given_, atol=2e-5)


def test_cut_of_buffers_returns_by_their_next_difference_and_not_by_the_residual():
    """A running variance that falls from 10 to 1 by a halved increment does not end below 0."""
    peer = Peer(7)
    buffers = slice(TRAINABLE, SIZE)
    peer.ledger.a[:] = 10.0
    peer.attach()
    seen = []
    for _ in range(3):
        peer.x[buffers] = 1.0
        _, said = peer.publish("whole", weight=1.0)
        for chunk, one in enumerate(said):
            apply = partial(jobs.Apply, chunk, "whole", one.payload, 1.0, 1.0)
            assert peer.algorithm.run(apply(back=True)).sound
            assert peer.algorithm.run(apply(0.5 * one.movement, kept=0.5)).sound
        peer.drain()
        peer.release()
        seen.append(float(peer.ledger.a[buffers].min()))
    assert all(0.9 < value < 10.0 for value in seen) and seen[-1] < 3.0


@pytest.mark.parametrize("kept", [0.25, 0.5])
@pytest.mark.parametrize("compressor", ["topk64", "whole"])
def test_cut_that_the_origin_knows_loses_nothing(compressor, kept):
    """Algorithms section 9, 7, for increments that all peers cut to the same length."""
    peer, weight = Peer(7), scale(2.0, 0.5)
    peer.train()
    given_ = peer.ledger.a - peer.x.astype(np.float64)
    start = peer.ledger.a.astype(np.float64)
    message, said = peer.publish(compressor, lr=2.0, beta=1.0, weight=0.5)
    for chunk, one in enumerate(said):
        apply = partial(jobs.Apply, chunk, compressor, one.payload, 2.0, 0.5)
        assert peer.algorithm.run(apply(back=True)).sound
        assert peer.algorithm.run(apply((1.0 - kept) * one.movement, kept=kept)).sound
    peer.drain()
    assert peer.error() < 1e-6
    moved = peer.ledger.a - start
    np.testing.assert_allclose(moved, -(1.0 - kept) * weight * peer.decode(message), atol=1e-6)
    lost = moved - weight * peer.ledger.v + weight * given_
    np.testing.assert_allclose(lost[:TRAINABLE], 0.0, atol=1e-6)


@pytest.mark.parametrize("compressor", ["topk64", "topk256", "whole"])
@pytest.mark.parametrize("beta", [0.5, 0.95])
def test_residual_is_bounded_by_what_the_compressor_keeps(compressor, beta):
    """Algorithms section 9, 8: ||e|| <= sqrt(1 - d) G / (1 - beta sqrt(1 - d)), where d is the smallest share that was
    sent."""
    peer, largest, kept = Peer(4, SIZE, SIZE), 0.0, 0.0
    for _ in range(25):
        peer.train()
        before = beta * peer.ledger.v.astype(np.float64) + (peer.ledger.a - peer.x.astype(np.float64))
        largest = max(largest, float(np.linalg.norm(peer.ledger.a - peer.x.astype(np.float64))))
        _, said = peer.publish(compressor, beta=beta)
        assert all(one.share == 1.0 for one in said)
        peer.drain()
        peer.release()
        kept = max(kept, float(np.linalg.norm(peer.ledger.v) / np.linalg.norm(before)))
        assert kept**2 <= 1.0 - peer.algorithm._compressors[compressor].contraction
        assert np.linalg.norm(peer.ledger.v) <= kept * largest / (1.0 - beta * kept) * (1 + 1e-6)
    assert kept > 0.0


def test_published_reports_the_norms_and_the_movement():
    peer = Peer(5)
    peer.train()
    d = peer.ledger.a - peer.x
    message, said = peer.publish(weight=0.5, lr=2.0)
    c = peer.decode(message)
    for chunk, one in enumerate(said):
        span = peer.ledger.span(chunk)
        assert one.pseudo_gradient2 == pytest.approx(float(np.sum(d[span] ** 2)), rel=1e-4)
        np.testing.assert_allclose(peer.ledger.v[span], d[span] - c[span], rtol=1e-3, atol=1e-6)
        assert one.movement == pytest.approx(np.linalg.norm((scale(2.0, 0.5) * c)[span]), rel=1e-3)
        inspected = peer.algorithm.run(jobs.CheckIncrement(chunk, "topk128", one.payload, 2.0, 0.5))
        assert inspected == jobs.Inspected(True, one.movement)
        assert len(one.payload) <= peer.algorithm.most_bytes(chunk, "topk128")


def test_payload_of_the_default_costs_what_is_stated():
    """Algorithms section 4: 0.0283 and 0.056 bytes a parameter and contributor."""
    for compressor, cost in (("topk64", 0.0283), ("topk128", 0.056)):
        peer = Peer(1, 1 << 16, 1 << 16, 8192)
        peer.train()
        message, _ = peer.publish(compressor)
        assert sum(map(len, message.payloads)) / (1 << 16) == pytest.approx(cost, rel=0.01)
