"""What doctor makes of its visits, and visits on loopback."""

import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from gossipdp.runtime.network.dial_causes import Cause
from gossipdp.runtime.network.identity import Identity, NetworkSecret
from peers.doctor import dial_back, visits, ways
from peers.doctor.dial_back import DialBack, dialable
from peers.doctor.findings import Light
from peers.doctor.passing import Passing
from peers.doctor.talk import Network
from peers.doctor.visits import Speed, Visit, visit
from tests.runtime.network.sides import FIRST, SECOND, Side, renewal
from tests.runtime.network.transports import Net, at

ME = b"1" * 32


def met(**changes: object) -> Visit:
    made = Visit("h:1", "large", None, ME, "10.0.0.1:1", seen="10.0.0.9", rtt=0.1, ahead=0.0, packet=1500)
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ahead", "light", "words"),
    [
        ([0.5], Light.GREEN, "within 0.50 s"),
        ([3.0], Light.YELLOW, "3 s behind the member"),
        ([-3600.0], Light.RED, "60 min ahead of the member"),
        ([0.0, 3600.0, 0.1], Light.GREEN, "of 3 members"),
        ([3600.0, 3600.0, 0.1], Light.RED, "60 min behind 3 members"),
    ],
    ids=["right", "doubtful", "wrong", "one-member-of-three", "this-host"],
)
def test_clock(ahead: list[float], light: Light, words: str) -> None:
    finding = ways.clock([met(ahead=each) for each in ahead])
    assert finding.light is light and words in finding.said


def test_clock_without_a_member() -> None:
    assert ways.clock([Visit("h:1", cause=Cause("GD-101", "refused"))]).light is Light.GREY


@pytest.mark.parametrize(
    ("found", "router", "light", "fault"),
    [
        (["10.0.0.9"], "", Light.GREEN, ""),
        (["8.8.4.4"], "", Light.GREEN, ""),
        (["8.8.4.4"], "8.8.4.4", Light.GREEN, ""),
        (["8.8.4.4"], "100.64.1.2", Light.YELLOW, "double-translation"),
        (["8.8.4.4", "8.8.4.5"], "", Light.YELLOW, "several-addresses"),
        ([], "", Light.GREY, ""),
    ],
    ids=["own", "translated", "router", "double", "several", "unknown"],
)
def test_address_translation(found: list[str], router: str, light: Light, fault: str) -> None:
    finding = ways.seen([met(seen=each) for each in found], {"10.0.0.9"}, router)
    assert (finding.light, finding.fault) == (light, fault)


def test_speed_and_packets() -> None:
    (speed,) = ways.speeds([met(speed=Speed(1.25e6, 2.5e6)), met()])
    assert speed.said == "10 Mbit/s to the member, 20 from it"
    assert ways.speeds([met(speed=Speed(0.0, 1.0))])[0].light is Light.GREY
    assert [
        each.light for each in ways.packets([met(), met(passing={"to": Passing(0, 1500)}), met(reached="hello")])
    ] == [Light.GREEN, Light.RED, Light.GREY]


@pytest.mark.parametrize(
    ("back", "light", "fault"),
    [
        (DialBack(busy=True), Light.GREY, ""),
        (DialBack(), Light.GREY, ""),
        (DialBack("h:1", True), Light.GREEN, ""),
        (DialBack("h:1", False, tried=False), Light.GREY, ""),
        (DialBack("h:1", False, arrived=2), Light.RED, "dropped-here"),
        (DialBack("h:1", False, arrived=0), Light.RED, "dropped-before"),
        (DialBack("h:1", False, arrived=None), Light.RED, "dropped-before"),
        (DialBack("h:1", False, arrived=0, astray=4999, own=False), Light.RED, "port-map"),
        (DialBack("h:1", False, arrived=None, own=False), Light.RED, "port-map"),
        (DialBack("h:1", None, arrived=0), Light.RED, "dropped-before"),
    ],
)
def test_dialled_by_others(back: DialBack, light: Light, fault: str) -> None:
    finding = dialable(back, 4710, chosen=True)
    assert (finding.light, finding.fault) == (light, fault)
    if fault:
        assert dialable(back, 4710, chosen=False).light is Light.YELLOW


@pytest.fixture
def answering() -> Iterator[Callable[[bytes | None], str]]:
    """`answering(b"...")`: the address of a listener that sends this to each caller, or closes at once with None."""
    listeners: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def serve(listener: socket.socket, said: bytes | None) -> None:
        kept = []
        try:
            while True:
                caller, _ = listener.accept()
                if said is None:
                    caller.close()
                else:
                    kept.append(caller)
                    caller.sendall(said)
        except OSError:
            for caller in kept:
                caller.close()

    def made(said: bytes | None) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)
        threads.append(threading.Thread(target=serve, args=(listener, said)))
        threads[-1].start()
        return f"127.0.0.1:{listener.getsockname()[1]}"

    yield made
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize(("said", "fault"), [(b"SSH-2.0-OpenSSH", "another-service"), (None, "proxy"), (b"", "silent")])
def test_something_else_answers(
    answering: Callable[[bytes | None], str], monkeypatch: pytest.MonkeyPatch, said: bytes | None, fault: str
) -> None:
    monkeypatch.setattr("gossipdp.runtime.network.dial_causes.SPEAKS", 0.2)
    found = visit(answering(said), None)
    assert found.reached == "tcp" and found.cause is not None and found.cause.fault == fault
    (finding,) = ways.ways([found])
    assert (finding.light, finding.fault) == (Light.RED, fault) and finding.do and "tcp ok" in finding.said


def test_not_an_address() -> None:
    found = visit("nonsense", None)
    assert found.cause is not None and found.cause.fault == "not-an-address"


def test_member_without_an_invite__the_way_is_examined_up_to_the_greeting(net: Net) -> None:
    member = net.peer()
    found = in_turn(net, lambda: visit(at(member), None))
    assert (found.reached, found.cause) == ("greeting", None)
    assert ways.ways([found])[0].light is Light.GREY


def test_member_that_admits_only_known_keys__the_key_of_the_home_is_tried_too(net: Net) -> None:
    known = Identity.generate()
    member = net.peer(allowed={known.id})
    network = Network("tiny", net.secret)
    refused = in_turn(net, lambda: visit(at(member), network))
    assert refused.cause is not None and refused.cause.fault == "not-allowed"
    assert in_turn(net, lambda: visit(at(member), network, (Identity.generate(), known))).reached == "large"


def test_secret_of_before_is_named_and_a_named_peer_gets_in_by_its_own_key(net: Net) -> None:
    named = Identity.generate()
    member, network = Side(net, SECOND, renewal(SECOND.generation, 0, named.id)).transport, Network("tiny", FIRST)
    refused = in_turn(net, lambda: visit(at(member), network))
    assert refused.cause is not None and refused.cause.fault == "old-secret"
    assert in_turn(net, lambda: visit(at(member), network, (Identity.generate(), named))).reached == "large"


def test_other_network_and_throughput(net: Net) -> None:
    member = net.peer()
    other = in_turn(net, lambda: visit(at(member), Network("large", net.secret)))
    assert other.cause is not None and other.cause.fault == "other-network"
    fast = in_turn(net, lambda: visit(at(member), Network("tiny", net.secret), fast=True))
    assert fast.speed is not None and min(fast.speed) > 0.0 and fast.seen == "127.0.0.1"


def test_earlier_version_does_not_answer__nothing_is_wrong(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    member = net.peer()
    monkeypatch.setattr(member._links.examining, "take", lambda *_: None)
    monkeypatch.setattr(visits, "ANSWERS", 0.2)
    found = in_turn(net, lambda: visit(at(member), Network("tiny", net.secret)))
    assert (found.reached, found.cause, found.passing) == ("hello", None, {})


def test_port_is_taken__no_member_is_asked(net: Net) -> None:
    member = net.peer()
    assert dial_back.dial_back([at(member)], Network("tiny", net.secret), member.port, (), 0.0) == DialBack(busy=True)


def in_turn(net: Net, call: Callable[[], Visit]) -> Visit:
    """The result of a call in a thread, while the transports of the test go on."""
    found: list[Visit] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    net.until(lambda: not thread.is_alive())
    return found[0]


@pytest.mark.parametrize(("after", "fault"), [(60.0, "wrong-secret"), (0.0, "slow-handshake")])
def test_handshake_that_broke_off_late_hardly_tells_another_secret(
    net: Net, after: float, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visits, "SLOW_HANDSHAKE", after)
    found = in_turn(net, lambda: visit(at(net.peer()), Network("tiny", NetworkSecret.generate())))
    assert found.cause is not None and (found.cause.code, found.cause.fault) == ("GD-201", fault)
