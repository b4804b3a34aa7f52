"""Links over real sockets: both lanes, queues, crossing dials, closing and coming back, the network's run."""

import math
import os
import random
import time
from dataclasses import replace

import pytest
import zmq

from gossipdp.errors import LocalProtocolError
from gossipdp.protocol.wire.messages import Lane
from gossipdp.runtime.network import sockets, zmq_wire
from gossipdp.runtime.network.events import (
    DialFailed,
    Flooded,
    HandshakeRefused,
    LinkDown,
    LinkUp,
    Received,
    RunLearned,
)
from gossipdp.runtime.network.identity import Identity, NetworkSecret
from gossipdp.runtime.network.limits import LIMITS, TransportLimits
from tests.runtime.network.transports import PATIENT, PING, RUN, Net, Relay, at, name


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
    net.until(lambda: len(net.events(b, Received)) == 63)
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
        net.until(lambda: len(net.events(b, Received)) == len(accepted))
        assert [event.frames[0] for event in net.events(b, Received)] == accepted


@pytest.mark.parametrize("flooder", ["dialler", "listener"])
def test_more_messages_than_the_reader_takes__link_closed_and_flooder_kept_out(net: Net, flooder: str) -> None:
    reads = replace(PATIENT, queue_messages=60, shun=0.5)
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


@pytest.mark.parametrize("sender", ["dialler", "listener"])
def test_message_without_end_on_a_link__the_link_is_closed_and_its_sender_kept_out(
    net: Net, sender: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libzmq keeps the frames of a message until its last one."""
    monkeypatch.setattr(zmq_wire, "LOOK", 0.0)
    limits = replace(PATIENT, queue_bytes=1 << 20)
    a, b = net.peer(), net.peer()
    reader, hostile = (b, a) if sender == "dialler" else (a, b)
    reader._wire._limits = limits
    with Relay(b.port, most=4 << 20) as relay:
        assert a.send(name(b), f"127.0.0.1:{relay.port}", Lane.CONTROL, PING)
        net.until(lambda: net.events(b, Received))
        assert hostile.send(name(reader), "", Lane.DATA, [b"\x93x", bytes(4 << 20), bytes(4 << 20)])
        net.until(lambda: net.events(reader, Flooded))
        assert not net.events(reader, Received) or sender == "dialler"
        net.until(lambda: name(hostile) not in {link.peer for link in reader.links()})


def test_ping_is_not_held_up_by_the_data_lane(net: Net) -> None:
    a, b = net.peer(), net.peer()
    net.link(a, b)
    for _ in range(150):
        a.send(name(b), "", Lane.DATA, [b"\x90", bytes(1 << 18)])
    a.send(name(b), "", Lane.CONTROL, PING)
    net.until(lambda: len(net.events(b, Received)) == 151)
    order = [event.lane for event in net.events(b, Received)]
    assert order.index(Lane.CONTROL) < 100


def test_descriptors_of_the_caller_are_watched(net: Net) -> None:
    a = net.peer()
    reading, writing = os.pipe()
    try:
        assert a.poll(0, [reading]) == ([], set())
        os.write(writing, b"!")
        assert a.poll(5, [reading]) == ([], {reading})
        assert a.poll(0.01, []) == ([], set())
    finally:
        os.close(reading)
        os.close(writing)


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
        net.until(lambda: net.events(a, LinkDown) and net.events(b, LinkDown))


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


def test_young_keys_hold_every_place__a_newcomer_gets_in_and_the_member_known_before_stays(net: Net) -> None:
    """A key costs nothing: one host can make as many as there are places."""
    hub = net.peer(limits=TransportLimits(links=4))
    others = [net.peer() for _ in range(5)]
    for other in others[:4]:
        net.link(other, hub)
    hub.know({name(others[0]): math.inf, name(others[1]): 30.0, name(others[2]): 20.0, name(others[3]): 10.0})
    for link in hub._links._links.values():
        link.opened -= 5.0
    others[4].send(b"", at(hub), Lane.CONTROL, PING)
    net.until(lambda: net.events(hub, LinkUp) or net.events(others[4], DialFailed))
    assert {link.peer for link in hub.links()} == {name(other) for other in (*others[:3], others[4])}
    net.until(lambda: net.events(others[3], LinkDown))


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


@pytest.mark.parametrize(("cores", "threads"), [(2.0, 1), (8.0, 2), (64.0, 4)])
def test_io_threads_by_usable_cores(monkeypatch: pytest.MonkeyPatch, cores: float, threads: int) -> None:
    monkeypatch.setattr(sockets, "usable_cores", lambda: cores)
    server, client = NetworkSecret(bytes(32)).curve_server_keys(), Identity.generate().curve
    made = sockets.Sockets(LIMITS["local"], server, client)
    assert made.context.get(zmq.IO_THREADS) == threads
    made.context.destroy(linger=0)
