"""The meetings of peers whose training is over: partners, refusals, agreement, and when they give up."""

import math
from random import Random

import pytest

from gossipdp.protocol.causes import Objection
from gossipdp.protocol.pairwise.closing import BEHIND, CYCLES, FINER, LONGER, MORE, TOLERANCE, Closing
from tests.protocol.pairwise.averaging_rig import A, B, C, D, member

SEED = b"a seed"
PATIENCE = 10.0
NEAR, FAR = 0.5 * TOLERANCE, 0.5
NAT = [member(letter) for letter in (b"x", b"y")]
NAT = [one.__class__(one.id, one.name, "", 1, 0, one.state) for one in NAT]


def closing(me, *others, usual=1.0, now=0.0):
    machine = Closing(me, Random(1), PATIENCE)
    machine.measured(usual, 0.0)
    machine.meet(others, SEED, now)
    return machine


def walk(machine, distances, now=0.0):
    """Meet the partner of each step, with these distances. Returns the partners."""
    met = []
    for distance in distances:
        partner, _ = machine.partner
        met.append(partner)
        machine.met(partner, distance, distance, 1.0, now)
    return met


def test_before_the_end_of_training_there_is_no_partner_and_nothing_is_over():
    machine = Closing(A, Random(1), PATIENCE)
    assert not machine.begun and machine.partner == (b"", 0.0) and machine.timer() is None
    assert not machine.closeness.over


def test_members_follow_one_schedule_until_one_cycle_and_two_near_exchanges_are_over():
    machines = {me.id: closing(me, *(one for one in (A, B, C, D) if one is not me)) for me in (A, B, C, D)}
    for step in range(4):
        partners = {me: machine.partner[0] for me, machine in machines.items()}
        assert all(partners[partners[me]] == me for me in machines), "pairs"
        assert all(machine.partner[1] == 0.5 and not machine.closeness.over for machine in machines.values())
        for me, machine in machines.items():
            machine.met(partners[me], FAR if step < 2 else NEAR, FAR if step < 2 else NEAR, 1.0, 0.0)
    assert all(machine.closeness.agrees and machine.partner == (b"", 0.0) for machine in machines.values())


def test_the_partner_of_a_step_that_was_left_out_is_let_in_soon_because_it_may_be_behind():
    machine = closing(A, B, C, D)
    behind, _ = machine.partner
    now = machine.timer()
    machine.handle_timer(now)
    partner, _ = machine.partner
    (other,) = {B.id, C.id, D.id} - {behind, partner}
    assert machine.objection(partner, now) is None
    assert machine.objection(behind, now + 0.9 * BEHIND) == Objection.BUSY
    assert machine.objection(behind, now + BEHIND) is None and machine.objection(other, now + BEHIND) == Objection.BUSY


def test_the_partner_of_a_step_that_was_made_waits_for_the_next_one_in_its_order():
    """Members that came a step early made the cycle inexact: of 24 peers some made 61 exchanges and never agreed."""
    machine = closing(A, B, C, D)
    (met,) = walk(machine, [FAR])
    assert machine.objection(met, 0.99 * PATIENCE) == Objection.BUSY and machine.objection(met, PATIENCE) is None


def test_the_usual_distance_of_a_short_run_is_the_largest_of_the_first_cycle():
    machine = closing(A, B, C, D, usual=math.nan)
    walk(machine, [0.7, 0.9])
    assert machine.closeness.before == 0.9
    walk(machine, [5.0])
    assert machine.closeness.before == 0.9, "the first cycle is over"


def test_before_the_closing_begins_no_distance_is_measured():
    assert math.isnan(Closing(A, Random(1), PATIENCE).closeness.now)


def test_a_distance_beyond_the_bound_is_no_distance_of_the_others():
    machine = closing(A, B, C, D)
    walk(machine, [FAR, NEAR])
    apart, _ = machine.partner
    machine.met(apart, 1e9, 0.0, 1.0, 0.0, outlier=True)
    assert machine.closeness.before == 1.0 and machine.closeness.now == NEAR
    while not machine.closeness.over:
        broken = machine.partner[0] == apart
        machine.met(machine.partner[0], 1e9 if broken else NEAR, 0.0, 1.0, 0.0, outlier=broken)
    assert machine.closeness.agrees and machine.closeness.outliers == (apart,)
    machine.met(apart, NEAR, NEAR, 1.0, 0.0)
    assert machine.closeness.agrees and machine.closeness.outliers == (), "it has come near"


def test_a_peer_that_stands_apart_from_most_members_does_not_agree_with_the_rest():
    machine = closing(A, B, C, D)
    for other in (B, C):
        machine.met(other.id, 1e9, 0.0, 1.0, 0.0, outlier=True)
    for _ in range(4):
        machine.met(D.id, NEAR, NEAR, 1.0, 0.0)
    assert not machine.closeness.agrees and not machine.closeness.over


def test_a_peer_that_stands_apart_from_all_seeks_no_more():
    machine = closing(A, B)
    machine.met(B.id, 1e9, 0.0, 1.0, 0.0, outlier=True)
    assert machine.closeness.over and not machine.closeness.agrees and machine.partner == (b"", 0.0)


def test_the_bound_halves_with_each_cycle_and_a_new_member_finds_it_whole():
    machine, shares = closing(A, B, C, D), []
    for _ in range(6):
        shares.append(machine.share)
        walk(machine, [FAR])
    assert shares == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    machine.meet([B, C], SEED, 0.0)
    machine.meet([B, C, D], SEED, 0.0)
    assert machine.share < 0.25, "members that come and go do not widen it"
    machine.meet([B, C, D, member(b"new")], SEED, 0.0)
    assert machine.share == 1.0


def test_a_near_first_cycle_is_enough():
    machine = closing(A, B, C, D)
    walk(machine, [NEAR, NEAR])
    assert machine.closeness.agrees and machine.closeness.exchanges == 2


def test_a_distance_beyond_the_tolerance_makes_a_peer_seek_again():
    machine = closing(A, B)
    walk(machine, [FAR, NEAR, NEAR])
    assert machine.closeness.over
    machine.met(B.id, FAR, FAR, 1.0, 0.0)
    assert not machine.closeness.over and machine.partner[0] == B.id


def test_the_usual_distance_is_that_of_training_or_else_the_first_of_the_closing():
    machine = closing(A, B, usual=math.nan)
    walk(machine, [3.0])
    machine.measured(math.nan, 0.0)
    assert machine.closeness.before == 3.0 and machine.closeness.now == 3.0
    known = closing(A, B, usual=2.0)
    known.measured(4.0, 0.0)
    assert known.closeness.before == pytest.approx(0.7 * 2.0 + 0.3 * 4.0)


def test_a_cut_exchange_is_no_step():
    machine = closing(A, B, C, D)
    partner = machine.partner
    machine.met(partner[0], math.nan, 0.0, 1.0, 0.0)
    assert machine.partner == partner and machine.closeness.exchanges == 1


def test_only_the_partner_of_the_step_is_accepted_until_patience_ends():
    machine = closing(A, B, C, D)
    partner, _ = machine.partner
    other = next(one.id for one in (B, C, D) if one.id != partner)
    assert machine.objection(partner, 1.0) is None and machine.objection(other, 1.0) == Objection.BUSY
    assert machine.objection(other, PATIENCE) is None
    assert machine.objection(b"s" * 32, 100.0) == Objection.DONE, "no member of the closing"


def test_an_exchange_with_another_member_is_no_step_and_its_distance_counts():
    machine = closing(A, B, C, D)
    partner, _ = machine.partner
    other = next(one.id for one in (B, C, D) if one.id != partner)
    machine.met(other, NEAR, NEAR, 1.0, 0.0)
    assert machine.partner[0] == partner and machine.closeness.now == NEAR


def test_an_exchange_of_the_training_counts_for_nothing():
    machine = closing(A, B)
    machine.met(C.id, NEAR, NEAR, 1.0, 0.0)
    assert machine.closeness.exchanges == 0 and math.isnan(machine.closeness.now)


def test_a_partner_that_does_not_come_is_left_out_after_twice_the_patience():
    machine = closing(A, B, C, D)
    partner, _ = machine.partner
    assert machine.timer() == 2 * PATIENCE
    machine.handle_timer(2 * PATIENCE - 0.1)
    assert machine.partner[0] == partner
    machine.handle_timer(2 * PATIENCE)
    assert machine.partner[0] != partner and machine.timer() == 4 * PATIENCE


def test_patience_follows_the_longest_exchange():
    machine = closing(A, B)
    machine.met(B.id, FAR, FAR, 100.0, 5.0)
    assert machine.timer() == 5.0 + 2 * LONGER * 100.0


def test_exchanges_of_the_training_tell_how_long_the_first_one_may_take():
    machine = Closing(A, Random(1), PATIENCE)
    machine.measured(1.0, 100.0)
    machine.measured(1.0, 0.0)
    machine.meet([B], SEED, 0.0)
    assert machine.needed == machine.timer() == 2 * LONGER * FINER * 100.0


def test_no_step_is_left_out_while_an_exchange_lasts():
    machine = closing(A, B, C, D)
    partner, _ = machine.partner
    machine.began()
    assert machine.timer() is None
    machine.handle_timer(50 * PATIENCE)
    assert machine.partner[0] == partner
    machine.met(partner, FAR, FAR, 50 * PATIENCE, 50 * PATIENCE)
    assert machine.partner[0] != partner and machine.timer() is not None


def test_a_partner_has_its_whole_time_after_an_exchange_with_another_member():
    machine = closing(A, B, C, D)
    partner, _ = machine.partner
    other = next(one.id for one in (B, C, D) if one.id != partner)
    machine.began()
    machine.met(other, FAR, FAR, 1.0, 3 * PATIENCE)
    assert machine.partner[0] == partner and machine.timer() == 5 * PATIENCE


def test_peers_that_never_come_near_stop_after_a_bounded_number_of_steps():
    machine = closing(A, B)
    assert machine.most == CYCLES + MORE
    walk(machine, [FAR] * machine.most)
    assert machine.closeness.over and not machine.closeness.agrees and machine.partner == (b"", 0.0)
    walk_on = [machine.met(B.id, FAR, FAR, 1.0, 0.0) for _ in range(machine.most)]
    assert len(walk_on) == machine.most and machine.objection(B.id, 0.0) == Objection.DONE


def test_silent_partners_cost_a_bounded_time():
    machine, now = closing(A, B, C, D), 0.0
    while (due := machine.timer()) is not None:
        now = due
        machine.handle_timer(now)
    assert machine.closeness.over and now == 2 * PATIENCE * machine.most


def test_others_that_come_or_go_begin_a_new_schedule():
    machine = closing(A, B, C, D)
    walk(machine, [FAR, NEAR])
    machine.meet([B, C], SEED, 1.0)
    assert not machine.closeness.agrees
    walk(machine, [NEAR] * 5)
    assert machine.closeness.agrees
    machine.meet([B, C, D], SEED, 2.0)
    assert not machine.closeness.over, "one has come"


def test_a_member_that_leaves_once_all_agree_changes_nothing():
    machine = closing(A, B, C, D)
    walk(machine, [NEAR, NEAR])
    machine.meet([B, C], SEED, 1.0)
    assert machine.closeness.agrees
    machine.meet([], SEED, 2.0)
    assert machine.closeness.agrees and machine.closeness.now == 0.0


def test_alone_a_peer_agrees_at_once():
    machine = closing(A)
    assert machine.closeness.agrees and machine.timer() is None


def test_an_odd_number_of_members_leaves_idle_steps_out_at_once():
    machines = {me.id: closing(me, *(one for one in (A, B, C) if one is not me)) for me in (A, B, C)}
    assert all(machine.partner[0] for machine in machines.values()), "each waits for a partner of some step"


def test_two_outbound_only_members_make_random_partners_of_those_that_can_meet():
    x, y = NAT
    machine = closing(x, y, A, B)
    partners = set(walk(machine, [FAR] * 20))
    assert partners == {A.id, B.id}, "never the other outbound-only peer"
    assert machine.objection(A.id, 0.0) is None, "any partner will do"
    while not machine.closeness.over:
        walk(machine, [NEAR])
    assert machine.closeness.agrees


def test_without_a_schedule_a_refusal_makes_it_try_another_and_patience_goes_on():
    x, y = NAT
    machine = closing(x, y, A, B, C, D)
    seen = {machine.partner[0]}
    for now in range(1, 20):
        machine.refused(float(now))
        seen.add(machine.partner[0])
    assert len(seen) > 1 and machine.timer() == 2 * PATIENCE
    with_schedule = closing(A, B, C, D)
    partner = with_schedule.partner
    with_schedule.refused(1.0)
    assert with_schedule.partner == partner
