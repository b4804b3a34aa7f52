"""Dials over real sockets: addresses without an answer, and members that are asked to dial back."""

import socket
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from gossipdp.errors import UnreachableError
from gossipdp.protocol.wire.messages import Lane
from gossipdp.runtime.network import dial_backs, dialling, reachability, resolver, signed_hello
from gossipdp.runtime.network.connections import MAX_TRIED
from gossipdp.runtime.network.dial_backs import MAX_DIAL_BACKS
from gossipdp.runtime.network.dial_causes import DialFault
from gossipdp.runtime.network.events import (
    Dialable,
    DialFailed,
    DialledBack,
    HandshakeRefused,
    LinkDown,
    LinkUp,
    Received,
)
from gossipdp.runtime.network.identity import Identity
from gossipdp.runtime.network.limits import TransportLimits
from gossipdp.runtime.network.signed_hello import pack
from gossipdp.runtime.network.transport import Transport
from tests.runtime.network.transports import FAST, PATIENT, PING, Net, at, name


def test_closed_port_is_gd_101_with_the_address_and_dialled_again_later(net: Net, closed_port: int) -> None:
    a = net.peer(limits=TransportLimits(redial=0.2))
    address, target = f"127.0.0.1:{closed_port}", bytes(32)
    assert a.send(target, address, Lane.CONTROL, PING)
    assert a.send(b"", address, Lane.CONTROL, PING)
    net.until(lambda: net.events(a, DialFailed))
    told = [(event.peer, event.address, event.reason, event.code) for event in net.events(a, DialFailed)]
    assert told == [(peer, address, f"{address} refused", "GD-101") for peer in (b"", target)]
    assert not a.send(target, address, Lane.CONTROL, PING)
    assert a.counters.drops == {"unreachable": 2, "redial": 1}
    net.until(lambda: a.send(target, address, Lane.CONTROL, PING))


def test_every_address_of_a_name_is_tried_and_named(
    net: Net, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def both(host: str, port: int, *_: object, flags: int = 0, **__: object) -> list[Any]:
        if flags & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "not numeric")
        assert host == "two.example"
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("240.0.0.1", port)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)),
        ]

    monkeypatch.setattr(resolver.socket, "getaddrinfo", both)
    monkeypatch.setattr(resolver, "_has_route", lambda family, place: place[0] != "240.0.0.1")
    a = net.peer()
    address = f"two.example:{closed_port}"
    assert a.send(b"", address, Lane.CONTROL, PING)
    net.until(lambda: net.events(a, DialFailed))
    reason = f"240.0.0.1:{closed_port} unreachable: no route; 127.0.0.1:{closed_port} refused"
    (event,) = net.events(a, DialFailed)
    assert (event.address, event.reason, event.code) == (address, reason, "GD-101")
    b = net.peer()
    assert a.send(b"", f"two.example:{b.port}", Lane.CONTROL, PING)
    net.until(lambda: net.events(b, Received))


def test_full_backlog__timed_out_and_not_refused(net: Net) -> None:
    a = net.peer(limits=replace(PATIENT, connect=0.3))
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for waiting in (first, second):
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        address = f"127.0.0.1:{full.getsockname()[1]}"
        a.send(b"", address, Lane.CONTROL, PING)
        net.until(lambda: net.events(a, DialFailed))
    [event] = net.events(a, DialFailed)
    assert event.reason.startswith(f"{address} timed out: no answer in 0.3 s") and "firewall" in event.do


def test_name_that_does_not_resolve_is_gd_101(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(resolver.socket, "getaddrinfo", unknown)
    a = net.peer()
    assert a.send(b"", "nowhere.example:4710", Lane.CONTROL, PING)
    net.until(lambda: net.events(a, DialFailed))
    event = net.events(a, DialFailed)[0]
    assert event.code == "GD-101"
    assert event.reason == "nowhere.example:4710 name not resolved: Name or service not known"


@pytest.mark.parametrize("host", ["gpu1..internal", "g" * 64, "."])
def test_advertised_host_that_is_no_valid_name_is_gd_101(net: Net, host: str) -> None:
    a = net.peer()
    assert not a.send(bytes(32), f"{host}:4710", Lane.CONTROL, PING)
    net.until(lambda: net.events(a, DialFailed))
    (event,) = net.events(a, DialFailed)
    assert (event.address, event.reason, event.code) == (f"{host}:4710", f"{host}:4710 is not a valid name", "GD-101")


def test_silent_listener_is_gd_101_after_the_handshake_limit(net: Net) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        a = net.peer(limits=FAST)
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        a.send(b"", address, Lane.CONTROL, PING)
        net.until(lambda: net.events(a, DialFailed))
        (event,) = net.events(a, DialFailed)
        assert (event.reason, event.code) == (f"{address} connected, then silent for 0.3 s", "GD-101")


def test_malformed_address_fails_and_dials_nothing(net: Net) -> None:
    a = net.peer()
    assert not a.send(b"", "::1:80", Lane.CONTROL, PING)
    net.until(lambda: net.events(a, DialFailed))
    assert net.events(a, DialFailed)[0].reason == "::1:80 is not host:port"


def test_another_peer_at_the_address_gets_none_of_the_messages(net: Net) -> None:
    a, b = net.peer(), net.peer()
    expected = Identity.generate().id
    assert a.send(expected, at(b), Lane.CONTROL, PING)
    net.until(lambda: net.events(a, DialFailed))
    assert net.events(a, DialFailed)[0].peer == expected
    assert "is another peer now" in net.events(a, DialFailed)[0].reason
    net.settle(0.05)
    assert not net.events(b, Received)
    assert a.counters.drops == {"unreachable": 1}


def test_dialling_itself__the_reason_says_so(net: Net) -> None:
    a = net.peer()
    a.send(b"", at(a), Lane.CONTROL, PING)
    net.until(lambda: net.events(a, DialFailed))
    (event,) = net.events(a, DialFailed)
    assert [cause.fault for cause in event.causes] == [DialFault.LEADS_BACK]
    assert event.reason == f"{at(a)} refused: this address leads back to the dialler itself"
    assert a.links() == []
    net.forget()
    net.settle(0.05)  # past `redial`
    assert not a.send(bytes(32), at(a), Lane.CONTROL, PING) and not net.events(a, DialFailed), "not dialled again"


def test_one_of_a_members_addresses_leads_back__it_is_met_at_the_other_and_nobody_was_refused(net: Net) -> None:
    a, b = net.peer(), net.peer()
    a.send(name(b), at(a), Lane.CONTROL, PING, others=[at(b)])
    net.until(lambda: net.events(b, Received))
    net.settle(0.05)
    assert not net.events(a, HandshakeRefused) and not net.events(a, DialFailed)
    assert (a.counters.handshakes["GD-101"], a.counters.handshakes["ok"]) == (1, 1), "the dial tells what came of it"


def test_busy_port_is_gd_104(net: Net) -> None:
    a = net.peer()
    with pytest.raises(UnreachableError, match="GD-104") as caught:
        net.peer(listen=f"tcp://127.0.0.1:{a.port}")
    assert str(a.port) in caught.value.seen and "--listen tcp://*:PORT" in caught.value.do


ASKING = replace(PATIENT, dial_back=0.6)


def dialable(net: Net, transport: Transport) -> list[Dialable]:
    return net.events(transport, Dialable)


def test_dialled_back_with_success__no_event_and_the_link_stays(net: Net) -> None:
    asker, other = net.peer(limits=ASKING), net.peer(limits=ASKING)
    asker.advertise([at(asker)])
    net.link(asker, other)
    net.until(lambda: asker._links._dial_backs.reachability.dialable)
    net.settle(1.4)
    assert dialable(net, asker) == [] and other.queued_bytes == 0
    # The dial that it asked for made no second link. On a slow machine it asks once more before the answer comes.
    dialled = dict(asker.counters.handshakes)
    assert dialled["ok"] == 1 and dialled["broken"] >= 1 and other.counters.handshakes == {"ok": 1}
    net.settle(1.4)
    assert asker.counters.handshakes == dialled, "there is no need to ask again"
    assert not net.events(asker, LinkDown) and not net.events(other, LinkDown)
    assert asker.send(name(other), "", Lane.CONTROL, PING) and other.send(name(asker), "", Lane.CONTROL, PING)
    net.until(lambda: net.events(asker, Received) and net.events(other, Received))


def test_dialled_already__no_member_is_asked_to_dial_back(net: Net) -> None:
    peer, other = net.peer(limits=ASKING), net.peer(limits=ASKING)
    peer.advertise([at(peer)])
    net.link(other, peer)
    net.settle(1.4)
    assert peer.counters.handshakes == other.counters.handshakes == {"ok": 1}


@pytest.mark.parametrize("elsewhere", ["nobody", "itself", "another member"])
def test_advertised_at_a_wrong_address__told_after_two_rounds_and_again_when_a_peer_dials_in(
    net: Net, closed_port: int, elsewhere: str
) -> None:
    asker, first, second = (net.peer(limits=ASKING) for _ in range(3))
    port = {"nobody": closed_port, "itself": first.port, "another member": second.port}[elsewhere]
    net.link(asker, second)
    asker.advertise([f"127.0.0.1:{port}"])
    net.link(asker, first)  # asking begins with this link, and both are there for both rounds
    net.until(lambda: net.events(asker, Dialable))
    (told,) = dialable(net, asker)
    assert told == Dialable((), (f"127.0.0.1:{port}",), 4)  # two members, twice
    # Those asked report no trouble of their own: the address is not theirs.
    assert not net.events(first, DialFailed) and not net.events(second, DialFailed)
    assert not net.events(asker, LinkDown)
    late = net.peer()
    assert late.send(name(asker), at(asker), Lane.CONTROL, PING)
    net.until(lambda: len(dialable(net, asker)) == 2)
    assert dialable(net, asker)[1] == Dialable((f"127.0.0.1:{port}",), (), 0)


def test_first_round_fails_by_chance__not_told(net: Net, closed_port: int) -> None:
    asker, other = net.peer(limits=ASKING), net.peer(limits=ASKING)
    asker.advertise([f"127.0.0.1:{closed_port}"])
    net.link(asker, other)
    found = asker._links._dial_backs.reachability
    net.until(lambda: any(found.asked.values()))
    found.addresses = (at(asker),)  # the port is open now
    net.until(lambda: found.dialable)
    assert not any(event.dropped for event in dialable(net, asker))


def test_no_member_answers__nothing_is_known(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    asker, other = net.peer(limits=ASKING), net.peer(limits=ASKING)
    monkeypatch.setattr(other._links._dialling, "dial_back", lambda *_: None)
    asker.advertise([at(asker)])
    net.link(asker, other)
    net.settle(2.4)
    assert dialable(net, asker) == [] and asker._links._dial_backs.reachability.dialable is None


def test_asked_too_often_to_dial_back__dials_once(net: Net, closed_port: int) -> None:
    """A member cannot use its peers as port scanners: one dial in a while, and no answer on what is at the port."""
    asker, other = net.peer(), net.peer(limits=ASKING)
    net.link(asker, other)
    link = asker._links._links[name(other)]
    with socket.create_server(("127.0.0.1", 0)) as door:
        door.setblocking(False)
        for port in (door.getsockname()[1], closed_port, closed_port):
            asker._links._queues.write(link.connections[Lane.CONTROL], pack(signed_hello.DialBack(f"127.0.0.1:{port}")))
        net.until(lambda: other.counters.handshakes["timeout"])
        assert [door.accept()[0].close() for _ in Lane] == [None, None]
        with pytest.raises(BlockingIOError):
            door.accept()
    assert other.counters.handshakes["unreachable"] == 0


def test_dial_backs_under_way_are_few_and_leave_room_for_own_dials(net: Net) -> None:
    answering = net.peer(limits=replace(PATIENT, handshake=5.0))
    askers = [net.peer() for _ in range(MAX_DIAL_BACKS + 2)]
    with ExitStack() as doors:
        for asker in askers:
            port = doors.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            net.link(asker, answering)
            link = asker._links._links[name(answering)]
            question = pack(signed_hello.DialBack(f"127.0.0.1:{port}"))
            asker._links._queues.write(link.connections[Lane.CONTROL], question)
        net.settle(0.2)
        assert len(answering._links._dialling._dials) == MAX_DIAL_BACKS


def test_asked_to_dial_another_host_than_the_askers__not_tried(net: Net) -> None:
    asker, other = net.peer(), net.peer(limits=ASKING)
    net.link(asker, other)
    with socket.create_server(("127.0.0.2", 0)) as door:
        door.setblocking(False)
        address = f"127.0.0.2:{door.getsockname()[1]}"
        assert asker.ask_to_dial_back(name(other), address)
        net.until(lambda: net.events(asker, DialledBack))
        with pytest.raises(BlockingIOError):
            door.accept()
    assert net.events(asker, DialledBack) == [DialledBack(name(other), address, met=False, tried=False)]
    assert other.send(bytes(32), address, Lane.CONTROL, PING), "this peer's own dials are not held up"


def test_port_is_closed__the_answer_is_as_late_as_for_an_open_one(net: Net, closed_port: int) -> None:
    asker, other = net.peer(), net.peer(limits=replace(PATIENT, dial_back=1e6))
    net.link(asker, other)
    assert asker.ask_to_dial_back(name(other), f"127.0.0.1:{closed_port}")
    net.until(lambda: other.counters.handshakes["unreachable"] and not other._links._dialling._dials)
    assert other.send(name(asker), "", Lane.CONTROL, PING)
    net.until(lambda: net.events(asker, Received))
    assert not net.events(asker, DialledBack)
    backs, turn = other._links._dial_backs, other._turn
    assert 4e5 < backs.next_timer() - turn.now <= 5e5
    turn.begin(backs.next_timer())
    assert backs.overdue() == [(name(asker), f"127.0.0.1:{closed_port}", True)] and not backs.overdue()


# -- several addresses of one peer -------------------------------------------------------------------------------


def test_first_address_is_dead__the_next_one_is_dialled_and_remembered(net: Net, closed_port: int) -> None:
    a, b = net.peer(), net.peer()
    dead = f"127.0.0.1:{closed_port}"
    assert a.send(name(b), dead, Lane.CONTROL, PING, [at(b)])
    net.until(lambda: net.events(b, Received))
    (up,) = net.events(a, LinkUp)
    assert up.address == at(b) and not net.events(a, DialFailed)
    assert a.counters.handshakes == {"unreachable": 1, "ok": 1}
    # The peer is known to be at the second address, and is dialled there first from now on.
    link = a._links.linked(name(b))
    assert link is not None
    a._links._close_link(link, "a test")
    net.until(lambda: net.events(b, LinkDown))
    net.forget()
    assert a.send(name(b), dead, Lane.CONTROL, PING, [at(b)])
    net.until(lambda: net.events(b, Received))
    assert a.counters.handshakes == {"unreachable": 1, "ok": 2}


def test_another_member_or_the_dialler_itself_has_the_same_private_address__the_next_one_is_dialled(net: Net) -> None:
    a, b, other = net.peer(), net.peer(), net.peer()
    assert a.send(name(b), at(a), Lane.CONTROL, PING, [at(other), at(b)])
    net.until(lambda: net.events(b, Received))
    assert not net.events(other, Received) and not net.events(a, DialFailed)
    assert {up.peer for up in net.events(a, LinkUp)} == {name(b), name(other)}


def test_all_addresses_are_dead__one_failure_names_each_and_the_pause_grows_with_their_number(
    net: Net, closed_port: int
) -> None:
    a = net.peer(limits=replace(PATIENT, redial=0.2))
    first, second = f"127.0.0.1:{closed_port}", f"127.0.0.2:{closed_port}"
    assert a.send(bytes(32), first, Lane.CONTROL, PING, [second, "bad"])
    net.until(lambda: net.events(a, DialFailed))
    (event,) = net.events(a, DialFailed)
    assert event.reason == f"bad is not host:port; {first} refused; {second} refused" and event.address == first
    net.settle(0.3)
    assert not a.send(bytes(32), first, Lane.CONTROL, PING, [second, "bad"])
    net.until(lambda: a.send(bytes(32), first, Lane.CONTROL, PING, [second, "bad"]))


def test_member_names_many_hosts__one_dial_makes_few_attempts(
    net: Net, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def four(host: str, port: int, *_: object, flags: int = 0, **__: object) -> list[Any]:
        if flags & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "not numeric")
        places = [(f"127.0.{host[4]}.{number}", port) for number in range(1, 5)]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place) for place in places]

    monkeypatch.setattr(resolver.socket, "getaddrinfo", four)
    a = net.peer()
    first, *others = (f"host{number}:{closed_port}" for number in range(1, 5))
    assert a.send(bytes(32), first, Lane.CONTROL, PING, others)
    net.until(lambda: net.events(a, DialFailed))
    (event,) = net.events(a, DialFailed)
    assert event.reason.count("refused") == MAX_TRIED


def test_silent_host_of_the_same_private_network__given_up_soon(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = net.peer(limits=replace(PATIENT, connect=1000.0)), net.peer()
    monkeypatch.setattr(dialling, "NEAR", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        near = f"127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr(a._links._dialling._reach, "near", lambda address, now: address == near)
        assert a.send(name(b), at(b), Lane.CONTROL, PING, [near])
        net.until(lambda: net.events(b, Received))
        assert a.counters.handshakes["timeout"] == 1


def test_one_of_two_public_addresses_is_dead__it_is_dropped_and_the_other_stays(
    net: Net, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reachability, "is_public", lambda address: True)
    asker, other = net.peer(limits=ASKING), net.peer(limits=ASKING)
    dead = f"127.0.0.1:{closed_port}"
    asker.advertise([dead, at(asker)])
    net.link(asker, other)
    net.until(lambda: dialable(net, asker))
    assert dialable(net, asker) == [Dialable((at(asker),), (dead,), 2)]
    net.settle(1.4)
    assert len(dialable(net, asker)) == 1 and not net.events(asker, LinkDown)


@pytest.mark.parametrize("search", [False, True])
def test_provider_translates_the_address__the_one_that_members_see_is_found_and_advertised(
    net: Net, closed_port: int, monkeypatch: pytest.MonkeyPatch, search: bool
) -> None:
    monkeypatch.setattr(dial_backs, "far_network", lambda address: "IPv4" * address.startswith("127.0.0.1:"))
    asker, other = net.peer(limits=ASKING), net.peer(limits=ASKING)
    private = f"127.0.0.2:{closed_port}"
    asker.advertise([private], search=search)
    net.link(asker, other)
    net.until(lambda: dialable(net, asker))
    found = Dialable((at(asker), private), (), 0, (at(asker),))
    assert dialable(net, asker) == [found if search else Dialable((), (private,), 2)]
