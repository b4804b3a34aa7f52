"""Outbound-only peers: which members keep a link with them, and how they keep it."""

import math
from random import Random
from types import SimpleNamespace

from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.membership.config import LAN
from gossipdp.protocol.membership.dissemination import Dissemination
from gossipdp.protocol.membership.outbound_only import PERIODS, PROBERS, ProberLinks, probers
from gossipdp.protocol.membership.progress import ProgressBoard
from gossipdp.protocol.membership.view import View
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.rounds.speed import Speed
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import Member, Ping, PingRequest, Pong, State, through
from tests.protocol.membership.machines import TRUSTING, membership_of

ME = bytes([0b1010_0000]) + bytes(31)


def member(first: int, address: str = "h:1") -> Member:
    return Member(bytes([first]) + bytes(31), "", address, 1, 0, State.ALIVE)


def test_probers_are_the_nearest_by_xor_that_can_be_dialled():
    # Distances to 1010_0000: 1, 2, 0100_0000, 1000_0000 and 0101_1111.
    near, second, far, farthest, fifth = (member(n) for n in (0xA1, 0xA2, 0xE0, 0x20, 0xFF))
    behind = member(0xA3, "")
    assert probers(ME, [farthest, fifth, behind, far, second, near]) == [near.id, second.id, far.id]
    assert probers(ME, [farthest, fifth, near], 9) == [near.id, fifth.id, farthest.id]
    assert probers(near.id, [near, second]) == [second.id]
    assert probers(ME, [behind]) == []


def test_probers_are_spread_evenly_and_one_that_goes_is_replaced_by_one():
    random = Random(1)
    members = [Member(random.randbytes(32), "", "h:1", 1, 0, State.ALIVE) for _ in range(50)]
    held = dict.fromkeys((x.id for x in members), 0)
    for _ in range(400):
        peer = random.randbytes(32)
        chosen = probers(peer, members)
        for other in chosen:
            held[other] += 1
        left = [x for x in members if x.id != chosen[0]]
        assert probers(peer, left)[:-1] == chosen[1:]
    assert sum(held.values()) == 400 * PROBERS
    assert max(held.values()) < 6 * 400 * PROBERS / 50


def moored(address: str, *relays: bytes) -> tuple[ProberLinks, Outputs, View]:
    view, outputs = View(LAN, Member(ME, "", address, 1, 0, State.ALIVE), Admission(ME)), Outputs()
    board = ProgressBoard(ME, TRUSTING)
    dissemination = Dissemination(view, random=Random(1), outputs=outputs, progress=board, speed=Speed(), now=5.0)
    for first in (1, 2, 3, 4):
        view.put(member(first), 5.0)
    return ProberLinks(view, dissemination, SimpleNamespace(chosen=list(relays)), 5.0), outputs, view


def test_outbound_only_peer_contacts_its_probers_repeatedly():
    mooring, outputs, _ = moored("")
    assert mooring.timer() == 5.0
    for now in (5.0, 6.0, 5.0 + PERIODS):
        mooring.handle_timer(now)
    told = [(envelope.to[0], envelope.address) for envelope in outputs.messages]
    assert told == [(1, "h:1"), (2, "h:1"), (3, "h:1")] * 2
    message, _ = wire.decode(outputs.messages[0].frames)
    assert isinstance(message, Pong) and message.sequence == 0 and message.members[0].address == ""
    assert mooring.timer() == 5.0 + 2 * PERIODS * LAN.probe_interval


def test_hidden_peer_contacts_its_relays_in_the_place_of_probers():
    relays = [member(first).id for first in (2, 4)]
    mooring, outputs, view = moored(through(relays[0], ME), *relays)
    mooring.handle_timer(5.0)
    assert [envelope.to[0] for envelope in outputs.messages] == [2, 4]
    assert view.me.address and probers(bytes(32), [view.me]) == [], "it cannot be dialled itself"


def test_peer_that_can_be_dialled_keeps_no_probers():
    mooring, outputs, _ = moored("h:9")
    mooring.handle_timer(50.0)
    assert not outputs.messages and mooring.timer() == math.inf


def test_silent_outbound_only_member_is_pinged_by_its_probers_alone():
    me, behind = member(0x77), Member(ME, "", "", 1, 0, State.ALIVE)
    others = [member(first) for first in range(0x18, 0xF8, 0x10)]
    outputs = Outputs()
    machine = membership_of(me, Random(1), outputs)
    for heard in (*others, behind):
        machine.receive(Ping(1, (heard,)), heard.id, 0.0)
    asked: list[bytes] = []
    while not asked:
        now = machine.timer()
        assert now is not None and now < 60.0
        for other in others:
            machine.contact(other.id, now)
        outputs.messages.clear()
        machine.handle_timer(now)
        requests = [said for said in outputs.messages if isinstance(said.message, PingRequest)]
        asked = [said.to for said in requests if said.message.target == ME]
    assert asked == probers(ME, others, LAN.indirect_probes)
