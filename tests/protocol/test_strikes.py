"""A strike needs proof: what no honest peer says, whatever the network does to it (safety: threats and controls)."""

from __future__ import annotations

import pytest

from gossipdp.protocol.events import ChunksInDoubt, ExchangeEnded, MessageDropped, OfferRefused, Struck, UpdateRefused
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.quarantine import QuarantineConfig
from gossipdp.protocol.strikes import EXCUSED, GARBLED, SIGNED, Conduct

ME, BAD, OTHER, NEWER = (bytes([letter]) * 32 for letter in b"mbon")
CONFIG = QuarantineConfig(strikes=2, together=0.5, shortest=10.0, remembered=8)


class Rig:
    def __init__(self):
        self.outputs = Outputs()
        self.conduct = Conduct(CONFIG, ME, self.outputs, lambda peer: peer != NEWER)
        self.outputs.listener = self.conduct.heard

    def told(self, now, *events):
        for event in events:
            self.outputs.emit(event)
        self.conduct.judge(now)
        struck = [event for event in self.outputs.events if isinstance(event, Struck)]
        self.outputs.events.clear()
        return struck


@pytest.fixture
def rig():
    return Rig()


def test_whom_the_operator_does_not_admit_is_shunned_from_the_first_and_has_no_strike():
    conduct = Conduct(CONFIG, ME, Outputs(), lambda peer: True, lambda peer: peer != BAD)
    assert conduct.shuns(BAD, 0.0) and not conduct.shuns(OTHER, 0.0)
    assert conduct.strikes(BAD, 0.0) == 0 and conduct.aside(0.0) == []


@pytest.mark.parametrize("reason", ["payload", "nan", "share", "hash", "manifest", "signature", "void", "moments"])
def test_refused_update_is_a_strike_and_the_second_sets_aside(rig, reason):
    assert rig.told(0.0, UpdateRefused(BAD, reason)) == [Struck(BAD, reason, 1, 0.0)]
    assert not rig.conduct.shuns(BAD, 0.0) and rig.conduct.strikes(BAD, 0.0) == 1
    assert rig.told(1.0, UpdateRefused(BAD, reason)) == [Struck(BAD, reason, 2, 10.0)]
    assert rig.conduct.shuns(BAD, 1.0) and rig.conduct.aside(1.0) == [BAD] and not rig.conduct.shuns(OTHER, 1.0)
    assert not rig.conduct.shuns(BAD, 11.0)


@pytest.mark.parametrize("reason", sorted(SIGNED))
def test_later_software_may_sign_what_is_not_known_here_and_that_is_no_strike(rig, reason):
    assert not any(rig.told(float(now), UpdateRefused(NEWER, reason)) for now in range(9))
    assert rig.told(9.0, UpdateRefused(NEWER, "payload")) == [Struck(NEWER, "payload", 1, 0.0)]


@pytest.mark.parametrize("reason", sorted(EXCUSED))
def test_refusal_that_another_may_be_to_blame_for_is_no_strike(rig, reason):
    assert not any(rig.told(float(now), UpdateRefused(BAD, reason)) for now in range(9))


def test_what_the_network_does_to_the_honest_is_no_strike(rig):
    lost = ExchangeEnded(BAD, 1, True, "lost", "modulo4", 0, 9, 0.0, 0, 0, 0, 0, 0, 0, 9.0)
    happened = (lost, OfferRefused(BAD, "silent"), ChunksInDoubt(BAD, 2))
    assert not any(rig.told(float(now), *happened) for now in range(9))


def test_window_of_chunks_refused_at_once_is_one_strike(rig):
    assert rig.told(0.0, *[UpdateRefused(BAD, "payload")] * 8) == [Struck(BAD, "payload", 1, 0.0)]


def test_own_rumours_that_come_back_are_nobodys_fault(rig):
    assert not rig.told(0.0, UpdateRefused(ME, "payload"))


def test_so_many_messages_that_cannot_be_read_are_one_fault(rig):
    garbled = MessageDropped(BAD, "header is not msgpack")
    assert not rig.told(0.0, *[garbled] * (GARBLED - 1), *[MessageDropped(OTHER, "unknown message type")])
    assert rig.told(1.0, garbled) == [Struck(BAD, "garbled", 1, 0.0)]
    assert not rig.told(2.0, *[garbled] * (GARBLED - 1))
    assert rig.told(3.0, garbled) == [Struck(BAD, "garbled", 2, 10.0)]


def test_words_of_another_version_may_be_new_and_are_no_fault(rig):
    assert not rig.told(0.0, *[MessageDropped(NEWER, "unknown message type 99")] * 100)


def test_peers_whose_words_are_counted_are_bounded(rig):
    for number in range(100):
        rig.told(0.0, MessageDropped(bytes([number]) * 32, "garbage"))
        assert len(rig.conduct._garbled) <= CONFIG.remembered + 1


def test_only_a_strike_that_sets_somebody_aside_changes_what_is_under_way(rig):
    rig.outputs.emit(UpdateRefused(BAD, "nan"))
    assert not rig.conduct.judge(0.0), "a strike alone changes nothing"
    rig.outputs.emit(UpdateRefused(BAD, "nan"))
    assert rig.conduct.judge(1.0)
