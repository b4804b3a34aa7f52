"""Remotes without the secret, without a proof or with a replayed one change only counters. Decisions act at once."""

import contextlib
import os
import random
import select
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import zmq

from gossipdp.errors import RemoteProtocolError
from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.admission.statements import signed
from gossipdp.protocol.wire.messages import OLDEST_VERSION, PROTOCOL_VERSION, Decision, Lane, Verdict
from gossipdp.runtime.network import dial_causes, signed_hello
from gossipdp.runtime.network.events import DialFailed, HandshakeRefused, LinkDown, LinkUp, Received
from gossipdp.runtime.network.identity import Identity
from gossipdp.runtime.network.limits import TransportLimits
from gossipdp.runtime.network.signed_hello import DiallerHello, ListenerHello, pack
from tests.runtime.network.transports import (
    PATIENT,
    PING,
    RUN,
    Net,
    Stranger,
    answered,
    at,
    dialler,
    hear,
    local_peer,
    name,
)


@pytest.mark.parametrize("mechanism", ["null", "plain"])
def test_connection_without_curve_changes_nothing_but_counters(net: Net, mechanism: str) -> None:
    a = net.peer()
    stranger = Stranger(a.port)
    if mechanism == "plain":
        stranger.socket.setsockopt(zmq.PLAIN_USERNAME, b"user")
        stranger.socket.setsockopt(zmq.PLAIN_PASSWORD, b"password")
    with stranger:
        stranger.say([*PING])
        # Both ends see the mismatch. The faster one closes, and the other sees only that.
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
        assert isinstance(hear(net, stranger), signed_hello.Bye)
    assert net.happened[id(a)] == []
    assert a.links() == []


def test_hello_with_another_peers_id_is_refused(net: Net) -> None:
    a, victim = net.peer(), Identity.generate()
    with Stranger(a.port, net.secret, Identity.generate()) as liar:
        liar.say(dialler(victim).hello())
        answer = hear(net, liar)
        assert isinstance(answer, signed_hello.Refuse)
        assert answer.code == "GD-202"
    assert net.events(a, HandshakeRefused)[0].code == "GD-202"
    assert a.links() == []


def test_proof_signed_by_another_key_is_refused(net: Net) -> None:
    a, liar = net.peer(), Identity.generate()
    with Stranger(a.port, net.secret, liar) as stranger:
        stranger.say(dialler(liar).hello())
        assert isinstance(hear(net, stranger), signed_hello.Answer)
        stranger.say(signed_hello.pack(signed_hello.Proof(Identity.generate().sign(b"anything"))))
        answer = hear(net, stranger)
        assert isinstance(answer, signed_hello.Refuse)
        assert answer.code == "GD-202"
    assert a.links() == []


def test_replayed_hello_and_proof_are_refused_on_another_connection(net: Net) -> None:
    a, member, thief = net.peer(), Identity.generate(), Identity.generate()
    hello = dialler(member)
    with Stranger(a.port, net.secret, member) as honest:
        honest.say(hello.hello())
        answer = hear(net, honest)
        assert isinstance(answer, signed_hello.Answer)
        proof = hello.answer(answer)
        honest.say(proof)
        net.turn()
    with Stranger(a.port, net.secret, thief) as replay:  # another CURVE key: the hello itself is refused
        replay.say(hello.hello())
        refusal = hear(net, replay)
        assert isinstance(refusal, signed_hello.Refuse)
    with Stranger(a.port, net.secret, member) as replay:  # even with the key: the nonce of the answer is a new one
        replay.say(hello.hello())
        assert isinstance(hear(net, replay), signed_hello.Answer)
        replay.say(proof)
        refusal = hear(net, replay)
        assert isinstance(refusal, signed_hello.Refuse)
        assert refusal.code == "GD-202"
    assert a.links() == []
    assert not net.events(a, LinkUp)


def test_other_protocol_version_is_gd_302(net: Net) -> None:
    a, newer = net.peer(), Identity.generate()
    hello = signed_hello.Hello(PROTOCOL_VERSION + 1, newer.id, bytes(32), "tiny", RUN, 0, 1, bytes(8))
    with Stranger(a.port, net.secret, newer) as stranger:
        stranger.say(signed_hello.pack(hello))
        answer = hear(net, stranger)
        assert isinstance(answer, signed_hello.Refuse)
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
            assert isinstance(hear(net, stranger), signed_hello.Answer)
        net.until(lambda: a.counters.handshakes["timeout"] == 8)
    finally:
        for stranger in strangers:
            stranger.__exit__()
    net.link(net.peer(), a)


def test_listener_with_a_false_id_is_refused_by_the_dialler() -> None:
    me, listener, victim = Identity.generate(), Identity.generate(), Identity.generate()
    hello = dialler(me)
    there = ListenerHello(local_peer(listener), me.curve.public)
    honest = answered(hello, there)
    for change in ({"id": victim.id}, {"run": b""}, {"nonce": bytes(32)}, {"incarnation": 2}, {"signature": bytes(64)}):
        with pytest.raises(Exception, match="GD-202"):
            hello.answer(msgspec.structs.replace(honest, **change))
    hello.answer(honest)
    assert hello.peer == listener.id


def test_service_messages_and_protocol_messages_are_never_taken_for_each_other() -> None:
    assert not signed_hello.is_service(PING[0])
    generator = random.Random(0)
    good = bytes(dialler(Identity.generate()).hello()[0])
    with pytest.raises(RemoteProtocolError):
        signed_hello.unpack(PING)
    for _ in range(5000):
        bad = bytearray(good)
        for _ in range(generator.randrange(1, 4)):
            bad[generator.randrange(len(bad))] = generator.randrange(256)
        try:
            signed_hello.unpack([bytes(bad[: generator.randrange(len(bad) + 1)])])
        except RemoteProtocolError:
            continue


def test_message_of_too_many_frames_is_dropped_and_the_link_stays(net: Net) -> None:
    a, b = net.peer(), net.peer()
    net.link(a, b)
    a.send(name(b), "", Lane.CONTROL, [b"\x90"] * 65)
    a.send(name(b), "", Lane.CONTROL, PING)
    net.until(lambda: net.events(b, Received))
    assert b.counters.drops == {"malformed": 1}


@contextlib.contextmanager
def half_open(port: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as opened:
        yield [opened.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(300)]


def test_half_open_connections_do_not_keep_an_honest_peer_out(net: Net) -> None:
    # None of them is closed because its time is over.
    a, b = net.peer(limits=TransportLimits(handshake=1000.0)), net.peer()
    with half_open(a.port):
        net.link(b, a)


def test_half_open_connections_are_closed(net: Net) -> None:
    a = net.peer(limits=TransportLimits(handshake=1.0))
    with half_open(a.port) as idle:
        for connection in idle:
            connection.settimeout(0)
        # What was closed may arrive later than it counts, and earlier.
        net.until(lambda: a.counters.handshakes["timeout"] + a.counters.handshakes["crowded"] >= 300)
        net.until(lambda: all(map(hung_up_after_greeting, idle)))


def test_silent_connection__greeted_while_a_second_look_waits(net: Net) -> None:
    a = net.peer()
    with socket.create_connection(("127.0.0.1", a.port)) as silent:
        silent.settimeout(0)
        net.until(lambda: readable(silent))
        assert silent.recv(16).startswith(dial_causes.SIGNATURE[:1])


def readable(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 0)[0])


def test_member_without_a_hello__its_connection_is_closed_in_time(net: Net) -> None:
    a = net.peer(limits=replace(PATIENT, handshake=10.0, hello=0.3))
    with Stranger(a.port, net.secret, Identity.generate()) as stranger:
        watched = stranger.watch()
        stranger.say([b"\x90not a hello"])
        net.until(lambda: a.counters.drops["unverified"])
        net.until(lambda: watched.poll(0))


GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
"""of ZMTP 3.1, 64 bytes"""


def test_stranger_begins_a_large_command__closed_long_before_it_is_whole(net: Net) -> None:
    a = net.peer()
    with socket.create_connection(("127.0.0.1", a.port)) as stranger:
        stranger.sendall(GREETING + b"\x06" + (1 << 20).to_bytes(8, "big") + bytes(2000))
        stranger.setblocking(False)
        closed = []

        def heard() -> bool:
            with contextlib.suppress(BlockingIOError):
                closed.append(stranger.recv(4096) == b"")
            return any(closed)

        net.until(heard)


def test_message_larger_than_a_hello_comes_in_place_of_one__its_connection_is_closed(net: Net) -> None:
    a = net.peer()
    with Stranger(a.port, net.secret, Identity.generate()) as stranger:
        watched = stranger.watch()
        stranger.say([bytes(1000)] * 4)
        net.until(lambda: watched.poll(0))


def test_link_over_and_the_dialler_stays__its_connections_are_closed(net: Net) -> None:
    a, member = net.peer(), Identity.generate()
    me = local_peer(member)
    hellos = [DiallerHello(me, bytes(32), lane, 0) for lane in Lane]
    strangers = [Stranger(a.port, net.secret, member).connect() for _ in Lane]
    try:
        watched = [stranger.watch() for stranger in strangers]
        for stranger, hello in zip(strangers, hellos, strict=True):
            stranger.say(hello.hello())
            answer = hear(net, stranger)
            assert isinstance(answer, signed_hello.Answer)
            stranger.say(hello.answer(answer))
        net.until(lambda: net.events(a, LinkUp))
        strangers[0].say(pack(signed_hello.Bye("over")))
        net.until(lambda: net.events(a, LinkDown))
        net.until(lambda: all(monitor.poll(0) for monitor in watched))
    finally:
        for stranger in strangers:
            stranger.__exit__()


def hung_up_after_greeting(connection: socket.socket) -> bool:
    return hung_up(connection) or hung_up(connection)


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


def test_dialler_names_the_oldest_version_it_speaks__which_the_version_before_takes(net: Net) -> None:
    said = signed_hello.unpack(dialler(Identity.generate()).hello())
    assert isinstance(said, signed_hello.Hello) and said.version == OLDEST_VERSION
    a, older = net.peer(), Identity.generate()
    for version, kind in ((OLDEST_VERSION, signed_hello.Answer), (OLDEST_VERSION - 1, signed_hello.Refuse)):
        hello = signed_hello.Hello(version, older.id, bytes(32), "tiny", RUN, 0, 1, bytes(8))
        with Stranger(a.port, net.secret, older) as stranger:
            stranger.say(signed_hello.pack(hello))
            assert isinstance(hear(net, stranger), kind)


OPERATOR = Identity.generate()


def following(identity: Identity) -> Admission:
    return Admission(identity.id, network="tiny", operator=OPERATOR.id, verify=Identity.verify)


def decision(verdict: Verdict, subject: bytes, number: int, *allowed: bytes) -> Decision:
    return signed(Decision(number, verdict, subject, allowed=allowed), "tiny", OPERATOR.sign)


def test_ban_closes_the_link_and_the_way_back__and_ends_with_the_ban(net: Net) -> None:
    me = Identity.generate()
    admission = following(me)
    b, a, c = net.peer(me, admission=admission), net.peer(), net.peer()
    net.link(a, b)
    net.link(c, b)
    assert admission.take([decision(Verdict.BANNED, name(a), 1)])
    b.admission_changed()
    net.until(lambda: net.events(a, LinkDown) and net.events(b, LinkDown))
    assert "the operator has banned it" in net.events(a, LinkDown)[0].reason
    assert [link.peer for link in b.links()] == [name(c)]
    net.forget()
    a.send(name(b), at(b), Lane.CONTROL, PING)
    net.until(lambda: net.events(a, DialFailed) and net.events(b, HandshakeRefused))
    assert net.events(a, DialFailed)[0].code == "GD-204"
    assert admission.take([decision(Verdict.NONE, name(a), 2)])
    b.admission_changed()
    net.until(lambda: a.send(name(b), at(b), Lane.CONTROL, PING) or a.links())
    net.until(lambda: len(b.links()) == 2)


def test_closing_the_network_closes_the_links_with_those_not_allowed(net: Net) -> None:
    me = Identity.generate()
    admission = following(me)
    b, a, c = net.peer(me, admission=admission), net.peer(), net.peer()
    net.link(a, b)
    net.link(c, b)
    admission.take([decision(Verdict.CLOSED, b"", 1, name(c))])
    b.admission_changed()
    net.until(lambda: net.events(a, LinkDown))
    assert [link.peer for link in b.links()] == [name(c)]
