"""`epidemic`: which state counts after a peer was alone, after a jump of the clock, and after a restart."""

from __future__ import annotations

from gossipdp.protocol.events import (
    IncrementPublished,
    ResyncBegan,
    ResyncEnded,
    RoundDone,
)
from tests.simulations.simulator.epidemic_network import SPAN, STEP, Epidemics


def test_lone_peer_s_steps_are_of_its_own_founding_even_without_rumours():
    """Rounds are so long that it is alone before it has published anything that the other lacks."""
    net = Epidemics(20, 2, every=8 * SPAN, warmup_steps=0)
    net.form()
    net.run(10 * SPAN * STEP)
    cut = net.network.links.cut(net.network.hosts[:1], net.network.hosts[1:])
    at = net.network.now
    net.run(26 * SPAN * STEP)
    assert len(net.of(RoundDone, since=at)) > 2 + len(net.of(IncrementPublished, since=at))
    net.network.links.heal(cut)
    net.run(15.0)
    net.finish(8.0)
    net.agree()


def test_peer_that_finds_no_other_state_goes_on_with_its_own():
    net = Epidemics(21, 2)
    net.form()
    net.run(3.0)
    one, other = net.network.hosts
    cut = net.network.links.cut([one], [other])
    net.run(12 * SPAN * STEP)
    net.network.links.heal(cut)
    while not net.of(ResyncBegan):
        net.run(0.02)
    follower = 0 if net.of(ResyncBegan, 0) else 1
    net.crash(1 - follower)
    at = net.network.now
    net.run(30.0)
    assert len(net.of(ResyncBegan, follower, since=at)) <= 3 and not any(e.complete for e in net.of(ResyncEnded))
    assert len(net.of(RoundDone, follower, since=at)) > 20


def test_one_of_three_peers_that_all_look_for_a_state_gives_it():
    net = Epidemics(5, 3)
    net.form()
    net.run(3.0)
    for host in net.up:
        host.peer.strategy._divergence.diverged(host.peer.strategy._members.live)
    at = net.network.now
    net.run(40.0)
    assert all(len(net.of(RoundDone, index, since=at)) > 20 for index in range(3))
    net.finish(6.0)
    net.agree()


def test_clock_that_jumps_far_makes_no_peer_found_among_others():
    net = Epidemics(20, 3, every=6 * SPAN, warmup_steps=0)
    net.form()
    founded = [host.peer.strategy._standing.foundings for host in net.up]
    net.run(40 * SPAN * STEP)
    assert not net.of(ResyncEnded) and [host.peer.strategy._standing.foundings for host in net.up] == founded
    net.finish(6.0)
    net.agree()


def test_peer_from_a_checkpoint_founds_after_its_clock():
    net = Epidemics(13, 2, resume_after=1.0)
    net.form()
    net.run(8.0)
    host = net.network.hosts[1]
    host.save()
    saved = host.peer.replica.clock
    for index in (0, 1):
        net.crash(index)
    net.start(1)
    while not host.peer.replica.ready:
        net.run(0.01)
    strategy = host.peer.strategy
    assert int.from_bytes(strategy._broadcast.base[:8], "big") == saved
    assert strategy._broadcast._epochs.first == saved // SPAN + 1
