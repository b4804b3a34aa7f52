"""Exchanges that a peer accepts a round ahead, and the wants of its next round (algorithms section 7)."""

from tests.protocol.pairwise.matching_rig import IDS, matching


def test_round_ahead_is_accepted_and_the_next_round_wants_fewer():
    machine = matching()
    machine.want(2, 0.0)
    for _ in range(4):
        assert machine.accepts(IDS[0], counts=True, steps=True)
        machine.matched()
    assert not machine.accepts(IDS[0], counts=True, steps=True) and machine.wanted == 0
    machine.want(3, 1.0)
    assert machine.wanted == 1 and machine.ahead == 0


def test_last_partner_gets_none_ahead_while_another_member_has_asked_in_vain():
    machine = matching()
    a, b = IDS[:2]
    machine.want(1, 0.0)
    machine.matched()
    machine.parted(a, 0.1)
    machine.turned_away(a)
    assert machine.accepts(a, counts=True, steps=True), "no other member asks"
    machine.turned_away(b)
    machine.want(1, 1.0)
    machine.matched()
    machine.parted(a, 0.1)
    assert not machine.accepts(a, counts=True, steps=True) and machine.accepts(b, counts=True, steps=True)
    machine.want(1, 2.0)
    assert machine.wanted == 1 and machine.accepts(a, counts=True, steps=True), "no exchange was made, so one is wanted"
    machine.matched()
    assert machine.accepts(a, counts=True, steps=True), "asked in vain two rounds ago, and no more since"
    machine.turned_away(b)
    machine.matched()
    machine.parted(b, 0.1)
    machine.turned_away(a)
    machine.want(2, 3.0)
    machine.matched()
    assert machine.accepts(a, counts=True, steps=True) and not machine.accepts(b, counts=True, steps=True)


def test_exchanges_beyond_a_round_ahead_are_forgotten():
    """For example of a peer whose training stood still. Others may exchange with it without limit."""
    machine = matching()
    for _ in range(20):
        assert machine.accepts(IDS[0], counts=True, steps=False)
        machine.matched()
    machine.want(1, 0.0)
    assert machine.wanted == 0
    machine.want(1, 1.0)
    assert machine.wanted == 1


def test_meeting_beside_the_schedule_is_one_of_the_next_round():
    machine = matching()
    machine.want(2, 0.0)
    machine.matched(counts=False)
    assert (machine.wanted, machine.ahead) == (2, 1) and machine.accepts(IDS[0], counts=False, steps=True)
    machine.matched(counts=False)
    assert not machine.accepts(IDS[0], counts=False, steps=True) and machine.accepts(IDS[0], counts=True, steps=True)


def test_exchange_ahead_that_mixes_nothing_after_its_round_has_begun_is_wanted_in_it():
    machine = matching()
    machine.want(1, 0.0)
    machine.matched()
    machine.matched()
    machine.want(1, 1.0)
    assert machine.wanted == 0
    machine.unmatched(IDS[0], 2.0)
    assert machine.wanted == 1


def test_exchange_of_the_last_round_that_mixes_nothing_is_not_wanted_again():
    machine = matching()
    machine.want(1, 0.0)
    machine.matched()
    machine.want(1, 1.0)
    machine.unmatched(IDS[0], 2.0)
    assert (machine.wanted, machine.ahead) == (1, 0)


def test_exchange_ahead_that_mixed_nothing_does_not_count():
    machine = matching()
    machine.want(1, 0.0)
    machine.matched()
    machine.matched()
    assert not machine.accepts(IDS[0], counts=True, steps=True)
    machine.unmatched(IDS[0], 0.0)
    assert machine.accepts(IDS[0], counts=True, steps=True) and machine.wanted == 0


def test_peer_that_waits_for_rounds_to_end_accepts_only_what_it_wants():
    machine = matching(sync=True)
    assert not machine.accepts(IDS[0], counts=True, steps=False)
    machine.want(1, 0.0)
    assert machine.accepts(IDS[0], counts=False, steps=True)
    machine.matched(counts=False)
    assert not machine.accepts(IDS[0], counts=True, steps=True)
    machine.want(1, 1.0)
    assert machine.wanted == 1
