"""Transports on loopback with real sockets: every wait is a loop over `poll` with a deadline."""

from __future__ import annotations

import os
import random
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
import pytest
import zmq

from gossipdp.errors import LocalProtocolError, RefusedError, RemoteProtocolError, UnreachableError
from gossipdp.protocol.wire.encoding import Buffer, encode
from gossipdp.protocol.wire.messages import PROTOCOL_VERSION, Lane, Ping
from gossipdp.runtime.network import dial_causes, handshake, resolver
from gossipdp.runtime.network.dialling import MAX_DIAL_BACKS
from gossipdp.runtime.network.handshake import DiallerHello, ListenerHello, LocalPeer, pack
from gossipdp.runtime.network.identity import Identity, NetworkSecret
from gossipdp.runtime.network.refusals import TIMES, Refusals
from gossipdp.runtime.network.transport import (
    CopyMet,
    Dialable,
    DialFailed,
    Flooded,
    HandshakeRefused,
    LinkDown,
    LinkUp,
    Received,
    RunLearned,
    Transport,
    TransportEvent,
    TransportLimits,
)

RUN = bytes(range(16))
START = bytes(8)
PING = encode(Ping(1))
FAST = TransportLimits(handshake=0.3, hello=0.5, drain=0.2, redial=0.01)
T = TypeVar("T", bound=TransportEvent)


class Net:
    """Transports of one test, polled in turn, with everything that happened to each."""

    def __init__(self) -> None:
        self.secret = NetworkSecret.generate()
        self.transports: list[Transport] = []
        self.happened: dict[int, list[TransportEvent]] = {}

    def peer(self, identity: Identity | None = None, **changes: Any) -> Transport:
        settings: dict[str, Any] = {
            "network": "tiny",
            "run": RUN,
            "incarnation": 1,
            "listen": "tcp://127.0.0.1:0",
            "limits": FAST,
        } | changes
        secret = settings.pop("secret", self.secret)
        transport = Transport(identity or Identity.generate(), secret, **settings)
        self.transports.append(transport)
        self.happened[id(transport)] = []
        return transport

    def close(self, transport: Transport) -> None:
        self.transports.remove(transport)
        transport.close()

    def turn(self) -> None:
        for transport in self.transports:
            self.happened[id(transport)] += transport.poll(0.001)[0]

    def until(self, reached: Callable[[], object], seconds: float = 5.0) -> None:
        deadline = time.monotonic() + seconds
        while not reached():
            assert time.monotonic() < deadline, {key: events[-5:] for key, events in self.happened.items()}
            self.turn()

    def settle(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self.until(lambda: time.monotonic() >= deadline, seconds + 5)

    def events(self, transport: Transport, kind: type[T]) -> list[T]:
        return [event for event in self.happened[id(transport)] if isinstance(event, kind)]

    def forget(self) -> None:
        for events in self.happened.values():
            events.clear()

    def link(self, dialler: Transport, listener: Transport) -> None:
        assert dialler.send(b"", at(listener), Lane.CONTROL, PING)
        self.until(lambda: self.events(listener, Received))
        self.forget()


@pytest.fixture
def net() -> Iterator[Net]:
    net = Net()
    yield net
    for transport in net.transports:
        transport.close(linger=0)


def name(transport: Transport) -> bytes:
    return transport.identity.id


def at(transport: Transport) -> str:
    return f"127.0.0.1:{transport.port}"


# -- two peers -------------------------------------------------------------------------------------------------


def test_both_lanes_both_ways_over_one_link(net: Net) -> None:
    a, b = net.peer(), net.peer()
    payload = os.urandom(100_000)
    assert a.send(name(b), at(b), Lane.CONTROL, PING)
    assert a.send(name(b), at(b), Lane.DATA, [b"\x93head", payload, b""])
    net.until(lambda: len(net.events(b, Received)) == 2)
    assert b.send(name(a), "", Lane.CONTROL, PING)
    assert b.send(name(a), "", Lane.DATA, [b"\x93back", memoryview(payload)])
    net.until(lambda: len(net.events(a, Received)) == 2)
    by_lane = {event.lane: event for event in net.events(b, Received)}
    assert by_lane[Lane.CONTROL] == Received(name(a), Lane.CONTROL, PING)
    head, body, empty = by_lane[Lane.DATA].frames
    assert (head, empty) == (b"\x93head", b"")
    assert isinstance(body, memoryview)  # over libzmq's own memory
    assert body == payload
    assert net.events(a, LinkUp) == [LinkUp(name(b), at(b), False, 1)]
    assert net.events(b, LinkUp) == [LinkUp(name(a), "127.0.0.1", True, 1)]
    assert net.happened[id(b)][0] == net.events(b, LinkUp)[0]
    size = len(b"\x93head") + len(payload)
    assert a.counters.sent_bytes == {(name(b), Lane.CONTROL): len(PING[0]), (name(b), Lane.DATA): size}
    assert b.counters.received_bytes == {(name(a), Lane.CONTROL): len(PING[0]), (name(a), Lane.DATA): size}
    assert b.counters.sent_messages == {(name(a), Lane.CONTROL): 1, (name(a), Lane.DATA): 1}
    assert a.counters.handshakes == b.counters.handshakes == {"ok": 1}
    assert [(x.peer, x.inbound, x.queued) for x in b.links()] == [(name(a), True, 0)]


def test_service_message_finds_the_link_gone__counts_as_no_lost_message(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = net.peer(), net.peer()
    a.send(name(b), at(b), Lane.CONTROL, [b"\x90first"])
    net.until(lambda: net.events(b, Received))

    def gone(*_: object) -> bool:
        raise BrokenPipeError

    monkeypatch.setattr(a._links._queues, "_push", gone)
    link = a._links.linked(name(b))
    link.tell_run(b"another")
    a._links._tell_run(link)
    assert not a.counters.drops
    assert not a.send(name(b), at(b), Lane.CONTROL, [b"\x90second"])
    assert a.counters.drops == {"link down": 1}


def test_large_buffers_arrive_whole_and_in_order(net: Net) -> None:
    a, b = net.peer(), net.peer()
    payloads = [os.urandom(64) * (1 << 14) for _ in range(64)]
    for number, payload in enumerate(payloads[:-1]):
        assert a.send(name(b), at(b), Lane.DATA, [b"\x90%d" % number, payload])
    net.until(lambda: len(net.events(b, Received)) == 63, 20)
    assert a.send(name(b), at(b), Lane.DATA, [b"\x9063", payloads[-1]])
    net.until(lambda: len(net.events(b, Received)) == 64)
    assert [event.frames for event in net.events(b, Received)] == [
        [b"\x90%d" % number, payload] for number, payload in enumerate(payloads)
    ]


def test_peer_that_only_dials_out_is_answered_over_its_own_link(net: Net) -> None:
    a, b = net.peer(listen=None), net.peer()
    assert (a.port, a.address_bound) == (0, "")
    net.link(a, b)
    assert b.send(name(a), "", Lane.DATA, [b"\x90", b"x" * 9000])
    net.until(lambda: net.events(a, Received))
    assert net.events(a, Received)[0].frames == [b"\x90", b"x" * 9000]


def test_seed_known_by_address_alone_reuses_the_link(net: Net) -> None:
    a, b = net.peer(), net.peer()
    net.link(a, b)
    assert a.send(b"", at(b), Lane.CONTROL, PING)
    net.until(lambda: net.events(b, Received))
    assert len(b.links()) == 1
    assert not net.events(b, LinkUp)


def test_unknown_peer_without_address_is_dropped_and_counted(net: Net) -> None:
    a = net.peer()
    assert not a.send(bytes(32), "", Lane.CONTROL, PING)
    assert a.counters.drops == {"unroutable": 1}


def test_full_queue_drops_newest_and_keeps_order(net: Net) -> None:
    a = net.peer(limits=TransportLimits(queue_messages=50))
    b = net.peer()
    with Relay(b.port) as relay:
        assert a.send(name(b), f"127.0.0.1:{relay.port}", Lane.CONTROL, PING)
        net.until(lambda: net.events(b, Received))
        net.forget()
        relay.stalled.set()
        accepted, number, queued = [], 0, 0
        while len(accepted) == number:  # the kernel's buffers fill, then a's pipe, then a's queue
            if a.send(name(b), "", Lane.DATA, [b"\x90%d" % number, bytes(100_000)]):
                accepted.append(b"\x90%d" % number)
            else:
                queued = a.links()[0].queued
            a.poll(0)
            number += 1
        assert a.counters.drops == {"queue": 1}
        assert a.counters.full >= 50 and queued == 50
        relay.stalled.clear()
        net.until(lambda: len(net.events(b, Received)) == len(accepted), 20)
        assert [event.frames[0] for event in net.events(b, Received)] == accepted


@pytest.mark.parametrize("flooder", ["dialler", "listener"])
def test_more_messages_than_the_reader_takes__link_closed_and_flooder_kept_out(net: Net, flooder: str) -> None:
    reads = replace(FAST, queue_messages=60, shun=0.5)
    a, b, other = net.peer(), net.peer(limits=reads), net.peer()
    net.link(*((a, b) if flooder == "dialler" else (b, a)))
    net.link(other, b)
    for _ in range(40):
        for _ in range(10):
            a.send(name(b), "", Lane.CONTROL, PING)
        a.poll(0.002)
    assert other.send(name(b), "", Lane.CONTROL, PING)
    net.until(lambda: net.events(b, Flooded) and net.events(b, LinkDown) and net.events(a, LinkDown))
    assert net.events(b, Flooded) == [Flooded(name(a), 61)]
    assert len(net.events(b, Received)) < 100
    net.until(lambda: name(other) in {event.peer for event in net.events(b, Received)})
    assert b.links()[0].peer == name(other)
    assert a.send(name(b), at(b), Lane.CONTROL, PING)
    net.until(lambda: net.events(a, DialFailed))
    assert "sent more than this peer could read" in net.events(a, DialFailed)[0].reason
    net.forget()
    net.until(lambda: a.send(name(b), at(b), Lane.CONTROL, PING) and net.events(b, LinkUp))


def test_ping_is_not_held_up_by_the_data_lane(net: Net) -> None:
    a, b = net.peer(), net.peer()
    net.link(a, b)
    for _ in range(150):
        a.send(name(b), "", Lane.DATA, [b"\x90", bytes(1 << 18)])
    a.send(name(b), "", Lane.CONTROL, PING)
    net.until(lambda: len(net.events(b, Received)) == 151, 20)
    order = [event.lane for event in net.events(b, Received)]
    assert order.index(Lane.CONTROL) < 100


def test_descriptors_of_the_caller_are_watched(net: Net) -> None:
    a = net.peer()
    reading, writing = os.pipe()
    try:
        assert a.poll(0, [reading]) == ([], set())
        os.write(writing, b"!")
        assert a.poll(5, [reading]) == ([], {reading})
        started = time.monotonic()
        assert a.poll(0.01, []) == ([], set())
        assert time.monotonic() - started < 2
    finally:
        os.close(reading)
        os.close(writing)


# -- crossing, closing, coming back ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_crossing_dials_keep_the_lower_ids_link_and_lose_nothing(net: Net, seed: int) -> None:
    generator = random.Random(seed)
    a, b = sorted((net.peer(), net.peer()), key=name)
    sent: dict[int, list[bytes]] = {id(a): [], id(b): []}

    def more(count: int) -> None:
        for _ in range(count):
            source, target = generator.choice([(a, b), (b, a)])
            word = b"\x90%d" % len(sent[id(source)])
            assert source.send(name(target), at(target), generator.choice(list(Lane)), [word])
            sent[id(source)].append(word)
            if generator.random() < 0.2:
                net.happened[id(source)] += source.poll(0)[0]
            elif generator.random() < 0.2:
                net.turn()

    for source, target in ((a, b), (b, a)):
        source.send(name(target), at(target), Lane.CONTROL, [b"\x90first"])
        sent[id(source)].append(b"\x90first")
    more(60)
    net.until(lambda: all(len(net.events(x, Received)) == len(sent[id(y)]) for x, y in ((a, b), (b, a))))
    net.until(lambda: [x.inbound for x in (*a.links(), *b.links())] == [False, True])
    net.settle(0.3)  # past the time in which the other link is still read
    more(20)
    net.until(lambda: all(len(net.events(x, Received)) == len(sent[id(y)]) for x, y in ((a, b), (b, a))))
    for receiver, source in ((a, b), (b, a)):
        assert sorted(event.frames[0] for event in net.events(receiver, Received)) == sorted(sent[id(source)])
        assert len(net.events(receiver, LinkUp)) == 1
        assert not net.events(receiver, LinkDown)
        assert not receiver.counters.drops
    assert [x.inbound for x in (*a.links(), *b.links())] == [False, True]


@pytest.mark.parametrize("closes", ["dialler", "listener"])
def test_link_down_is_noticed_and_the_peer_found_again_when_it_is_back(net: Net, closes: str) -> None:
    a, b = net.peer(), net.peer()
    dialler, listener = (b, a) if closes == "dialler" else (a, b)
    net.link(dialler, listener)
    port, before = b.port, b
    net.close(b)
    net.until(lambda: net.events(a, LinkDown))
    assert net.events(a, LinkDown)[0].peer == name(b)
    assert a.links() == []
    if closes == "listener":
        assert a.send(name(b), f"127.0.0.1:{port}", Lane.CONTROL, PING)
        net.until(lambda: net.events(a, DialFailed))
    b = net.peer(before.identity, listen=f"tcp://127.0.0.1:{port}", incarnation=2)
    net.until(lambda: a.send(name(b), at(b), Lane.CONTROL, PING))
    net.until(lambda: net.events(b, Received))
    assert net.events(a, LinkUp)[-1].incarnation == 2


def test_a_stalled_line_is_found_by_both_sides(net: Net) -> None:
    limits = TransportLimits(heartbeat=0.1, drain=0.1)
    a, b = net.peer(limits=limits), net.peer(limits=limits)
    with Relay(b.port) as relay:
        assert a.send(name(b), f"127.0.0.1:{relay.port}", Lane.CONTROL, PING)
        net.until(lambda: net.events(b, Received))
        relay.stalled.set()
        net.until(lambda: net.events(a, LinkDown) and net.events(b, LinkDown), 4)


def test_unused_link_is_closed_by_its_dialler_and_dialled_again(net: Net) -> None:
    a = net.peer(limits=TransportLimits(idle=0.3))
    b = net.peer()
    net.link(a, b)
    net.until(lambda: net.events(a, LinkDown) and net.events(b, LinkDown))
    assert net.events(a, LinkDown)[0].reason.startswith("unused for")
    assert a.send(name(b), at(b), Lane.CONTROL, PING)
    net.until(lambda: net.events(b, Received))


def test_unused_inbound_link_is_closed_later_by_its_listener(net: Net) -> None:
    a = net.peer()
    b = net.peer(limits=TransportLimits(idle=0.2))
    net.link(a, b)
    net.until(lambda: net.events(a, LinkDown) and net.events(b, LinkDown))
    assert net.events(a, LinkDown)[0].reason.startswith("unused for")


def test_links_past_the_limit_take_the_place_of_the_longest_unused(net: Net) -> None:
    hub = net.peer(limits=TransportLimits(links=4, idle=1.5))
    others = [net.peer() for _ in range(5)]
    for other in others[:4]:
        net.link(other, hub)
    others[4].send(b"", at(hub), Lane.CONTROL, PING)
    net.until(lambda: net.events(others[4], DialFailed))
    assert "all 4 links are taken" in net.events(others[4], DialFailed)[0].reason
    deadline = time.monotonic() + 1.6
    net.until(
        lambda: [x.send(name(hub), at(hub), Lane.CONTROL, PING) for x in others[1:4]] and time.monotonic() > deadline
    )
    net.until(lambda: others[4].send(b"", at(hub), Lane.CONTROL, PING) and net.events(others[4], LinkUp))
    assert len(hub.links()) <= 4


def test_peer_started_again_while_its_old_link_still_stands(net: Net) -> None:
    identity = Identity.generate()
    a, old = net.peer(), net.peer(identity)
    net.link(old, a)
    new = net.peer(identity, incarnation=2)
    assert new.send(name(a), at(a), Lane.CONTROL, PING)
    net.until(lambda: net.events(a, Received))
    kinds = [type(event) for event in net.happened[id(a)]]
    assert kinds == [LinkDown, LinkUp, Received]
    assert [link.incarnation for link in a.links()] == [2]
    net.until(lambda: net.events(old, LinkDown))
    net.forget()
    assert old.send(name(a), at(a), Lane.CONTROL, PING)  # a copied home, or a past that will not pass
    net.until(lambda: net.events(old, DialFailed))
    assert net.events(old, DialFailed)[0].code == "GD-205"
    assert [link.incarnation for link in a.links()] == [2]


@pytest.mark.parametrize("copy_dials", [True, False])
def test_two_daemons_of_a_home_copied_before_its_first_start__the_second_is_refused(net: Net, copy_dials: bool) -> None:
    """Both have incarnation 1, as all hosts of a machine image with a home have."""
    identity = Identity.generate()
    a, first, second = net.peer(), net.peer(identity), net.peer(identity)
    net.link(first, a)
    net.forget()
    dialler, listener = (second, a) if copy_dials else (a, second)
    assert dialler.send(b"", at(listener), Lane.CONTROL, PING)
    net.until(lambda: net.events(dialler, DialFailed))
    assert net.events(dialler, DialFailed)[0].code == "GD-205"
    assert not net.events(a, LinkDown) and not net.events(a, Received) and len(a.links()) == 1
    assert first.send(name(a), at(a), Lane.CONTROL, PING)
    net.until(lambda: net.events(a, Received))
    net.close(first)
    net.until(lambda: net.events(a, LinkDown))
    net.forget()
    net.until(lambda: dialler.send(b"", at(listener), Lane.CONTROL, PING) and net.events(a, LinkUp))


# -- who is not there --------------------------------------------------------------------------------------------


@pytest.fixture
def closed_port() -> Iterator[int]:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


def test_closed_port_is_gd_101_with_the_address_and_dialled_again_later(net: Net, closed_port: int) -> None:
    a = net.peer(limits=TransportLimits(redial=0.2))
    address, target = f"127.0.0.1:{closed_port}", bytes(32)
    assert a.send(target, address, Lane.CONTROL, PING)
    assert a.send(b"", address, Lane.CONTROL, PING)
    net.until(lambda: net.events(a, DialFailed))
    reason = f"{address} refused"
    assert net.events(a, DialFailed) == [
        DialFailed(b"", address, reason, "GD-101"),
        DialFailed(target, address, reason, "GD-101"),
    ]
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
    assert net.events(a, DialFailed) == [DialFailed(b"", address, reason, "GD-101")]
    b = net.peer()
    assert a.send(b"", f"two.example:{b.port}", Lane.CONTROL, PING)
    net.until(lambda: net.events(b, Received))


def test_full_backlog__timed_out_and_not_refused(net: Net) -> None:
    a = net.peer(limits=replace(FAST, connect=0.3))
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
    assert net.events(a, DialFailed) == [DialFailed(bytes(32), f"{host}:4710", f"{host}:4710 is not a name", "GD-101")]


def test_silent_listener_is_gd_101_after_the_handshake_limit(net: Net) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        a = net.peer()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        a.send(b"", address, Lane.CONTROL, PING)
        net.until(lambda: net.events(a, DialFailed), 2)
        assert net.events(a, DialFailed) == [
            DialFailed(b"", address, f"{address} connected, then silent for 0.3 s", "GD-101")
        ]


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
    assert "leads back to the dialler itself" in net.events(a, DialFailed)[0].reason
    assert a.links() == []
    net.forget()
    net.settle(0.05)  # past `redial`
    assert not a.send(bytes(32), at(a), Lane.CONTROL, PING) and not net.events(a, DialFailed), "not dialled again"


def test_busy_port_is_gd_104(net: Net) -> None:
    a = net.peer()
    with pytest.raises(UnreachableError, match="GD-104") as caught:
        net.peer(listen=f"tcp://127.0.0.1:{a.port}")
    assert str(a.port) in caught.value.seen and "--listen tcp://*:PORT" in caught.value.do


# -- who is not let in -------------------------------------------------------------------------------------------


def test_wrong_secret_is_gd_201_on_both_sides(net: Net) -> None:
    a, b = net.peer(secret=NetworkSecret.generate()), net.peer()
    a.send(name(b), at(b), Lane.CONTROL, PING)
    net.until(lambda: net.events(a, DialFailed) and net.events(b, HandshakeRefused))
    failed = net.events(a, DialFailed)[0]
    assert (failed.peer, failed.address, failed.code) == (name(b), at(b), "GD-201")
    assert "network secret differs" in failed.reason
    refused = net.events(b, HandshakeRefused)[0]
    assert refused.code == "GD-201"
    assert refused.address in ("", "127.0.0.1")
    assert a.links() == b.links() == []
    assert a.counters.handshakes["GD-201"] == 1


def test_proxy_without_its_peer_ends_no_newcomer(net: Net) -> None:
    """It accepts, finds no peer behind it and closes, as a forwarded port does whose peer is not up."""
    a = net.peer()
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.setblocking(False)
        address = f"127.0.0.1:{proxy.getsockname()[1]}"
        refusals = Refusals([address])

        def failed() -> list[DialFailed]:
            with suppress(BlockingIOError):
                proxy.accept()[0].close()
            return net.events(a, DialFailed)

        for _ in range(TIMES + 1):
            net.until(lambda: a.send(b"", address, Lane.CONTROL, PING))
            net.until(failed)
            (event,) = net.events(a, DialFailed)
            assert event.code == "GD-101" and "without a word: a proxy" in event.reason
            assert event.do.startswith("start the peer behind the proxy")
            assert refusals.failed(event.address, event.code, event.reason, ours=event.ours) is None
            net.forget()


def test_refusal_names_an_address_that_the_next_connection_has_too(net: Net) -> None:
    b = net.peer()
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
    hello = b"\x04\xc8\x05HELLO\x01\x00" + bytes(192)  # a box that no key opens
    for connections in (1, 2):
        with socket.create_connection(("127.0.0.1", b.port)) as stranger:
            stranger.sendall(greeting)
            net.settle(0.05)
            stranger.sendall(hello)
            net.until(lambda: len(net.events(b, HandshakeRefused)) == connections)  # noqa: B023
    assert {(event.address, event.code) for event in net.events(b, HandshakeRefused)} == {("127.0.0.1", "GD-201")}


@pytest.mark.parametrize(
    ("change", "words"),
    [({"network": "other"}, ("network 'other'", "'tiny'")), ({"run": bytes(16)}, ("run 00000000", "00010203"))],
)
def test_other_network_or_run_is_gd_203_and_readable_on_both_sides(
    net: Net, change: dict[str, Any], words: tuple[str, str]
) -> None:
    a, b = net.peer(**change), net.peer()
    a.send(name(b), at(b), Lane.CONTROL, PING)
    net.until(lambda: net.events(a, DialFailed) and net.events(b, HandshakeRefused))
    failed, refused = net.events(a, DialFailed)[0], net.events(b, HandshakeRefused)[0]
    assert failed.code == refused.code == "GD-203"
    for word in words:
        assert word in failed.reason
        assert word in refused.reason
    assert a.links() == b.links() == []


def test_banned_key_is_gd_204_on_both_sides(net: Net) -> None:
    a = net.peer()
    b = net.peer(banned=frozenset({name(a)}))
    a.send(name(b), at(b), Lane.CONTROL, PING)
    net.until(lambda: net.events(a, DialFailed) and net.events(b, HandshakeRefused))
    failed = net.events(a, DialFailed)[0]
    assert (failed.code, failed.ours) == ("GD-204", False)
    assert net.events(b, HandshakeRefused)[0] == HandshakeRefused(
        "127.0.0.1", "GD-204", "a key dialled in that is banned here, or not among those allowed"
    )
    assert b.links() == []
    c = net.peer()
    net.link(c, b)


def test_peer_that_is_not_allowed_is_gd_204_whichever_side_dials(net: Net) -> None:
    a, c = net.peer(), net.peer()
    b = net.peer(allowed=frozenset({name(c)}))
    net.link(c, b)
    a.send(name(b), at(b), Lane.CONTROL, PING)
    net.until(lambda: net.events(a, DialFailed) and net.events(b, HandshakeRefused))
    assert net.events(a, DialFailed)[0].code == net.events(b, HandshakeRefused)[0].code == "GD-204"
    net.forget()
    b.send(name(a), at(a), Lane.CONTROL, PING)
    net.until(lambda: net.events(b, DialFailed))
    failed = net.events(b, DialFailed)[0]
    assert failed.code == "GD-204" and "not among those allowed" in failed.reason
    assert a.links() == [] and len(b.links()) == 1


def test_banned_peer_is_not_linked_by_its_own_listener_either(net: Net) -> None:
    a = net.peer()
    b = net.peer(banned=frozenset({name(a)}))
    b.send(b"", at(a), Lane.CONTROL, PING)
    net.until(lambda: net.events(b, DialFailed))
    failed = net.events(b, DialFailed)[0]
    assert (failed.code, failed.ours) == ("GD-204", True) and a.links() == b.links() == []


def test_cloned_identity_is_gd_205(net: Net) -> None:
    identity = Identity.generate()
    a, b = net.peer(identity), net.peer(identity)
    a.send(b"", at(b), Lane.CONTROL, PING)
    net.until(lambda: net.events(a, DialFailed) and net.events(b, HandshakeRefused))
    assert net.events(a, DialFailed)[0].code == net.events(b, HandshakeRefused)[0].code == "GD-205"
    assert a.start != b.start and a.links() == b.links() == []
    assert {event.start for event in net.events(a, CopyMet)} == {b.start}  # which needs the key to say
    assert {event.start for event in net.events(b, CopyMet)} == {a.start}


def test_address_that_leads_back_to_the_dialler_is_no_copy_of_it(net: Net) -> None:
    a = net.peer()
    a.send(b"", at(a), Lane.CONTROL, PING)
    net.until(lambda: net.events(a, DialFailed))
    assert net.events(a, DialFailed)[0].code == "GD-101" and not net.events(a, CopyMet)


def test_dialler_that_only_claims_this_peers_identity_is_no_copy_of_it(net: Net) -> None:
    me, liar = Identity.generate(), Identity.generate()
    a = net.peer(me)
    said = handshake.unpack(dialler(me).hello())
    assert isinstance(said, handshake.Hello)
    with pytest.raises(RefusedError, match="GD-202"):
        ListenerHello(LocalPeer(me, "tiny", RUN, 1, START), liar.curve.public).hello(said)
    hello = dialler(me)
    there = ListenerHello(LocalPeer(liar, "tiny", RUN, 1, START), me.curve.public)
    sent = handshake.unpack(hello.hello())
    assert isinstance(sent, handshake.Hello)
    answer = handshake.unpack(there.hello(sent))
    assert isinstance(answer, handshake.Answer)
    with pytest.raises(RefusedError, match="GD-202"):
        hello.answer(msgspec.structs.replace(answer, id=me.id))
    assert hello.peer == b"" and not net.events(a, CopyMet)


# -- the run -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialler_knows", [True, False])
def test_run_is_learned_from_a_verified_hello(net: Net, dialler_knows: bool) -> None:
    a, b = net.peer(run=RUN if dialler_knows else b""), net.peer(run=b"" if dialler_knows else RUN)
    learner, teacher = (b, a) if dialler_knows else (a, b)
    a.send(b"", at(b), Lane.CONTROL, PING)
    net.until(lambda: net.events(b, Received))
    assert net.events(learner, RunLearned) == [RunLearned(RUN, name(teacher))]
    assert learner.run == RUN


def test_run_founded_later_reaches_runless_neighbours_and_theirs(net: Net) -> None:
    a, b, c = (net.peer(run=b"") for _ in range(3))
    net.link(a, b)
    net.link(b, c)
    a.found(RUN)
    net.until(lambda: c.run == RUN)
    assert net.events(c, RunLearned) == [RunLearned(RUN, name(b))]
    with pytest.raises(LocalProtocolError):
        a.found(bytes(16))


def test_two_runs_founded_apart_part_with_a_reason(net: Net) -> None:
    a, b = net.peer(run=b""), net.peer(run=b"")
    net.link(a, b)
    a.found(RUN)
    b.found(bytes(16))
    net.until(lambda: net.events(a, LinkDown) and net.events(b, LinkDown))
    refused = net.events(a, HandshakeRefused) + net.events(b, HandshakeRefused)
    assert refused
    assert {event.code for event in refused} == {"GD-203"}


# -- strangers and liars -----------------------------------------------------------------------------------------


class Stranger:
    """A raw DEALER with or without CURVE that sends what a test chooses."""

    def __init__(self, port: int, secret: NetworkSecret | None = None, identity: Identity | None = None) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        if secret is not None and identity is not None:
            self.socket.setsockopt(zmq.CURVE_SERVERKEY, secret.curve_server_keys().public)
            self.socket.setsockopt(zmq.CURVE_PUBLICKEY, identity.curve.public)
            self.socket.setsockopt(zmq.CURVE_SECRETKEY, identity.curve.secret)
        self.port = port

    def watch(self) -> zmq.Socket[bytes]:
        """A socket that can be read once the connection is lost."""
        return self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)

    def connect(self) -> Stranger:
        self.socket.connect(f"tcp://127.0.0.1:{self.port}")
        return self

    def say(self, frames: list[Buffer]) -> None:
        self.socket.send_multipart(frames)

    def heard(self) -> handshake.ServiceMessage | None:
        try:
            return handshake.unpack(self.socket.recv_multipart(zmq.NOBLOCK))
        except zmq.Again:
            return None

    def __enter__(self) -> Stranger:
        return self.connect()

    def __exit__(self, *_: object) -> None:
        self.context.destroy(linger=0)


def hear(net: Net, stranger: Stranger) -> handshake.ServiceMessage:
    heard: list[handshake.ServiceMessage] = []

    def listen() -> bool:
        if (message := stranger.heard()) is not None:
            heard.append(message)
        return bool(heard)

    net.until(listen)
    return heard[0]


def dialler(identity: Identity, **changes: Any) -> DiallerHello:
    settings: dict[str, Any] = {"network": "tiny", "run": RUN, "incarnation": 1, "start": START} | changes
    return DiallerHello(LocalPeer(identity, **settings), os.urandom(32), Lane.CONTROL)


@pytest.mark.parametrize("mechanism", ["null", "plain"])
def test_connection_without_curve_changes_nothing_but_counters(net: Net, mechanism: str) -> None:
    a = net.peer()
    stranger = Stranger(a.port)
    if mechanism == "plain":
        stranger.socket.setsockopt(zmq.PLAIN_USERNAME, b"user")
        stranger.socket.setsockopt(zmq.PLAIN_PASSWORD, b"password")
    with stranger:
        stranger.say([*PING])
        # Both ends see the mismatch: whoever is faster closes, and the other sees only that.
        net.until(lambda: a.counters.handshakes["mechanism"] or a.counters.handshakes["broken"])
        assert stranger.heard() is None
    assert net.happened[id(a)] == []
    assert a.links() == []
    assert not a.counters.received_bytes
    assert not a.counters.drops


@pytest.mark.parametrize("seed", range(3))
def test_garbage_on_the_port_changes_nothing(net: Net, seed: int) -> None:
    a, b = net.peer(), net.peer()
    generator = random.Random(seed)
    starts = [b"", b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f", b"GET / HTTP/1.1\r\n\r\n"]
    with socket.create_connection(("127.0.0.1", a.port)) as sender:
        sender.sendall(starts[seed] + generator.randbytes(20_000))
        sender.settimeout(0)
        net.until(lambda: hung_up(sender))
    assert net.happened[id(a)] == []
    assert a.links() == []
    net.link(b, a)


def hung_up(connection: socket.socket) -> bool:
    try:
        return connection.recv(4096) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_message_before_the_hello_is_dropped(net: Net) -> None:
    a = net.peer()
    with Stranger(a.port, net.secret, Identity.generate()) as stranger:
        for frames in ([*PING], [b""], [b"\xc1"], [b"\xc1" + os.urandom(100)], [b"\xc1" * 600, b"x"]):
            stranger.say(frames)
        net.until(lambda: a.counters.drops["unverified"] == 5)
        assert isinstance(hear(net, stranger), handshake.Bye)
    assert net.happened[id(a)] == []
    assert a.links() == []


def test_hello_with_another_peers_id_is_refused(net: Net) -> None:
    a, victim = net.peer(), Identity.generate()
    with Stranger(a.port, net.secret, Identity.generate()) as liar:
        liar.say(dialler(victim).hello())
        answer = hear(net, liar)
        assert isinstance(answer, handshake.Refuse)
        assert answer.code == "GD-202"
    assert net.events(a, HandshakeRefused)[0].code == "GD-202"
    assert a.links() == []


def test_proof_signed_by_another_key_is_refused(net: Net) -> None:
    a, liar = net.peer(), Identity.generate()
    with Stranger(a.port, net.secret, liar) as stranger:
        stranger.say(dialler(liar).hello())
        assert isinstance(hear(net, stranger), handshake.Answer)
        stranger.say(handshake.pack(handshake.Proof(Identity.generate().sign(b"anything"))))
        answer = hear(net, stranger)
        assert isinstance(answer, handshake.Refuse)
        assert answer.code == "GD-202"
    assert a.links() == []


def test_replayed_hello_and_proof_are_refused_on_another_connection(net: Net) -> None:
    a, member, thief = net.peer(), Identity.generate(), Identity.generate()
    hello = dialler(member)
    with Stranger(a.port, net.secret, member) as honest:
        honest.say(hello.hello())
        answer = hear(net, honest)
        assert isinstance(answer, handshake.Answer)
        proof = hello.answer(answer)
        honest.say(proof)
        net.turn()
    with Stranger(a.port, net.secret, thief) as replay:  # another CURVE key: the hello itself is refused
        replay.say(hello.hello())
        refusal = hear(net, replay)
        assert isinstance(refusal, handshake.Refuse)
    with Stranger(a.port, net.secret, member) as replay:  # even with the key: the nonce of the answer is a new one
        replay.say(hello.hello())
        assert isinstance(hear(net, replay), handshake.Answer)
        replay.say(proof)
        refusal = hear(net, replay)
        assert isinstance(refusal, handshake.Refuse)
        assert refusal.code == "GD-202"
    assert a.links() == []
    assert not net.events(a, LinkUp)


def test_other_protocol_version_is_gd_302(net: Net) -> None:
    a, newer = net.peer(), Identity.generate()
    hello = handshake.Hello(PROTOCOL_VERSION + 1, newer.id, bytes(32), "tiny", RUN, 0, 1, bytes(8))
    with Stranger(a.port, net.secret, newer) as stranger:
        stranger.say(handshake.pack(hello))
        answer = hear(net, stranger)
        assert isinstance(answer, handshake.Refuse)
        assert answer.code == "GD-302"


def test_unfinished_hellos_are_bounded_and_time_out(net: Net) -> None:
    a = net.peer(limits=TransportLimits(hellos=4, hello=0.3))
    strangers = []
    try:
        for _ in range(8):
            identity = Identity.generate()
            strangers.append(Stranger(a.port, net.secret, identity).connect())
            strangers[-1].say(dialler(identity).hello())
        for stranger in strangers:
            assert isinstance(hear(net, stranger), handshake.Answer)
        net.until(lambda: a.counters.handshakes["timeout"] == 8)
    finally:
        for stranger in strangers:
            stranger.__exit__()
    net.link(net.peer(), a)


def test_listener_with_a_false_id_is_refused_by_the_dialler() -> None:
    me, listener, victim = Identity.generate(), Identity.generate(), Identity.generate()
    hello = dialler(me)
    there = ListenerHello(LocalPeer(listener, "tiny", RUN, 1, START), me.curve.public)
    said = handshake.unpack(hello.hello())
    assert isinstance(said, handshake.Hello)
    honest = handshake.unpack(there.hello(said))
    assert isinstance(honest, handshake.Answer)
    for change in ({"id": victim.id}, {"run": b""}, {"nonce": bytes(32)}, {"incarnation": 2}, {"signature": bytes(64)}):
        with pytest.raises(Exception, match="GD-202"):
            hello.answer(msgspec.structs.replace(honest, **change))
    hello.answer(honest)
    assert hello.peer == listener.id


def test_service_messages_and_protocol_messages_are_never_taken_for_each_other() -> None:
    assert not handshake.is_service(PING[0])
    generator = random.Random(0)
    good = bytes(dialler(Identity.generate()).hello()[0])
    with pytest.raises(RemoteProtocolError):
        handshake.unpack(PING)
    for _ in range(5000):
        bad = bytearray(good)
        for _ in range(generator.randrange(1, 4)):
            bad[generator.randrange(len(bad))] = generator.randrange(256)
        try:
            handshake.unpack([bytes(bad[: generator.randrange(len(bad) + 1)])])
        except RemoteProtocolError:
            continue


def test_message_of_too_many_frames_is_dropped_and_the_link_stays(net: Net) -> None:
    a, b = net.peer(), net.peer()
    net.link(a, b)
    a.send(name(b), "", Lane.CONTROL, [b"\x90"] * 65)
    a.send(name(b), "", Lane.CONTROL, PING)
    net.until(lambda: net.events(b, Received))
    assert b.counters.drops == {"malformed": 1}


def test_half_open_connections_do_not_keep_an_honest_peer_out(net: Net) -> None:
    a, b = net.peer(limits=TransportLimits(handshake=1.0)), net.peer()
    idle = [socket.create_connection(("127.0.0.1", a.port)) for _ in range(300)]
    try:
        started = time.monotonic()
        net.link(b, a)
        assert time.monotonic() - started < 2
        for connection in idle:
            connection.settimeout(0)
        net.until(lambda: a.counters.handshakes["timeout"] + a.counters.handshakes["crowded"] >= 300)
        assert all(map(hung_up_after_greeting, idle))
    finally:
        for connection in idle:
            connection.close()


def test_silent_connection__greeted_while_a_second_look_waits(net: Net) -> None:
    a = net.peer()
    with socket.create_connection(("127.0.0.1", a.port)) as silent:
        silent.settimeout(0)
        begun = time.monotonic()
        net.until(lambda: readable(silent))
        assert silent.recv(16).startswith(dial_causes.SIGNATURE[:1])
        assert time.monotonic() - begun < dial_causes.SPEAKS


def readable(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 0)[0])


def test_member_without_a_hello__its_connection_is_closed_in_time(net: Net) -> None:
    a = net.peer()
    with Stranger(a.port, net.secret, Identity.generate()) as stranger:
        watched = stranger.watch()
        stranger.say([b"\x90not a hello"])
        net.until(lambda: a.counters.drops["unverified"])
        net.until(lambda: watched.poll(0), FAST.handshake + FAST.hello + 3)


def test_link_over_and_the_dialler_stays__its_connections_are_closed(net: Net) -> None:
    a, member = net.peer(), Identity.generate()
    me = LocalPeer(member, network="tiny", run=RUN, incarnation=1, start=START)
    hellos = [DiallerHello(me, bytes(32), lane) for lane in Lane]
    strangers = [Stranger(a.port, net.secret, member).connect() for _ in Lane]
    try:
        watched = [stranger.watch() for stranger in strangers]
        for stranger, hello in zip(strangers, hellos, strict=True):
            stranger.say(hello.hello())
            answer = hear(net, stranger)
            assert isinstance(answer, handshake.Answer)
            stranger.say(hello.answer(answer))
        net.until(lambda: net.events(a, LinkUp))
        strangers[0].say(pack(handshake.Bye("over")))
        net.until(lambda: net.events(a, LinkDown))
        net.until(lambda: all(monitor.poll(0) for monitor in watched))
    finally:
        for stranger in strangers:
            stranger.__exit__()


def hung_up_after_greeting(connection: socket.socket) -> bool:
    return hung_up(connection) or hung_up(connection)


class Relay:
    """A TCP relay between a dialler and `port` that can stall without closing a connection."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.stalled = threading.Event()
        self._done = threading.Event()
        self._connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        pairs: dict[socket.socket, socket.socket] = {}
        self._server.settimeout(0.002)
        while not self._done.is_set():
            try:
                near, _ = self._server.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                pairs[near], pairs[far] = far, near
                self._connections += [near, far]
                for end in (near, far):
                    end.setblocking(False)
            except TimeoutError:
                pass
            for source, target in pairs.items():
                try:
                    if not self.stalled.is_set() and (data := source.recv(1 << 16)):
                        target.sendall(data)
                except OSError:
                    pass

    def __enter__(self) -> Relay:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        for connection in (self._server, *self._connections):
            connection.close()


def test_connection_that_breaks_while_it_is_shut__other_links_live(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """libzmq's I/O thread reports the break to a monitor. It would wait forever if the monitor's reader were gone."""
    dialler, first, second = net.peer(), net.peer(), net.peer()
    net.link(dialler, first)
    detach = dialler._wire._detach

    def detach_slowly(source: Any, linger: float = 0) -> None:
        detach(source, linger)
        if first in net.transports:
            net.close(first)  # between the monitor's end and the connection's
            net.settle(0.05)

    monkeypatch.setattr(dialler._wire, "_detach", detach_slowly)
    (link,) = dialler._links._links.values()
    dialler._wire.shut(link.connections[Lane.CONTROL], 0.0)
    net.link(dialler, second)


# -- dialling back ---------------------------------------------------------------------------------------------

ASKING = replace(FAST, dial_back=0.3)


def dialable(net: Net, transport: Transport) -> list[tuple[str, bool, int]]:
    return [(event.address, event.dialable, event.opinions) for event in net.events(transport, Dialable)]


def test_dialled_back_with_success__no_event_and_the_link_stays(net: Net) -> None:
    asker, other = net.peer(limits=ASKING), net.peer(limits=ASKING)
    asker.advertise(at(asker))
    net.link(asker, other)
    net.until(lambda: asker.counters.handshakes["ok"] == 2)  # its own dial, and the one it asked for
    net.settle(1.0)
    assert dialable(net, asker) == []
    assert asker.counters.handshakes["ok"] == 2  # no need to ask again
    assert not net.events(asker, LinkDown) and not net.events(other, LinkDown)
    assert asker.send(name(other), "", Lane.CONTROL, PING) and other.send(name(asker), "", Lane.CONTROL, PING)
    net.until(lambda: net.events(asker, Received) and net.events(other, Received))


def test_dialled_already__no_member_is_asked_to_dial_back(net: Net) -> None:
    peer, other = net.peer(limits=ASKING), net.peer(limits=ASKING)
    peer.advertise(at(peer))
    net.link(other, peer)
    net.settle(0.7)
    assert peer.counters.handshakes == other.counters.handshakes == {"ok": 1}


@pytest.mark.parametrize("elsewhere", ["nobody", "itself", "another member"])
def test_advertised_at_a_wrong_address__told_after_two_rounds_and_again_when_a_peer_dials_in(
    net: Net, closed_port: int, elsewhere: str
) -> None:
    asker, first, second = (net.peer(limits=ASKING) for _ in range(3))
    port = {"nobody": closed_port, "itself": first.port, "another member": second.port}[elsewhere]
    net.link(asker, second)
    asker.advertise(f"127.0.0.1:{port}")
    net.link(asker, first)  # asking begins with this link, and both are there for both rounds
    net.until(lambda: net.events(asker, Dialable))
    (told,) = dialable(net, asker)
    assert told == (f"127.0.0.1:{port}", False, 4)  # two members, twice
    # Those asked report no trouble of their own: the address is not theirs.
    assert not net.events(first, DialFailed) and not net.events(second, DialFailed)
    assert not net.events(asker, LinkDown)
    late = net.peer()
    assert late.send(name(asker), at(asker), Lane.CONTROL, PING)
    net.until(lambda: len(dialable(net, asker)) == 2)
    assert dialable(net, asker)[1][1] is True


def test_first_round_fails_by_chance__not_told(net: Net, closed_port: int) -> None:
    asker, other = net.peer(limits=ASKING), net.peer(limits=ASKING)
    asker.advertise(f"127.0.0.1:{closed_port}")
    net.link(asker, other)
    reachability = asker._links._dial_backs.reachability
    net.until(lambda: any(reachability.asked.values()))
    reachability.address = at(asker)  # the port is open now
    net.until(lambda: reachability.dialable)
    assert dialable(net, asker) == []


def test_no_member_answers__nothing_is_known(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    asker, other = net.peer(limits=ASKING), net.peer(limits=ASKING)
    monkeypatch.setattr(other._links._dialling, "dial_back", lambda *_: None)
    asker.advertise(at(asker))
    net.link(asker, other)
    net.settle(1.2)
    assert dialable(net, asker) == [] and asker._links._dial_backs.reachability.dialable is None


def test_asked_too_often_to_dial_back__dials_once(net: Net, closed_port: int) -> None:
    """A member cannot use others as port scanners: one dial in a while, and no answer on what is at the port."""
    asker, other = net.peer(), net.peer()
    net.link(asker, other)
    link = asker._links._links[name(other)]
    with socket.create_server(("127.0.0.1", 0)) as door:
        door.setblocking(False)
        for port in (door.getsockname()[1], closed_port, closed_port):
            asker._links._queues.write(link.connections[Lane.CONTROL], pack(handshake.DialBack(f"127.0.0.1:{port}")))
        net.until(lambda: other.counters.handshakes["timeout"])
        assert [door.accept()[0].close() for _ in Lane] == [None, None]
        with pytest.raises(BlockingIOError):
            door.accept()
    assert other.counters.handshakes["unreachable"] == 0


def test_dial_backs_under_way_are_few_and_leave_room_for_own_dials(net: Net) -> None:
    answering = net.peer(limits=replace(FAST, handshake=5.0))
    askers = [net.peer() for _ in range(MAX_DIAL_BACKS + 2)]
    with socket.create_server(("0.0.0.0", 0)) as silent:
        port = silent.getsockname()[1]
        for number, asker in enumerate(askers):
            net.link(asker, answering)
            link = asker._links._links[name(answering)]
            question = pack(handshake.DialBack(f"127.0.0.{number + 1}:{port}"))
            asker._links._queues.write(link.connections[Lane.CONTROL], question)
        net.settle(0.2)
        assert len(answering._links._dialling._dials) == MAX_DIAL_BACKS
