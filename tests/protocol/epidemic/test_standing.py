"""The standing of a state, the members that hold the network's, and the terms of increments."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from gossipdp.protocol.epidemic.config import EpidemicConfig
from gossipdp.protocol.epidemic.divergence import AGAIN, Divergence
from gossipdp.protocol.epidemic.standing import LONELY, Standing
from gossipdp.protocol.epidemic.terms import WHOLE, Schedule, Terms
from gossipdp.protocol.model import Model
from gossipdp.protocol.schema import MOST_EXACT, Schema
from gossipdp.protocol.wire.epidemic_messages import NO_BASE
from gossipdp.protocol.wire.messages import Member, State

SPAN = 100
EARLY, LATE = bytes(15) + b"1", bytes(15) + b"2"


@dataclass
class Membership:
    me: Member = field(default_factory=lambda: Member(b"m" * 32, "me", "", 1, 0, State.ALIVE))


@pytest.fixture
def standing():
    return Standing(Membership(), SPAN)


@pytest.fixture
def divergence():
    return Divergence(join_interval=0.5)


def test_peer_is_alone_until_it_shares_its_state_and_again_after_lonely_epochs(standing):
    assert standing.alone and not standing.shared
    standing.share()
    assert not standing.alone
    standing.advance(LONELY * SPAN)
    assert not standing.alone
    standing.advance(LONELY * SPAN + 1)
    assert standing.alone and standing.shared, "another peer may still have the old state"
    standing.found()
    assert standing.alone and not standing.shared


def test_clock_never_goes_back(standing):
    standing.advance(70)
    standing.advance(50)
    assert standing.clock == 70


def test_foundings_have_different_names_that_grow_with_the_clock(standing):
    first = standing.found()
    second = standing.found()
    standing.advance(1)
    third = standing.found()
    assert first != second and max(first, second) < third and standing.foundings == 3


@pytest.mark.parametrize(
    ("own", "others", "holders"),
    [
        (EARLY, [EARLY, LATE, EARLY, EARLY, EARLY], ()),
        (EARLY, [LATE, LATE, LATE, EARLY, NO_BASE], (b"0", b"1", b"2")),
        (EARLY, [LATE, NO_BASE, NO_BASE, NO_BASE, NO_BASE], (b"0",)),
        (LATE, [EARLY, NO_BASE, NO_BASE, NO_BASE, NO_BASE], ()),
    ],
    ids=["majority", "minority", "tie-earlier", "tie-later"],
)
def test_minority_of_foundings_fetches_the_state_of_the_majority(divergence, own, others, holders):
    divergence.compare(own, {str(number).encode(): base for number, base in enumerate(others)}, 5)
    assert divergence.holders([b"0", b"1", b"2", b"3"], 0.0) == holders


def test_too_few_stated_foundings_decide_nothing(divergence):
    divergence.compare(EARLY, dict.fromkeys([b"0", b"1", b"2", b"3"], LATE), 9)
    assert divergence.holders([b"0", b"1", b"2", b"3"], 0.0) == ()


def test_lost_increment_does_not_replace_known_holders(divergence):
    divergence.diverged([b"0"])
    divergence.lost([b"1", b"2"])
    assert divergence.holders([b"0", b"1", b"2"], 0.0) == (b"0",)
    divergence.agreed()
    divergence.lost([b"1", b"2"])
    assert divergence.holders([b"0", b"1"], 0.0) == (b"1",), "only live members"


def test_vain_fetch_is_tried_again_after_a_pause(divergence):
    divergence.pause(1.0)
    assert divergence.timer(1.0) is None, "no member holds another state"
    divergence.diverged([b"0"])
    divergence.pause(1.0)
    again = 1.0 + AGAIN * 0.5
    assert divergence.holders([b"0"], again - 0.1) == () and divergence.timer(1.0) == again
    assert divergence.holders([b"0"], again) == (b"0",) and divergence.timer(again) is None


@pytest.mark.parametrize(("parameters", "whole"), [(10_000, True), (300_000_000, False)])
def test_increments_travel_whole_early_if_they_fit(parameters, whole):
    schedule = Schedule(EpidemicConfig(whole_until=20, compressor="sign", lr=3.0))
    schema = Schema.of([("weight", (parameters,), "float32", "parameter")])
    schedule.ready(Model.of(schema.to_bytes(), bytes(16), MOST_EXACT, 0, 0))
    usual = Terms("sign", 3.0)
    assert schedule.at(19) == (Terms(WHOLE, 1.0) if whole else usual) and schedule.at(20) == usual
