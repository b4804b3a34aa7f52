"""What a hostile relay, or a member that a relay carries for, sends costs others nothing, and ends no process."""

from __future__ import annotations

import math
import os
import secrets
from collections import Counter
from collections.abc import Sequence
from unittest.mock import patch

import pytest
import zmq

from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Lane, through
from gossipdp.runtime.network import carrying, relayed, sealing, signed_hello
from gossipdp.runtime.network.connections import Link
from gossipdp.runtime.network.events import CarriedBy, DialFailed, Flooded, LinkDown, Received
from gossipdp.runtime.network.identity import Identity
from gossipdp.runtime.network.limits import TransportLimits
from gossipdp.runtime.network.signed_hello import Carried, Carry, pack
from gossipdp.runtime.network.transport import Transport
from tests.runtime.network.test_relayed import Hidden, linked
from tests.runtime.network.transports import PING, RUN, START, Net, Stranger, at, name

encode = relayed._encoder.encode
HALF = [b"\x93head", os.urandom(512 << 10)]


def bring(
    hidden: Hidden, target: Transport, origin: Transport, frames: list[Buffer], lane: Lane = Lane.CONTROL
) -> None:
    """Have the relay bring frames that it says are of `origin`."""
    links = hidden.relay._links
    link = links.linked(name(target))
    assert link is not None
    links._queues.write(link.connections[lane], [*pack(Carried(name(origin))), *frames])


def ask(hidden: Hidden, origin: Transport, to: Transport, frames: list[Buffer], lane: Lane = Lane.CONTROL) -> None:
    """Have a member ask the relay to carry frames."""
    link = origin._links.linked(name(hidden.relay))
    assert link is not None
    origin._links._queues.write(link.connections[lane], [*pack(Carry(name(to))), *frames])


def third(hidden: Hidden, *, attends: bool = False) -> Transport:
    """One more member that only dials out, linked with the relay."""
    made = hidden.net.peer(listen=None)
    made.attend([name(hidden.relay)] if attends else (), {name(hidden.relay): (at(hidden.relay),)})
    assert made.send(b"", at(hidden.relay), Lane.CONTROL, PING)
    hidden.net.until(lambda: hidden.relay._links.linked(name(made)))
    if attends:
        hidden.net.until(lambda: hidden.net.events(made, CarriedBy))
    hidden.net.forget()
    return made


def stream_of(transport: Transport, lane: Lane = Lane.CONTROL) -> relayed._Stream:
    return next(each for each in transport._links._relayed._streams.values() if each.lane is lane)


def arrives(hidden: Hidden) -> None:
    """A ping of `a` arrives at `b`."""
    hidden.net.forget()
    hidden.send(PING)
    hidden.net.until(lambda: hidden.net.events(hidden.b, Received))


# -- what nobody has proven --------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["a", "b"])
def test_sealed_message_without_a_box_proves_nothing(net: Net, end: str) -> None:
    hidden = Hidden(net)
    hidden.link()
    victim, other = (hidden.a, hidden.b) if end == "a" else (hidden.b, hidden.a)
    seal = stream_of(victim).seal
    assert seal is not None
    before = seal._received
    bring(hidden, victim, other, [encode(relayed._Sealed(stream_of(victim).id, 1 << 62))])
    net.until(lambda: victim.counters.drops["malformed"])
    assert seal._received == before
    arrives(hidden)


def test_stream_that_ends_between_its_proofs_brings_up_no_link(net: Net) -> None:
    hidden = Hidden(net)
    links, held, seen, streams = hidden.relay._links, list[list[Buffer]](), Counter[Lane](), list[bytes]()

    def carry(link: Link, lane: Lane, to: bytes, frames: Sequence[Buffer], size: int) -> None:
        parcel = relayed._decoder.decode(frames[0])
        if link.peer == name(hidden.a) and isinstance(parcel, relayed._Sealed):
            seen[lane] += 1
            if seen[lane] == 2 and lane is Lane.DATA:
                held.append([*frames])
                return
            if seen[lane] == 2:
                streams.append(parcel.stream)
        target = links.linked(to)
        if target is not None:
            links._queues.write(target.connections[lane], [*pack(Carried(link.peer)), *frames])

    links._carrier.carry = carry  # type: ignore[method-assign]
    hidden.send(PING)
    net.until(lambda: held and streams)
    net.settle(0.1)
    bring(hidden, hidden.b, hidden.a, [encode(relayed._End(streams[0]))])
    net.until(lambda: streams[0] not in hidden.b._links._relayed._streams)
    bring(hidden, hidden.b, hidden.a, held[0], Lane.DATA)
    net.settle(0.3)
    assert not linked(hidden.b, hidden.a) and not hidden.b._links._listening._pending.keys() & {b"@" + streams[0]}


def test_hello_of_another_lane_than_its_stream_is_refused(net: Net) -> None:
    hidden, made = Hidden(net), relayed._Stream

    def on_control(stream: bytes, relay: bytes, peer: bytes, lane: Lane, *rest: object) -> relayed._Stream:
        return made(stream, relay, peer, Lane.CONTROL, *rest)  # type: ignore[arg-type]

    with patch.object(relayed, "_Stream", on_control):
        hidden.send(PING)
        net.until(lambda: hidden.b.counters.drops["unverified"])
        assert not linked(hidden.b, hidden.a)


def test_dialler_that_names_its_route_takes_the_place_of_no_stream(net: Net) -> None:
    hidden = Hidden(net)
    open_peer = net.peer()
    open_peer.attend([name(hidden.relay)], {name(hidden.relay): (at(hidden.relay),)})
    assert open_peer.send(b"", at(hidden.relay), Lane.CONTROL, PING)
    net.until(lambda: net.events(open_peer, CarriedBy))
    assert hidden.a.send(name(open_peer), through(name(hidden.relay), name(open_peer)), Lane.CONTROL, PING)
    net.until(lambda: linked(open_peer, hidden.a))
    connection = open_peer._links.linked(name(hidden.a)).connections[Lane.CONTROL]  # type: ignore[union-attr]
    assert open_peer.port is not None
    identity = Identity.generate()
    stranger = Stranger(open_peer.port, net.secret, identity)
    stranger.socket.setsockopt(zmq.ROUTING_ID, connection.route)
    with stranger:
        stranger.say(pack(hello_of(identity.id)))
        net.until(lambda: open_peer.counters.drops["unverified"])
    assert open_peer._links._listening._routes[connection.route] is connection
    assert not net.events(hidden.a, LinkDown)


def hello_of(peer: bytes) -> signed_hello.Hello:
    return signed_hello.Hello(signed_hello.OLDEST_VERSION, peer, bytes(32), "tiny", RUN, 0, 1, START)


# -- what work costs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [sealing.Ephemeral().public, bytes(32)], ids=["good", "low order"])
def test_streams_that_begin_and_end_cost_few_key_exchanges(
    net: Net, monkeypatch: pytest.MonkeyPatch, key: bytes
) -> None:
    hidden, exchanges = Hidden(net), Counter[str]()
    member, listener = third(hidden), sealing.Ephemeral.listener

    def counted(self: sealing.Ephemeral, other: bytes) -> sealing.Seal:
        exchanges["all"] += 1
        return listener(self, other)

    monkeypatch.setattr(sealing.Ephemeral, "listener", counted)
    for _ in range(100):
        stream = secrets.token_bytes(16)
        ask(hidden, member, hidden.b, [encode(relayed._Begin(stream, key))])
        ask(hidden, member, hidden.b, [encode(relayed._End(stream))])
    net.until(lambda: hidden.b.counters.drops["unverified"] >= 80)
    assert exchanges["all"] <= relayed.OF_PEER[1] + 4
    hidden.link()


def test_one_stream_costs_few_signatures(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, got, signed = Hidden(net), list[Sequence[Buffer]](), Counter[str]()
    member, ephemeral, stream = third(hidden), sealing.Ephemeral(), secrets.token_bytes(16)
    member._links._relayed.take = lambda *told: got.append(told[3]) or []  # type: ignore[method-assign, func-returns-value]
    ask(hidden, member, hidden.b, [encode(relayed._Begin(stream, ephemeral.public))])
    net.until(lambda: got)
    began = relayed._decoder.decode(got[0][0])
    assert isinstance(began, relayed._Began)
    seal, sign = ephemeral.dialler(began.key), Identity.sign

    def counted(self: Identity, text: bytes) -> bytes:
        signed["all"] += 1
        return sign(self, text)

    monkeypatch.setattr(Identity, "sign", counted)
    for _ in range(20):
        for message in (hello_of(name(member)), signed_hello.Proof(bytes(64))):
            number, boxes = seal.seal(pack(message))
            ask(hidden, member, hidden.b, [encode(relayed._Sealed(stream, number)), *boxes])
    net.until(lambda: stream not in hidden.b._links._relayed._streams)
    net.settle(0.1)
    assert signed["all"] <= relayed.HELLO_MESSAGES


def test_one_relay_locks_out_no_other(net: Net) -> None:
    hidden, hostile = Hidden(net), net.peer()
    hostile.carry(math.inf)
    hidden.b.attend(
        [name(hidden.relay), name(hostile)],
        {name(hidden.relay): (at(hidden.relay),), name(hostile): (at(hostile),)},
    )
    assert hidden.b.send(b"", at(hostile), Lane.CONTROL, PING)
    net.until(lambda: net.events(hidden.b, CarriedBy))
    link = hostile._links.linked(name(hidden.b))
    assert link is not None
    for origin in range(16):
        for _ in range(4):
            begin = encode(relayed._Begin(secrets.token_bytes(16), sealing.Ephemeral().public))
            hostile._links._queues.write(link.connections[Lane.CONTROL], [*pack(Carried(bytes([origin]) * 32)), begin])
    net.until(lambda: len(hidden.b._links._relayed._unproven()) >= relayed.UNPROVEN)
    hidden.link()


# -- what a relay carries ----------------------------------------------------------------------------------------


def test_payload_larger_than_the_budget_ends_nothing(net: Net) -> None:
    hidden = Hidden(net, rate=1e6)
    hidden.link()
    hidden.send([b"\x93head", os.urandom(4 << 20)], Lane.DATA)
    net.until(lambda: [event for event in net.events(hidden.b, Received) if event.lane is Lane.DATA])
    arrives(hidden)
    assert not net.events(hidden.a, LinkDown) and not hidden.relay.counters.not_carried


def test_payloads_beyond_what_a_relay_holds_are_lost_and_told__and_the_link_stays(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carrying, "HELD", 2 << 20)
    hidden = Hidden(net, rate=1e6)
    hidden.link()
    for _ in range(8):
        hidden.send(HALF, Lane.DATA)
    net.until(lambda: hidden.a.counters.drops["queue"])
    assert hidden.relay.counters.not_carried == hidden.a.counters.drops["queue"]
    arrives(hidden)
    assert not net.events(hidden.a, LinkDown)


def test_flood_on_the_control_lane_costs_its_sender_alone(net: Net) -> None:
    hidden = Hidden(net, rate=12.5e6)
    hidden.link()
    member, accomplice = third(hidden), third(hidden, attends=True)
    for _ in range(60):
        ask(hidden, member, accomplice, [encode(relayed._End(bytes(16))), bytes(500 << 10)])
    net.until(lambda: hidden.relay.counters.not_carried >= 50)
    arrives(hidden)
    assert not net.events(hidden.a, LinkDown) and not net.events(hidden.b, LinkDown)


def test_flood_of_small_messages_does_not_cut_a_busy_peer_off_its_relay(net: Net) -> None:
    hidden = Hidden(net)
    hidden.link()
    member = third(hidden)
    for _ in range(40):
        for _ in range(60):
            ask(hidden, member, hidden.b, [encode(relayed._Sealed(bytes(16), 1)), b"x"])
        for transport in (member, hidden.relay, hidden.relay, hidden.relay):  # the other peer is busy meanwhile
            net.happened[id(transport)] += transport.poll(0.001)[0]
    net.until(lambda: hidden.relay.counters.not_carried > 1000)
    arrives(hidden)
    assert not net.events(hidden.b, Flooded) and not net.events(hidden.b, LinkDown)


@pytest.mark.parametrize("lane", Lane)
def test_what_waits_at_a_relay_is_bounded_and_counted(net: Net, lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = Hidden(net)
    hidden.link()
    monkeypatch.setattr(carrying, "HELD", 1 << 20)
    carrier, source = hidden.relay._links._carrier, hidden.relay._links.linked(name(hidden.a))
    assert source is not None
    hidden.relay._links._context.wire.push = lambda *_: False  # type: ignore[method-assign]
    for _ in range(1000):
        carrier.carry(source, lane, name(hidden.b), [b""] * 65, 38)
    waiting = sum(len(way.waiting) for way in carrier._ways.values())
    assert 0 < waiting <= (1 << 20) // carrying.LEAST
    assert hidden.relay.queued_bytes == carrier.held == waiting * carrying.LEAST
    carrier.link_down(name(hidden.b))
    assert carrier.held == 0


# -- whom dials lead to ------------------------------------------------------------------------------------------


def test_member_that_advertises_the_relayed_address_of_another_keeps_nobody_from_it(net: Net) -> None:
    hidden = Hidden(net)
    dialler = net.peer(listen=None, limits=TransportLimits())
    dialler.attend((), {name(hidden.relay): (at(hidden.relay),)})
    member = third(hidden, attends=True)
    member._links._relayed.take = lambda *_: []  # type: ignore[method-assign]
    assert not dialler.send(name(member), hidden.where, Lane.CONTROL, PING), "it is the address of another peer"
    assert dialler.send(name(hidden.b), hidden.where, Lane.CONTROL, PING)
    net.until(lambda: net.events(hidden.b, Received))
    assert not net.events(dialler, DialFailed)


def test_what_waits_at_a_relay_arrives_after_a_direct_link_is_up(net: Net) -> None:
    hidden = Hidden(net, rate=1e6)
    open_peer = net.peer(limits=TransportLimits())
    open_peer.attend((), {name(hidden.relay): (at(hidden.relay),)})
    assert open_peer.send(name(hidden.b), hidden.where, Lane.CONTROL, PING)
    net.until(lambda: linked(hidden.b, open_peer))
    net.forget()
    for _ in range(4):
        assert open_peer.send(name(hidden.b), hidden.where, Lane.DATA, [b"\x93head", os.urandom(1 << 20)])
    net.until(lambda: hidden.relay._links._carrier.held)
    hidden.b.dial(name(open_peer), [at(open_peer)])
    net.until(lambda: linked(hidden.b, open_peer) == linked(open_peer, hidden.b) == [b""])
    net.until(lambda: len(net.events(hidden.b, Received)) == 4)


def test_relay_that_loses_payloads_gives_way_to_another(net: Net) -> None:
    hidden, second = Hidden(net), net.peer()
    second.carry(math.inf)
    relays = {name(hidden.relay): (at(hidden.relay),), name(second): (at(second),)}
    hidden.a.attend((), relays)
    hidden.b.attend([*relays], relays)
    assert hidden.b.send(b"", at(second), Lane.CONTROL, PING)
    net.until(lambda: net.events(hidden.b, CarriedBy))
    places = [through(relay, name(hidden.b)) for relay in relays]
    assert hidden.a.send(name(hidden.b), places[0], Lane.CONTROL, PING, places[1:])
    net.until(lambda: linked(hidden.b, hidden.a) == [name(hidden.relay)])
    numbers = iter(range(1000))

    def loses(link: Link, lane: Lane, to: bytes, frames: Sequence[Buffer], size: int) -> None:
        target = hidden.relay._links.linked(to)
        if target is not None and (lane is Lane.CONTROL or next(numbers) % 2):
            hidden.relay._links._queues.write(target.connections[lane], [*pack(Carried(link.peer)), *frames])

    hidden.relay._links._carrier.carry = loses  # type: ignore[method-assign]
    for _ in range(2 * relayed.LOST):
        assert hidden.a.send(name(hidden.b), places[0], Lane.DATA, HALF, places[1:])
    net.until(lambda: [event for event in net.events(hidden.b, LinkDown) if event.peer == name(hidden.a)])
    assert "its relay loses messages" in {event.reason for event in net.events(hidden.b, LinkDown)}
    net.until(lambda: not linked(hidden.a, hidden.b))
    assert hidden.a.send(name(hidden.b), places[0], Lane.CONTROL, PING, places[1:])
    net.until(lambda: linked(hidden.b, hidden.a) == linked(hidden.a, hidden.b) == [name(second)])
