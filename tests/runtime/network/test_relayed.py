"""Links that a third member carries, over real sockets: two peers that can only dial out, and a relay."""

from __future__ import annotations

import math
import os
from dataclasses import replace

import pytest

from gossipdp.protocol.wire.messages import Lane, through
from gossipdp.runtime.network import relayed, sealing
from gossipdp.runtime.network.events import CarriedBy, DialFailed, LinkDown, LinkUp, Received
from gossipdp.runtime.network.signed_hello import Carried, pack
from gossipdp.runtime.network.transport import Transport
from simulations.processes.namespaces.processes import kept_port
from tests.runtime.network.transports import PATIENT, PING, Net, at, name


class Hidden:
    """Two peers that no other can dial, `a` and `b`, and a `relay` that carries to `b`."""

    def __init__(self, net: Net, rate: float = math.inf) -> None:
        self.net = net
        self.relay = net.peer()
        self.a, self.b = (net.peer(listen=None) for _ in range(2))
        self.relay.carry(rate)
        self.where = through(name(self.relay), name(self.b))
        relays = {name(self.relay): (at(self.relay),)}
        self.a.attend((), relays)
        self.b.attend([name(self.relay)], relays)
        assert self.b.send(b"", at(self.relay), Lane.CONTROL, PING)
        net.until(lambda: net.events(self.b, CarriedBy) and net.events(self.relay, Received))
        net.forget()

    def send(self, frames: list[bytes], lane: Lane = Lane.CONTROL) -> None:
        assert self.a.send(name(self.b), self.where, lane, frames)

    def link(self) -> None:
        self.send(PING)
        self.net.until(lambda: self.net.events(self.b, Received))
        self.net.forget()


def linked(one: Transport, other: Transport) -> list[bytes]:
    """The relay of each link of `one` with `other`."""
    return [link.via for link in one.links() if link.peer == name(other)]


def test_two_peers_that_can_only_dial_out_have_a_link__both_lanes_both_ways(net: Net) -> None:
    hidden = Hidden(net)
    a, b, payload = hidden.a, hidden.b, os.urandom(1 << 20)
    hidden.send(PING)
    hidden.send([b"\x93head", payload, b""], Lane.DATA)
    net.until(lambda: len(net.events(b, Received)) == 2)
    by_lane = {event.lane: event for event in net.events(b, Received)}
    assert by_lane[Lane.CONTROL] == Received(name(a), Lane.CONTROL, PING)
    assert by_lane[Lane.DATA].frames == [b"\x93head", payload, b""]
    assert b.send(name(a), "", Lane.DATA, [b"\x93back", payload])
    net.until(lambda: net.events(a, Received))
    assert net.events(a, Received)[0].frames == [b"\x93back", payload]
    via = name(hidden.relay)
    assert [event.via for event in net.events(a, LinkUp) if event.peer == name(b)] == [via]
    assert linked(a, b) == linked(b, a) == [via]
    assert hidden.relay.counters.carried_bytes[Lane.DATA] > 2 * len(payload)
    assert not net.events(hidden.relay, Received), "the relay takes nothing of it for its own"
    assert a.counters.sent_bytes[name(b), Lane.DATA] == len(b"\x93head") + len(payload)


def test_relay_that_vanishes_ends_the_link_at_both_ends(net: Net) -> None:
    hidden = Hidden(net)
    hidden.link()
    net.close(hidden.relay)
    net.until(lambda: not hidden.a.links() and not hidden.b.links())
    assert {event.peer for event in net.events(hidden.a, LinkDown)} == {name(hidden.relay), name(hidden.b)}


def test_nothing_is_carried_to_a_peer_that_has_not_asked_for_it(net: Net) -> None:
    hidden = Hidden(net)
    hidden.b.attend((), {})
    net.settle(0.05)
    hidden.send(PING)
    net.until(lambda: hidden.relay.counters.not_carried)
    net.until(lambda: hidden.a.counters.drops["unreachable"])
    assert not net.events(hidden.b, Received) and not hidden.relay.counters.carried_bytes


@pytest.mark.parametrize("end", ["a", "b"])
@pytest.mark.parametrize("sender", ["a", "b"])
def test_nothing_more_is_carried_for_a_peer_that_was_set_aside(net: Net, end: str, sender: str) -> None:
    hidden = Hidden(net)
    hidden.link()
    hidden.relay.know({}, [name(getattr(hidden, end))])
    here, there = (hidden.a, hidden.b) if sender == "a" else (hidden.b, hidden.a)
    assert here.send(name(there), "", Lane.CONTROL, PING)
    net.until(lambda: hidden.relay.counters.not_carried)
    net.until(lambda: not linked(here, there))
    assert not net.events(there, Received)


def test_peer_takes_streams_from_the_relays_alone_that_it_has_asked(net: Net) -> None:
    hidden, other = Hidden(net), net.peer()
    assert hidden.b.send(b"", at(other), Lane.CONTROL, PING)
    net.until(lambda: other._links.linked(name(hidden.b)))
    links = other._links
    begin = relayed._encoder.encode(relayed._Begin(bytes(16), sealing.Ephemeral().public))
    target = links.linked(name(hidden.b))
    assert target is not None
    links._queues.write(target.connections[Lane.CONTROL], [*pack(Carried(name(hidden.a))), begin])
    net.until(lambda: hidden.b.counters.drops["unverified"])
    assert not hidden.b._links._relayed._streams


def test_refusals_without_end_are_told_seldom(net: Net) -> None:
    hidden = Hidden(net)
    assert hidden.a.send(b"", at(hidden.relay), Lane.CONTROL, PING)
    net.until(lambda: hidden.relay._links.linked(name(hidden.a)))
    link = hidden.relay._links.linked(name(hidden.a))
    assert link is not None
    for number in range(200):
        hidden.relay._links._carrier.carry(link, Lane.DATA, number.to_bytes(32, "big"), [b"x"], 1)
    assert hidden.relay.counters.not_carried == 200
    assert hidden.relay._links._carrier._told[name(hidden.a)] == 200 and not hidden.relay._links._carrier._ways


def test_peer_that_is_no_relay_says_so(net: Net) -> None:
    hidden = Hidden(net, rate=0.0)
    assert not linked(hidden.a, hidden.b)
    hidden.b.attend((), {})
    hidden.b.attend([name(hidden.relay)], {})
    net.until(lambda: net.events(hidden.b, CarriedBy))
    assert net.events(hidden.b, CarriedBy) == [CarriedBy(name(hidden.relay), False, "it is not a relay")]


def test_direct_link_takes_the_place_of_the_relayed_one(net: Net) -> None:
    hidden = Hidden(net)
    hidden.link()
    open_peer = net.peer()
    open_peer.attend((), {name(hidden.relay): (at(hidden.relay),)})
    assert open_peer.send(name(hidden.b), hidden.where, Lane.CONTROL, PING)
    net.until(lambda: linked(hidden.b, open_peer) == [name(hidden.relay)])
    hidden.b.dial(name(open_peer), [at(open_peer)])
    net.until(lambda: linked(hidden.b, open_peer) == linked(open_peer, hidden.b) == [b""])
    net.forget()
    assert open_peer.send(name(hidden.b), hidden.where, Lane.CONTROL, PING)
    net.until(lambda: net.events(hidden.b, Received))
    net.settle(2 * PATIENT.drain)
    assert linked(hidden.b, open_peer) == [b""] and not net.events(hidden.b, LinkDown)


def test_direct_dial_in_vain_leaves_the_relayed_link_and_is_not_told(net: Net) -> None:
    hidden = Hidden(net)
    hidden.link()
    with kept_port() as keeper:
        hidden.a.dial(name(hidden.b), [f"127.0.0.1:{keeper.getsockname()[1]}"])
        net.until(lambda: not hidden.a._links._dialling._dials)
    assert linked(hidden.a, hidden.b) == [name(hidden.relay)]
    assert not net.events(hidden.a, DialFailed) and not net.events(hidden.a, LinkDown)


def test_budget_delays_payloads_and_no_ping(net: Net) -> None:
    hidden = Hidden(net, rate=1e6)
    hidden.link()
    for _ in range(4):
        hidden.send([b"\x93head", os.urandom(1 << 20)], Lane.DATA)
    net.until(lambda: net.events(hidden.b, Received))
    hidden.send(PING)
    net.until(lambda: [event for event in net.events(hidden.b, Received) if event.lane is Lane.CONTROL])
    assert len(net.events(hidden.b, Received)) < 5, "payloads still wait"
    net.until(lambda: len(net.events(hidden.b, Received)) == 5)


def test_keys_that_are_old_or_worn_are_renewed_without_a_gap(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = Hidden(net)
    hidden.link()
    [before] = [link for link in hidden.a._links._all_links() if link.via]
    monkeypatch.setattr(sealing, "MOST_MESSAGES", 2)
    hidden.send(PING)
    hidden.send(PING)
    net.until(lambda: hidden.a._links.linked(name(hidden.b)) is not before)
    monkeypatch.undo()
    net.forget()
    hidden.send(PING)
    net.until(lambda: net.events(hidden.b, Received))
    assert not net.events(hidden.a, LinkDown) and linked(hidden.a, hidden.b) == [name(hidden.relay)]
    bindings = {stream.seal.binding for stream in hidden.a._links._relayed._streams.values() if stream.seal}
    assert len(bindings) >= 2


@pytest.mark.parametrize("lane", Lane)
def test_lost_link_comes_back_through_the_relay(net: Net, lane: Lane) -> None:
    hidden = Hidden(net)
    hidden.link()
    for link in hidden.a._links._all_links():
        if link.via:
            hidden.a._links._close_link(link, "closed for a test")
    net.until(lambda: not linked(hidden.b, hidden.a))
    net.settle(2 * replace(PATIENT).redial)
    hidden.send(PING, lane)
    net.until(lambda: net.events(hidden.b, Received))
