"""Push-sum: no event between peers creates or loses mass (algorithms section 9, invariant 9)."""

import numpy as np
import pytest

from simulations.lab.baselines.push_sum import Acknowledgement, Message, PushSum

SIZE = 6


class World:
    """Peers, and messages that may be lost, doubled, late or reordered. A peer that left still answers."""

    def __init__(self, count, seed):
        self.random = np.random.default_rng(seed)
        self.peers = {peer: PushSum(peer, self.random.normal(size=SIZE), 1.0) for peer in range(count)}
        self.leaving = set()
        self.flying = []
        self.z, self.w = self.mass()

    def mass(self):
        """Mass of peers and outboxes. A delivered message counts at its receiver only."""
        kept = [m for peer in self.peers.values() for m in peer.outbox.values() if not self.peers[m.receiver].has(m)]
        z = sum(peer.z for peer in self.peers.values()) + sum(m.z.astype(np.float64) for m in kept)
        return z, sum(peer.w for peer in self.peers.values()) + sum(m.w for m in kept)

    def present(self):
        return [peer for peer in self.peers if peer not in self.leaving]

    def other(self, peer):
        return int(self.random.choice([other for other in self.present() if other != peer]))

    def event(self):
        name = self.random.choice(["push", "retry", "deliver", "deliver", "double", "lose", "join", "leave"])
        getattr(self, str(name))()
        return name

    def push(self):
        peer = int(self.random.choice(self.present()))
        self.flying.append(self.peers[peer].push(self.other(peer), float(self.random.choice([0.5, 1 / 3]))))

    def retry(self):
        for peer in self.peers.values():
            self.flying += [message for message in peer.outbox.values() if self.random.random() < 0.5]

    def taken(self):
        return self.flying.pop(int(self.random.integers(len(self.flying))))

    def deliver(self):
        if not self.flying:
            return
        what = self.taken()
        if isinstance(what, Message):
            self.flying.append(self.peers[what.receiver].take(what))
        else:
            assert isinstance(what, Acknowledgement)
            self.peers[what.origin[0]].acknowledged(what)

    def double(self):
        if self.flying:
            self.flying.append(self.flying[int(self.random.integers(len(self.flying)))])

    def lose(self):
        if self.flying:
            self.taken()

    def join(self):
        if len(self.present()) < 9:
            self.peers[len(self.peers)] = PushSum(len(self.peers), np.zeros(SIZE), 0.0)

    def leave(self):
        if len(self.present()) > 3:
            peer = int(self.random.choice(self.present()))
            self.leaving.add(peer)
            self.flying += self.peers[peer].leave(self.other(peer))

    def settle(self):
        """Deliver everything in the outboxes."""
        while any(peer.outbox for peer in self.peers.values()):
            self.retry()
            while self.flying:
                self.deliver()
            # A peer that left passes arriving mass on.
            for peer in self.leaving:
                if self.peers[peer].w or self.peers[peer].z.any():
                    self.peers[peer].leave(self.other(peer))


@pytest.mark.parametrize("seed", range(6))
def test_mass_is_constant_under_loss_retry_duplication_reordering_join_and_leave(seed):
    world = World(5, seed)
    seen = set()
    for _ in range(500):
        seen.add(world.event())
        z, w = world.mass()
        assert np.abs(z - world.z).max() < 1e-12
        assert w == pytest.approx(world.w, abs=1e-12)
        assert all(peer.w >= 0.0 for peer in world.peers.values())
    assert len(seen) == 7


@pytest.mark.parametrize("seed", range(3))
def test_remaining_peers_agree_on_the_first_mean_once_messages_arrive(seed):
    world = World(5, seed)
    for _ in range(300):
        world.event()
    world.settle()
    for peer in world.leaving:
        assert world.peers[peer].w == 0.0
        assert not world.peers[peer].z.any()
    for _ in range(60):
        for peer in world.present():
            message = world.peers[peer].push(world.other(peer))
            world.peers[peer].acknowledged(world.peers[message.receiver].take(message))
    for peer in world.present():
        assert np.allclose(world.peers[peer].mean, world.z / world.w, atol=1e-6)


def test_sender_subtracts_the_rounded_message():
    peer = PushSum(0, np.array([1.0 / 3.0]), 1.0)
    message = peer.push(1)
    assert message.z.dtype == np.float32
    assert peer.z[0] == 1.0 / 3.0 - float(message.z[0]) != message.z[0]
    assert peer.w == message.w == 0.5


def test_leaving_takes_three_messages_and_leaves_nothing():
    peer = PushSum(0, np.random.default_rng(0).normal(size=1000), 0.7)
    messages = peer.leave(1)
    assert len(messages) == 3
    assert not peer.z.any()
    assert peer.w == 0.0


def test_message_of_an_earlier_incarnation_is_another_message():
    receiver = PushSum(1, np.zeros(1), 0.0)
    old = PushSum(0, np.ones(1), 1.0).push(1)
    new = PushSum(0, np.ones(1), 1.0, incarnation=1).push(1)
    receiver.take(old)
    assert not receiver.has(new)
    receiver.take(new)
    assert receiver.z[0] == 1.0


def test_acknowledgement_of_an_earlier_incarnation_changes_nothing():
    old = PushSum(0, np.ones(1), 1.0).push(1)
    peer = PushSum(0, np.ones(1), 1.0, incarnation=1)
    peer.push(1)
    peer.acknowledged(PushSum(1, np.zeros(1), 0.0).take(old))
    assert len(peer.outbox) == 1
