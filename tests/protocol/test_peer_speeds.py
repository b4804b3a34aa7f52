"""What peers say of their speed, and the H that follows from it."""

import math

import pytest
from msgspec.structs import replace

from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import Member, Ping, Pong, State
from tests.protocol.peer_rig import a_peer, founded


def test_each_says_in_pings_and_their_answers_how_fast_it_trains_and_not_in_other_gossip():
    said = []
    town = founded()
    town.net.tampers = lambda host, envelope: said.append((host.index, envelope.message)) or (envelope,)
    town.start(1)
    town.train(1)
    town.run(20.0)
    town.trainers[1].die()
    town.run(40.0)
    for index in (0, 1):
        messages = [message for host, message in said if host == index and isinstance(message, Ping | Pong)]
        speeds = [message.speed for message in messages if message.speed is not None]
        assert {type(message) for message in messages if message.speed} == {Ping, Pong}
        assert speeds[0] == 0.0 and max(speeds) == pytest.approx(5.0, rel=0.1), "a step takes 0.2 s"
        assert (speeds[-1] > 0.0) == (index == 0), "whose training process is gone trains no more"
        gossip = [message.speed for message in messages if message.sequence == 0]
        assert gossip and set(gossip) == {None}


OTHER_MEMBER = Member(b"q" * 32, "q", "10.0.0.2:1", 1, 0, State.ALIVE)


def trains(peer, now):
    """A round of 10 steps a second is over."""
    speed = peer._replica.pacing._speed
    speed.compare(peer._membership.speeds(speed.trained(0.1, now), now))


def hears(peer, message, *, of=OTHER_MEMBER, at=1.0):
    """H's factor after two rounds of 10 steps a second that follow on this message."""
    peer.receive(wire.encode(message), of.id, at)
    for seconds in (0.5, 1.0):
        trains(peer, at + seconds)
    return peer._replica.pacing.speed


@pytest.mark.parametrize("said", [Ping, Pong])
def test_h_is_by_what_members_say_of_themselves(said):
    peer = a_peer()
    assert hears(peer, said(7, (OTHER_MEMBER,))) == 1.0, "it says nothing of it"
    assert hears(peer, said(8, (OTHER_MEMBER,), speed=40.0), at=2.0) == pytest.approx(10 / 25)
    assert hears(peer, said(9, (OTHER_MEMBER,)), at=3.0) == pytest.approx(10 / 25)
    assert hears(peer, said(10, (OTHER_MEMBER,), speed=math.inf), at=4.0) == pytest.approx(10 / 25), "as if it paused"


def test_h_is_by_all_members():
    """Of 32 of these most would be slow."""
    peer = a_peer()
    for number in range(45):
        member = replace(OTHER_MEMBER, id=(number + 1).to_bytes(32, "big"), address=f"10.0.0.{number + 3}:1")
        factor = hears(peer, Ping(1, (member,), speed=10.0 if number < 25 else 1.0), of=member, at=float(2 * number))
    assert factor == 1.0


def test_h_is_not_by_who_has_left_though_a_word_of_it_comes_late():
    peer = a_peer()
    assert hears(peer, Pong(7, (OTHER_MEMBER,), speed=40.0)) == pytest.approx(10 / 25)
    assert hears(peer, Pong(8, (replace(OTHER_MEMBER, state=State.LEFT),), speed=40.0), at=3.0) == 1.0
    assert hears(peer, Pong(9, (), speed=40.0), at=5.0) == 1.0


def test_h_is_not_by_who_is_set_aside_nor_by_who_is_no_member():
    peer = a_peer()
    assert hears(peer, Pong(7, (OTHER_MEMBER,), speed=40.0)) == pytest.approx(10 / 25)
    peer._strikes.shuns = lambda peer, now: True
    assert hears(peer, Pong(8, (OTHER_MEMBER,)), at=3.0) == 1.0
    assert hears(a_peer(), Ping(7, (), speed=40.0)) == 1.0


def goes_on(peer, begin, end):
    """A round every ten seconds from `begin` on: H's factors after them."""
    factors = []
    for at in range(begin, end + 1, 10):
        trains(peer, float(at))
        factors.append(peer._replica.pacing.speed)
    return factors


COUNTED, ALONE = pytest.approx(10 / 25), 1.0


def test_failed_member_counts_for_the_last_rounds_and_then_no_more():
    """A short cut lengthens no peer's round."""
    peer = a_peer()
    hears(peer, Pong(7, (OTHER_MEMBER,), speed=40.0))
    assert goes_on(peer, 10, 100)[-1] == COUNTED
    peer.receive(wire.encode(Pong(8, (replace(OTHER_MEMBER, state=State.FAILED),))), b"r" * 32, 105.0)
    assert peer.view.members[OTHER_MEMBER.id].state == State.FAILED
    assert goes_on(peer, 110, 190) == [COUNTED] * 7 + [ALONE] * 2


def test_who_rests_counts_until_it_was_seen_to_rest_for_as_long_as_the_last_rounds():
    """One word of a pause, and none that it is over yet, is no long one."""
    peer = a_peer()
    hears(peer, Pong(7, (OTHER_MEMBER,), speed=40.0))
    goes_on(peer, 10, 100)
    rest = wire.encode(Ping(1, (OTHER_MEMBER,), speed=0.0))
    peer.receive(rest, OTHER_MEMBER.id, 105.0)
    assert goes_on(peer, 110, 300) == [COUNTED] * 20
    peer.receive(rest, OTHER_MEMBER.id, 301.0)
    assert goes_on(peer, 310, 310) == [ALONE]
    assert hears(peer, Pong(8, (OTHER_MEMBER,), speed=40.0), at=320.0) == COUNTED
