"""A strike needs proof that no honest peer gives (safety: threats and controls). Pauses double and strikes expire."""

import pytest
from msgspec.structs import replace

from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.causes import Fault, Objection, Outcome
from gossipdp.protocol.events import ChunksInDoubt, ExchangeEnded, MessageDropped, OfferRefused, Struck, UpdateRefused
from gossipdp.protocol.strikes import EXCUSED, GARBLED, SIGNED, Quarantine, QuarantineConfig, Strikes
from gossipdp.protocol.wire.messages import Member, State

ME, BAD, OTHER, NEWER = (bytes([letter]) * 32 for letter in b"mbon")
CONFIG = QuarantineConfig(strikes=2, together=0.5, shortest=10.0, remembered=8)
MEMBERS = {peer: Member(peer, "", "", 1, 0, State.ALIVE, software="1.0.0") for peer in (ME, BAD, OTHER)}
MEMBERS[NEWER] = Member(NEWER, "", "", 1, 0, State.ALIVE, software="1.1.0")


class Rig:
    def __init__(self):
        self.strikes, self.members = Strikes(CONFIG, ME, Admission(ME)), MEMBERS

    def told(self, now, *events):
        return self.strikes.judge(events, self.members, now)


@pytest.fixture
def rig():
    return Rig()


def test_member_that_the_operator_does_not_admit_is_shunned_without_a_strike():
    strikes = Strikes(CONFIG, ME, Admission(ME, banned=frozenset({BAD})))
    assert strikes.shuns(BAD, 0.0) and not strikes.shuns(OTHER, 0.0)
    assert strikes.count(BAD, 0.0) == 0 and strikes.aside(0.0) == []


@pytest.mark.parametrize("reason", sorted(set(Fault) - EXCUSED))
def test_refused_update_is_a_strike_and_the_second_sets_aside(rig, reason):
    assert rig.told(0.0, UpdateRefused(BAD, reason)) == [Struck(BAD, reason, 1, 0.0)]
    assert not rig.strikes.shuns(BAD, 0.0) and rig.strikes.count(BAD, 0.0) == 1
    assert rig.told(1.0, UpdateRefused(BAD, reason)) == [Struck(BAD, reason, 2, 10.0)]
    assert rig.strikes.shuns(BAD, 1.0) and rig.strikes.aside(1.0) == [BAD] and not rig.strikes.shuns(OTHER, 1.0)
    assert not rig.strikes.shuns(BAD, 11.0)


@pytest.mark.parametrize("reason", sorted(SIGNED))
def test_bad_signature_of_another_software_version_is_no_strike(rig, reason):
    assert not any(rig.told(float(now), UpdateRefused(NEWER, reason)) for now in range(9))
    assert rig.told(9.0, UpdateRefused(NEWER, Fault.PAYLOAD)) == [Struck(NEWER, Fault.PAYLOAD, 1, 0.0)]


@pytest.mark.parametrize("reason", sorted(EXCUSED))
def test_refusal_that_another_peer_may_have_caused_is_no_strike(rig, reason):
    assert not any(rig.told(float(now), UpdateRefused(BAD, reason)) for now in range(9))


def test_loss_silence_and_doubt_are_no_strike(rig):
    lost = ExchangeEnded(
        partner=BAD, exchange=1, initiator=True, result=Outcome.LOST, codec="modulo4", chunks=0, of=9, distance=0.0,
        clipped=0, blocks=0, escalated=0, escalation_bytes=0, sent=0, received=0, duration=9.0,
    )  # fmt: skip
    happened = (lost, OfferRefused(BAD, Objection.SILENT), ChunksInDoubt(BAD, 2))
    assert not any(rig.told(float(now), *happened) for now in range(9))


def test_window_of_chunks_refused_at_once_is_one_strike(rig):
    assert rig.told(0.0, *[UpdateRefused(BAD, Fault.PAYLOAD)] * 8) == [Struck(BAD, Fault.PAYLOAD, 1, 0.0)]


def test_own_rumour_that_comes_back_is_no_strike(rig):
    assert not rig.told(0.0, UpdateRefused(ME, Fault.PAYLOAD))


def test_undecodable_messages_up_to_the_limit_are_one_fault(rig):
    garbled = MessageDropped(BAD, "header is not msgpack")
    assert not rig.told(0.0, *[garbled] * (GARBLED - 1), *[MessageDropped(OTHER, "unknown message type")])
    assert rig.told(1.0, garbled) == [Struck(BAD, Fault.GARBLED, 1, 0.0)]
    assert not rig.told(2.0, *[garbled] * (GARBLED - 1))
    assert rig.told(3.0, garbled) == [Struck(BAD, Fault.GARBLED, 2, 10.0)]


def test_undecodable_messages_of_another_version_are_no_fault(rig):
    assert not rig.told(0.0, *[MessageDropped(NEWER, "unknown message type 99")] * 100)


def test_peers_with_undecodable_messages_are_bounded(rig):
    peers = [bytes([number]) * 32 for number in range(100)]
    rig.members = {peer: replace(MEMBERS[ME], id=peer) for peer in (ME, *peers)}
    for peer in peers:
        rig.told(0.0, MessageDropped(peer, "garbage"))
        assert len(rig.strikes._garbled) <= CONFIG.remembered + 1


# -- the table of strikes and pauses ---------------------------------------------------------------------------

TABLE = QuarantineConfig(strikes=3, together=0.5, forgiven=100.0, shortest=10.0, longest=60.0, remembered=4)


def struck(times, config=TABLE):
    """For each fault: whether it is a new strike, and the pause in seconds."""
    quarantine = Quarantine(config)
    return [(quarantine.strike(b"bad", now), quarantine.left(b"bad", now)) for now in times]


@pytest.mark.parametrize(
    ("times", "pauses"),
    [
        ([0.0], [0.0]),
        ([0.0, 1.0, 2.0], [0.0, 0.0, 10.0]),
        ([0.0, 99.0, 198.0], [0.0, 0.0, 10.0]),  # each within `forgiven` of the one before
        ([0.0, 101.0, 202.0, 303.0], [0.0, 0.0, 0.0, 0.0]),  # single strikes expire in between
        ([0.0, 1.0, 2.0, 13.0, 34.0, 75.0, 136.0], [0.0, 0.0, 10.0, 20.0, 40.0, 60.0, 60.0]),
        ([0.0, 1.0, 2.0, 13.0, 250.0], [0.0, 0.0, 10.0, 20.0, 10.0]),  # two of four expired, then the third
        ([0.0, 1.0, 2.0, 1000.0], [0.0, 0.0, 10.0, 0.0]),
    ],
)
def test_pause_after_each_strike(times, pauses):
    assert struck(times) == [(True, pause) for pause in pauses]


def test_faults_that_come_together_are_one_strike():
    """Such as a window of chunks of one bad exchange."""
    assert struck([0.0, 0.0, 0.4, 1.0, 1.0, 1.4]) == [(kept, 0.0) for kept in (True, False, False, True, False, False)]


def test_fault_during_a_pause_does_not_lengthen_it():
    outcomes = struck([0.0, 1.0, 2.0, 2.1, 7.0, 11.9, 12.0])
    assert outcomes[2:] == [
        (True, 10.0),
        (False, pytest.approx(9.9)),
        (False, 5.0),
        (False, pytest.approx(0.1)),
        (True, 20.0),
    ]


def test_member_is_aside_for_its_pause_and_no_longer():
    quarantine = Quarantine(TABLE)
    for now in (0.0, 1.0, 2.0):
        assert not quarantine.aside(now)
        quarantine.strike(b"bad", now)
    assert quarantine.aside(2.0) == quarantine.aside(11.9) == [b"bad"]
    assert not quarantine.aside(12.0) and quarantine.left(b"bad", 12.0) == 0.0
    assert quarantine.count(b"other", 2.0) == 0 and quarantine.left(b"other", 2.0) == 0.0


def test_strikes_expire_one_by_one_after_the_pause():
    """If they expired during the pause, a long pause would forgive the habit that caused it."""
    quarantine = Quarantine(TABLE)
    for now in (0.0, 1.0, 2.0):
        quarantine.strike(b"bad", now)
    counts = {now: quarantine.count(b"bad", now) for now in (2.0, 12.0, 111.0, 112.0, 212.0, 312.0, 900.0)}
    assert counts == {2.0: 3, 12.0: 3, 111.0: 3, 112.0: 2, 212.0: 1, 312.0: 0, 900.0: 0}


def test_member_that_never_stops_soon_gets_the_longest_pause():
    outcomes, now = [], 0.0
    quarantine = Quarantine(TABLE)
    for _ in range(200):
        quarantine.strike(b"bad", now)
        outcomes.append(quarantine.left(b"bad", now))
        now += 1.0 + outcomes[-1]
    assert outcomes[:7] == [0.0, 0.0, 10.0, 20.0, 40.0, 60.0, 60.0] and set(outcomes[6:]) == {60.0}


def test_records_are_bounded_and_the_oldest_strike_goes_first():
    quarantine = Quarantine(TABLE)
    for number in range(4):
        quarantine.strike(bytes([number]), float(number))
    quarantine.strike(bytes([0]), 4.0)
    quarantine.strike(bytes([9]), 5.0)
    assert [quarantine.count(bytes([number]), 5.0) for number in (0, 1, 2, 3, 9)] == [2, 0, 1, 1, 1]


def test_by_default_a_hostile_partner_is_set_aside_well_within_ten_exchanges():
    """T12: met every 100 s, it is met three times, then once in each pause."""
    times = [100.0 * met for met in range(6)]
    assert struck(times, QuarantineConfig()) == [
        (True, 0.0),
        (True, 0.0),
        (True, 60.0),
        (True, 120.0),
        (False, 20.0),
        (True, 240.0),
    ]
