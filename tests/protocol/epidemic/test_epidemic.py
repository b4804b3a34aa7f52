"""The strategy `epidemic` among members that join, leave and share the network's clock."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from gossipdp.protocol.epidemic.config import EpidemicConfig
from gossipdp.protocol.epidemic.epidemic import EpidemicStrategy
from gossipdp.protocol.epidemic.signing import make
from gossipdp.protocol.events import UpdateRefused
from gossipdp.protocol.membership.config import MembershipConfig
from gossipdp.protocol.membership.progress import ProgressBoard
from gossipdp.protocol.model import Model
from gossipdp.protocol.schema import MOST_EXACT
from gossipdp.protocol.wire.epidemic_messages import NO_RUN
from gossipdp.protocol.wire.messages import Member, State
from tests.protocol.epidemic.increments import RUMOUR, SCHEMA, closed
from tests.protocol.surroundings import surroundings


class Members:
    """Stands in for the membership of an `EpidemicStrategy`."""

    config = MembershipConfig()

    def __init__(self):
        self.me, self.members = Member(b"m" * 32, "me", "", 1, 0, State.ALIVE), {}

    def alive(self):
        return list(self.members.values())

    def reaches(self, peer):
        return True


def test_nothing_is_kept_of_members_that_leave():
    members, random = Members(), Random(1)
    strategy = EpidemicStrategy(
        EpidemicConfig(), surroundings(members, progress=ProgressBoard(members.me.id), random=random)
    )
    for number in range(10_000):
        peer = number.to_bytes(32, "big")
        came = Member(peer, "p", "", 1, 0, State.ALIVE)
        members.members = {peer: came}
        strategy.member_changed(came, 0.0)
        strategy._increment_applied(replace(RUMOUR, origin=peer, clock=number), 0)
        strategy._outputs.messages.clear()
    assert len(strategy._newest) == 1


@pytest.mark.parametrize(("size", "told"), [(100, []), (100_000, ["size"])])
def test_increment_longer_than_the_model_can_have_is_refused(size, told):
    members = Members()
    members.members = {RUMOUR.origin: Member(RUMOUR.origin, "o", "", 1, 0, State.ALIVE)}
    strategy = EpidemicStrategy(
        EpidemicConfig(), surroundings(members, progress=ProgressBoard(members.me.id), random=Random(1))
    )
    strategy.ready(Model.of(SCHEMA.to_bytes(), bytes(16), MOST_EXACT, 0, 0), None, 50)
    strategy.reputation_changed(0.0)
    header, table = make(replace(RUMOUR, epoch=2, clock=100), [bytes(size)], NO_RUN, lambda data: bytes(64))
    strategy.receive(header, [table], RUMOUR.origin, len(table), 0.0)
    refused = [event for event in strategy._outputs.events if isinstance(event, UpdateRefused)]
    assert [(event.peer, event.reason) for event in refused] == [(RUMOUR.origin, reason) for reason in told]


def weights(*rounds):
    """p of rounds of the given (samples, own steps, steps of the network's clock), at a peer that is not alone."""
    members, clock, told = Members(), 0, []
    strategy = EpidemicStrategy(
        EpidemicConfig(), surroundings(members, progress=ProgressBoard(members.me.id), random=Random(1))
    )
    strategy.ready(Model.of(SCHEMA.to_bytes(), bytes(16), MOST_EXACT, 0, 0), None, 0)
    strategy.shared.freeze(lambda: True)
    strategy.shared.frozen()
    closed(strategy._shares, 3, (4000, 4), (4000, 4))
    for samples, steps, network in rounds:
        clock += network
        strategy.submitted(samples, steps, clock)
        strategy.steps.begin(lambda outer: told.append(strategy.steps.increment.weight))
        strategy.steps.increment = None
        strategy._exclusive.over()
    return told


@pytest.mark.parametrize("rounds", [[(1000, 50, 50)] * 4, [(1000, 50, 0)] * 4, [(1000, 50, 0), (1000, 50, 50)] * 2])
def test_share_does_not_grow_while_the_networks_clock_stands_still(rounds):
    assert weights(*rounds) == [0.25] * 4
