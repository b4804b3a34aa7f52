"""`epidemic` (algorithms section 9, 10): any order, duplication and heal of one set of messages gives the same bits.

The test keeps the set of delivered messages, as the protocol does. The algorithm does not know it.
"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossipdp.protocol import jobs
from tests.algorithms.epidemic.epidemic_peer import CHUNKS, INFINITE, WIDTH, Peer


class Network:
    """Peers that publish now and then. Each applies unseen messages at its own time."""

    def __init__(self, count, seed=0, bound=INFINITE):
        self.peers = [Peer((seed, number)) for number in range(count)]
        self.bound = bound
        self.seen = [set() for _ in self.peers]
        self.messages = []

    def publish(self, number, lr=1.0, compressor="topk128"):
        peer = self.peers[number]
        peer.train()
        weight = 1.0 / len(self.peers)
        self.messages.append(peer.publish(compressor, lr=lr, weight=weight, bound=self.bound)[0])
        self.seen[number].add(len(self.messages) - 1)

    def deliver(self, number, message):
        """Apply a message once, even if it comes several times."""
        if message not in self.seen[number]:
            self.seen[number].add(message)
            self.peers[number].apply(self.messages[message])

    def everything(self, order):
        for number in range(len(self.peers)):
            for message in order.sample(range(len(self.messages)), len(self.messages)):
                self.deliver(number, message)

    def step(self, number):
        self.peers[number].drain()
        self.peers[number].release()

    def check(self):
        states = [peer.state() for peer in self.peers]
        assert all(state == states[0] for state in states)
        assert max(peer.error() for peer in self.peers) < 2e-5


PEER = st.integers(0, 2)
EVENTS = st.one_of(
    st.tuples(st.just("publish"), PEER, st.sampled_from([0.5, 1.0, 4.0]), st.sampled_from(["topk128", "whole"])),
    st.tuples(st.just("deliver"), PEER, st.integers(0, 7)),
    st.tuples(st.just("deliver"), PEER, st.integers(0, 7)),
    st.tuples(st.just("step"), PEER),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(EVENTS, min_size=5, max_size=25), st.randoms(use_true_random=False), st.sampled_from([INFINITE, 0.02]))
def test_any_order_and_duplication_gives_the_same_bits(events, order, bound):
    """Messages overtake each other and own ones. A second case has bounds that cut many of them."""
    network = Network(3, bound=bound)
    for name, number, *arguments in events:
        if name == "deliver" and not arguments[0] < len(network.messages):
            continue
        getattr(network, name)(number, *arguments)
    network.everything(order)
    network.check()


def test_two_halves_hold_the_same_bits_after_a_heal():
    network, order = Network(4), Random(5)
    for _ in range(3):
        for number in range(4):
            network.publish(number)
        for message, author in enumerate(len(network.messages) // 4 * [0, 1, 2, 3]):
            for number in range(4):
                if number // 2 == author // 2:
                    network.deliver(number, message)
            network.step(author)
    states = [peer.state() for peer in network.peers]
    assert states[0] == states[1] != states[2] == states[3]
    network.everything(order)
    network.check()


def test_order_of_chunks_and_of_messages_within_a_chunk_leaves_no_trace():
    network = Network(3)
    for number in range(3):
        network.publish(number, lr=2.0)
    forth, back = Peer(8), Peer(9)
    for message in network.messages:
        forth.apply(message)
    for chunk in reversed(range(CHUNKS)):
        for message in reversed(network.messages):
            back.apply(message, [chunk])
    assert forth.state() == back.state()


@pytest.mark.parametrize("trains", [True, False])
def test_joiner_holds_the_same_bits_and_keeps_them(trains):
    """It takes over the state and its set of messages, chunk by chunk, while more messages come."""
    network = Network(2)
    for _ in range(3):
        network.publish(0)
        network.publish(1)
    order = Random(3)
    network.everything(order)
    joiner = Peer((0, 2))
    joiner.ledger.a[:] = 7.0
    joiner.attach()
    inside = []
    for chunk in range(CHUNKS):
        frozen = network.peers[0].algorithm.run(jobs.Freeze(chunk))
        inside.append(set(network.seen[0]))
        take = jobs.Resync if trains else jobs.Adopt
        assert joiner.algorithm.run(take(chunk, frozen.payload, frozen.hash)).finite
        network.publish(chunk % 2)
        network.deliver(0, len(network.messages) - 1)
    for number, message in enumerate(network.messages):
        for chunk in range(CHUNKS):
            if number not in inside[chunk]:
                joiner.apply(message, [chunk])
    network.everything(order)
    assert joiner.state() == network.peers[0].state() == network.peers[1].state()
    if trains:
        assert joiner.error() < 2e-5
    else:
        joiner.attach()
    network.peers.append(joiner)
    network.seen.append(set(network.seen[0]))
    for number in (2, 0, 1, 2):
        network.publish(number)
    network.everything(order)
    network.check()


def test_joiner_of_a_lone_peer_with_bits_below_the_grid():
    """Giving the state away settles it: both then hold multiples of the grid."""
    lone, joiner = Peer(1), Peer(2)
    lone.x[:] = np.float32(1e-11) * lone.random.standard_normal(lone.ledger.size)
    lone.since[:] = 0.0
    lone.alone()
    assert (lone.ledger.a == lone.x).all()
    for chunk in range(CHUNKS):
        frozen = lone.algorithm.run(jobs.Freeze(chunk))
        joiner.algorithm.run(jobs.Adopt(chunk, frozen.payload, frozen.hash))
    joiner.attach()
    assert lone.state() == joiner.state() and np.abs(lone.ledger.a - lone.x).max() < 2.0**-32
    assert lone.error() < 1e-12
    lone.train()
    joiner.apply(lone.publish()[0])
    assert lone.state() == joiner.state()


def test_digests_tell_replicas_with_different_starts_apart():
    one, other = Peer(1), Peer(2)
    other.ledger.a[WIDTH + 3] += 2.0**-20
    digests = [[peer.algorithm.ledger.digest(chunk) for chunk in range(CHUNKS)] for peer in (one, other)]
    assert [a == b for a, b in zip(*digests, strict=True)] == [True, False, True, True]
