"""Records and reports are believed if their own member signed them, and a member that passes on others is told."""

from collections import Counter
from functools import partial
from random import Random

import pytest
from msgspec.structs import replace

from gossipdp.protocol.events import Event, MemberChanged, Notice, UpdateRefused
from gossipdp.protocol.membership.config import LAN
from gossipdp.protocol.membership.progress import ProgressBoard
from gossipdp.protocol.membership.signatures import Signer
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.wire.messages import Member, Message, Ping, Pong, Progress, PushPull, State
from simulations.simulator.host import sign, verify
from tests.protocol.membership.machines import membership_of

FORGER = 9


def peer_id(number: int) -> bytes:
    return number.to_bytes(32, "big")


def signed(number: int, **changes: object) -> Member:
    record = Member(peer_id(number), f"p{number}", f"10.0.0.{number}:4710", 2, 1, State.ALIVE, software="0.1.0")
    return Signer(partial(sign, record.id), verify).sign_member(replace(record, **changes))


def report(number: int, clock: int) -> Progress:
    return Signer(partial(sign, peer_id(number)), verify).sign_progress(Progress(peer_id(number), clock, 1, 1, 1))


class Peer:
    """One Membership that checks signatures, and counts the checks."""

    def __init__(self, number: int = 0) -> None:
        self.checks: Counter[bytes] = Counter()
        signer = Signer(partial(sign, peer_id(number)), self._verify)
        self.outputs, self.board = Outputs(), ProgressBoard(peer_id(number), signer)
        me = replace(signed(number), signature=bytes(64))
        self.membership = membership_of(me, Random(1), self.outputs, board=self.board, signer=signer)

    def _verify(self, peer: bytes, data: bytes, signature: bytes) -> bool:
        self.checks[peer] += 1
        return verify(peer, data, signature)

    def hear(self, message: Message, source: int, now: float) -> list[Event]:
        self.membership.events.clear()
        self.membership.receive(message, peer_id(source), now)  # type: ignore[arg-type]
        return list(self.membership.events)

    def of(self, number: int) -> Member:
        return self.membership.members[peer_id(number)]


FORGED = [
    {"state": State.LEFT},
    {"state": State.LEFT, "refutation": 2},
    {"incarnation": 3},
    {"refutation": 2},
    {"refutation": 2, "state": State.FAILED},
    {"refutation": 2, "address": "10.6.6.6:4710"},
    {"address": "99.6.6.6:4710", "state": State.SUSPECT},
    {"refutation": 2, "name": "other"},
    {"refutation": 2, "software": "0.2.0"},
    {"refutation": 2, "version": 7},
]


@pytest.mark.parametrize("change", FORGED, ids=str)
@pytest.mark.parametrize("by", ["ping", "view"])
def test_unsigned_statement_changes_nothing_and_is_held_against_the_sender(change, by) -> None:
    peer = Peer()
    peer.hear(Ping(1, (signed(FORGER), signed(2))), FORGER, 0.0)
    forged = (signed(FORGER), replace(signed(2), **change))
    events = peer.hear(Ping(2, forged) if by == "ping" else PushPull(False, forged), FORGER, 1.0)
    assert events == [UpdateRefused(peer_id(FORGER), "signature of a member record")]
    assert peer.of(2) == signed(2)


@pytest.mark.parametrize("change", [*FORGED, {"incarnation": 3, "address": "10.6.6.6:4710"}], ids=str)
def test_forged_record_of_this_peer_is_neither_refuted_nor_taken_for_a_copy(change) -> None:
    peer = Peer()
    events = peer.hear(Ping(1, (signed(FORGER), replace(signed(0), **change))), FORGER, 0.0)
    assert UpdateRefused(peer_id(FORGER), "signature of a member record") in events
    assert not [event for event in events if isinstance(event, Notice)]
    assert peer.membership.me == signed(0) and peer.membership.health.multiplier == 1


def test_unsigned_record_of_a_new_member_is_refused() -> None:
    peer = Peer()
    unsigned = replace(signed(2), signature=bytes(64))
    assert peer.hear(Ping(1, (unsigned,)), FORGER, 0.0) == [
        UpdateRefused(peer_id(FORGER), "signature of a member record")
    ]
    assert list(peer.membership.members) == [peer_id(0)]


def test_goodbye_that_its_member_signed_is_believed_from_any_member() -> None:
    peer = Peer()
    peer.hear(Ping(1, (signed(1), signed(2))), 1, 0.0)
    peer.hear(Ping(2, (signed(1), signed(2, state=State.LEFT, refutation=2))), 1, 1.0)
    assert peer.of(2).state == State.LEFT


def test_each_new_statement_costs_one_signature_check() -> None:
    peer = Peer()
    for turn in range(20):
        peer.hear(Ping(turn, (signed(1), signed(2))), 1, 0.1 * turn)
    suspect = replace(signed(2), state=State.SUSPECT, accusers=(peer_id(1),))
    for record in (suspect, replace(signed(2), state=State.FAILED), signed(2, refutation=2), signed(2)):
        peer.hear(Ping(1, (signed(1), record)), 1, 3.0)
    assert peer.of(2) == signed(2, refutation=2)
    assert peer.checks == {peer_id(1): 1, peer_id(2): 2}


def test_after_a_forged_record_its_sender_is_ignored_for_a_probe_timeout() -> None:
    peer = Peer()
    peer.hear(Ping(1, (signed(FORGER), signed(2))), FORGER, 0.0)
    peer.checks.clear()
    forged = tuple(replace(signed(2), incarnation=number) for number in range(3, 20))
    for turn in range(100):
        peer.hear(Ping(turn, forged, (report(3, 5 + turn),)), FORGER, 1.0 + 0.004 * turn)
    assert sum(peer.checks.values()) == 1
    peer.hear(Ping(1, (signed(FORGER), signed(4))), FORGER, 1.0 + LAN.probe_timeout)
    assert peer.of(4) == signed(4)


def test_failure_of_a_member_just_heard_makes_it_suspect_and_it_refutes_at_once() -> None:
    peer = Peer()
    for number in (1, 2):
        peer.hear(Ping(1, (signed(number),)), number, 0.9)
    events = peer.hear(Pong(0, (signed(1), replace(signed(2), state=State.FAILED))), 1, 1.0)
    assert [(event.member.state, event.before) for event in events if isinstance(event, MemberChanged)] == [
        (State.SUSPECT, State.ALIVE)
    ]
    asked = [each.message for each in peer.outputs.messages if each.to == peer_id(2) and isinstance(each.message, Ping)]
    assert asked[-1].members[1].state == State.SUSPECT
    peer.hear(Pong(asked[-1].sequence, (signed(2, refutation=2),)), 2, 1.1)
    assert peer.of(2).state == State.ALIVE


def test_failure_of_a_silent_member_is_believed() -> None:
    peer = Peer()
    for number in (1, 2):
        peer.hear(Ping(1, (signed(number),)), number, 0.0)
    peer.hear(Pong(0, (signed(1), replace(signed(2), state=State.FAILED))), 1, 2.0)
    assert peer.of(2).state == State.FAILED


def test_progress_is_believed_if_its_own_peer_signed_it() -> None:
    peer = Peer()
    peer.board.report(clock=1, steps=1, samples=1, rounds=1)
    forged = replace(report(2, 10), clock=1 << 20)
    mine = Progress(peer_id(0), 1 << 20, 1 << 20, 1, 1, bytes(64))
    assert peer.hear(Ping(1, (signed(1), signed(2)), (report(2, 10), forged, report(3, 11))), 1, 0.0)[-2:-1] == [
        UpdateRefused(peer_id(1), "signature of a progress report")
    ]
    assert peer.board.clock() == 10
    peer.hear(Ping(1, (), (replace(report(2, 12), eval_loss=0.1),)), 1, 0.0)
    assert peer.board.of(peer_id(2)).eval_loss is None, "another member cannot say what this one's loss is"
    peer.hear(Ping(1, (), (mine,)), 3, 0.0)
    assert peer.board.mine.clock == 1
    peer.hear(Ping(1, (), (report(0, 20),)), 4, 0.0)
    assert peer.board.mine.clock == 20, "what this peer signed in an earlier life"


def test_own_record_and_report_are_signed_anew_when_they_change_and_only_then() -> None:
    peer, other = Peer(), Peer(1)
    peer.board.report(clock=1, steps=1, samples=1, rounds=1)
    peer.membership.advertise(["10.0.0.77:4710"], 0.0)
    peer.membership.join(["10.0.0.1:4710"], 0.0)
    for turn in range(3):
        peer.membership._prober._ping(peer_id(1), 0.1 * turn)
    for envelope in peer.outputs.messages:
        other.hear(envelope.message, 0, 1.0)
    assert other.of(0).address == "10.0.0.77:4710" and other.board.clock() == 1
    assert other.checks == {peer_id(0): 2}


def test_addresses_are_part_of_the_statement_and_all_of_them_travel() -> None:
    peer, other = Peer(), Peer(1)
    peer.membership.advertise(["8.8.4.4:1", "[2600::4]:4710", "10.0.0.4:4710"], 0.0)
    me = peer.membership.me
    assert me.addresses == ("8.8.4.4:1", "[2600::4]:4710", "10.0.0.4:4710")
    forged = replace(me, others=("6.6.6.6:1",), refutation=me.refutation + 1)
    assert UpdateRefused(peer_id(2), "signature of a member record") in other.hear(Ping(1, (forged,)), 2, 0.0)
    other.hear(Ping(2, (me,)), 0, 10.0)
    assert other.of(0).addresses == me.addresses
    assert other.membership.others_of(peer_id(0)) == ("[2600::4]:4710", "10.0.0.4:4710")
    peer.membership.advertise(me.addresses, 1.0)
    assert peer.membership.me is me, "nothing has changed"
    peer.membership.advertise([], 2.0)
    assert peer.membership.me.addresses == ()
