"""Links in a network whose secret was renewed: who proves which generation, and for how long the old one does."""

import pytest
from msgspec.structs import replace

from gossipdp.protocol.wire.messages import Decision, Lane
from gossipdp.runtime.network import signed_hello
from gossipdp.runtime.network.events import DialFailed, HandshakeRefused, LinkDown, LinkUp
from gossipdp.runtime.network.identity import Identity, NetworkSecret
from tests.runtime.network.sides import FIRST, SECOND, THIRD, Side, renewal
from tests.runtime.network.transports import PING, Net, Stranger, at, dialler, hear, name


def dial(net: Net, one: Side, other: Side) -> str:
    """What comes of a dial: "up", or the code of the failure."""
    assert one.transport.send(b"", at(other.transport), Lane.CONTROL, PING)
    ended: list[LinkUp | DialFailed] = []

    def over() -> bool:
        ended[:] = [*net.events(one.transport, LinkUp), *net.events(one.transport, DialFailed)]
        return bool(ended)

    net.until(over)
    return ended[0].code if isinstance(ended[0], DialFailed) else "up"


@pytest.mark.parametrize("secret", [FIRST, SECOND, THIRD])
def test_peers_with_one_generation_link(net: Net, secret: NetworkSecret) -> None:
    one, other = Side(net, secret), Side(net, secret)
    assert dial(net, one, other) == "up"
    assert [link.generation for link in one.transport.links()] == [secret.generation]


@pytest.mark.parametrize("newer_dials", [False, True])
@pytest.mark.parametrize(
    ("named", "until", "wall", "outcome"),
    [
        (False, 10, 9.0, "up"),
        (False, 10, 10.0, "GD-208"),
        (True, 10, 10.0, "up"),
        (True, 0, 99.0, "up"),
    ],
)
def test_older_secret_lets_everybody_in_for_a_time_and_then_named_peers(
    net: Net, newer_dials: bool, named: bool, until: int, wall: float, outcome: str
) -> None:
    late = Side(net, SECOND)
    who = (late.identity.id,) if named else ()
    ahead = Side(net, THIRD, renewal(3000, 2000, *who, until=until))
    ahead.wall = wall
    one, other = (ahead, late) if newer_dials else (late, ahead)
    assert dial(net, one, other) == outcome
    if outcome == "up":
        assert [link.generation for link in ahead.transport.links()] == [2000]


def test_first_secret_lets_in_for_a_time_too(net: Net) -> None:
    late, ahead = Side(net, FIRST), Side(net, SECOND, renewal(2000, 0, until=5))
    assert dial(net, late, ahead) == "up"


@pytest.mark.parametrize(
    "decisions",
    [
        pytest.param([], id="no decision stands"),
        pytest.param([renewal(3000, 1000, until=99)], id="it replaces another one"),
        pytest.param([renewal(4000, 2000, until=99)], id="a later one, which this peer does not hold"),
    ],
)
def test_older_secret_lets_nobody_in_without_the_decision_that_replaces_it(net: Net, decisions: list[Decision]) -> None:
    assert dial(net, Side(net, SECOND), Side(net, THIRD, *decisions)) == "GD-208"


def test_generation_that_a_peer_does_not_hold_is_proven_to_it_by_nobody(net: Net) -> None:
    """A peer that joined with the newest secret alone cannot check the one before."""
    joined = FIRST.renewed(3000, b"3" * 32)
    ahead = Side(net, joined, renewal(3000, 2000, until=99))
    assert dial(net, Side(net, SECOND), ahead) == "GD-208"
    liar = Identity.generate()
    with Stranger(ahead.transport.port, FIRST, liar) as stranger:
        claim = signed_hello.unpack(dialler(liar, secret=SECOND).hello())
        stranger.say(signed_hello.pack(claim))
        refused = hear(net, stranger)
    assert isinstance(refused, signed_hello.Refuse) and refused.code == "GD-208"


def test_other_secret_of_the_same_number_proves_nothing(net: Net) -> None:
    assert dial(net, Side(net, FIRST.renewed(2000, b"z" * 32)), Side(net, SECOND)) == "GD-202"


def test_text_of_a_refusal_is_the_same_for_every_stranger(net: Net) -> None:
    """Otherwise strangers could fill the log: each new text is a new notice."""
    member, texts = Side(net, SECOND), set[str]()
    for number in (1, 7):
        assert dial(net, Side(net, FIRST.renewed(number, bytes(32))), member) == "GD-208"
        texts |= {event.reason for event in net.take(member.transport, HandshakeRefused)}
    assert len(texts) == 1


def test_peer_without_the_renewed_secret_can_lie_about_its_generation_in_vain(net: Net) -> None:
    """It holds the network's first secret, as from a leaked invite of before."""
    member, liar = Side(net, SECOND), Identity.generate()
    hello = dialler(liar, secret=SECOND)
    with Stranger(member.transport.port, FIRST, liar) as stranger:
        stranger.say(hello.hello())
        answer = hear(net, stranger)
        assert isinstance(answer, signed_hello.Answer)
        claims = signed_hello.unpack(hello.hello())
        assert isinstance(claims, signed_hello.GenerationHello)
        transcript = signed_hello._transcript(b"dialler", claims, answer, liar.curve.public, b"")
        stranger.say(signed_hello.pack(signed_hello.Proof(liar.sign(transcript))))
        refused = hear(net, stranger)
    assert isinstance(refused, signed_hello.Refuse) and refused.code == "GD-202" and not member.up


def test_links_of_the_older_secret_end_with_its_time__those_of_named_peers_stay(net: Net) -> None:
    friend, stranger, ahead = Side(net, SECOND), Side(net, SECOND), Side(net, SECOND)
    for one in (friend, stranger):
        assert dial(net, one, ahead) == "up"
    ahead.admission.take([renewal(3000, 2000, friend.identity.id, until=10)])
    ahead.transport.renew(THIRD)
    net.settle(0.1)
    assert len(ahead.transport.links()) == 2
    ahead.wall = 10.0
    net.until(lambda: len(ahead.transport.links()) == 1)
    assert [link.peer for link in ahead.transport.links()] == [name(friend.transport)]
    net.until(lambda: net.events(stranger.transport, LinkDown))


def test_links_of_named_peers_outlast_any_number_of_renewals(net: Net) -> None:
    one, other = Side(net, SECOND), Side(net, SECOND)
    assert dial(net, one, other) == "up"
    secret = SECOND
    for number in range(3000, 9000, 1000):
        secret = secret.renewed(number, bytes([number // 1000]) * 32)
        for side in (one, other):
            side.admission.take([renewal(number, number - 1000, one.identity.id, other.identity.id)])
            side.transport.renew(secret)
            net.settle(0.01)
    assert one.up and other.up and not net.events(one.transport, LinkDown)


@pytest.mark.parametrize("newer_dials", [False, True])
def test_named_peer_that_missed_two_renewals_comes_in(net: Net, newer_dials: bool) -> None:
    late = Side(net, SECOND)
    ahead = Side(net, THIRD.renewed(4000, b"4" * 32), renewal(4000, 3000, late.identity.id))
    one, other = (ahead, late) if newer_dials else (late, ahead)
    assert dial(net, one, other) == "up"
    stranger = Side(net, SECOND)
    net.forget()
    assert dial(net, stranger, ahead) == "GD-208"


def test_two_renewals_at_once_part_nobody(net: Net) -> None:
    """Each replaces the same secret. One peer has taken the first of them, and the other both, or the second alone."""
    one = Side(net, SECOND.renewed(3000, b"3" * 32))
    both = Side(net, SECOND.renewed(3000, b"3" * 32).renewed(3001, b"4" * 32))
    second = Side(net, SECOND.renewed(3001, b"4" * 32))
    named = tuple(side.identity.id for side in (one, both, second))
    one.admission.take([renewal(3000, 2000, *named)])
    for side in (both, second):
        side.admission.take([renewal(3001, 2000, *named)])
    for pair in ((one, both), (one, second), (both, second)):
        net.forget()
        assert dial(net, *pair) == "up"


def test_peer_that_lacks_the_newest_secret_does_not_alarm_about_those_that_have_it(net: Net) -> None:
    late = Side(net, SECOND)
    ahead = Side(net, THIRD, renewal(3000, 2000, late.identity.id))
    assert dial(net, ahead, late) == "up"
    assert not net.events(late.transport, HandshakeRefused) and not net.events(ahead.transport, DialFailed)


def test_hello_in_a_renewed_network_is_of_version_4_and_before_of_version_3() -> None:
    first, second = (signed_hello.unpack(dialler(Identity(bytes(32)), secret=each).hello()) for each in (FIRST, SECOND))
    assert isinstance(first, signed_hello.Hello) and not isinstance(first, signed_hello.GenerationHello)
    assert isinstance(second, signed_hello.GenerationHello)
    assert (first.version, second.version, second.generation) == (3, 4, 2000)
    assert replace(first, nonce=bytes(32)) == signed_hello.Hello(
        3, first.id, bytes(32), first.network, first.run, first.lane, first.incarnation, first.start
    )
