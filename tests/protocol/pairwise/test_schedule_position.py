"""Which step of the schedule a peer meets next."""

from __future__ import annotations

from gossipdp.protocol.pairwise.schedule import Schedule, SchedulePosition

MEMBERS = tuple(bytes([number]) * 32 for number in range(8))


def test_peer_brings_one_step_of_the_next_round_forward_and_no_more() -> None:
    position = SchedulePosition(MEMBERS[0])
    position.begin(Schedule(MEMBERS, bytes(16)), 4, 1)
    for _ in range(2):
        partner, _ = position.next()
        assert [peer for peer in MEMBERS[1:] if position.serves(peer)] == [partner]
        assert position.met(partner, initiator=False)
    assert all(position.serves(peer) for peer in MEMBERS[1:]), "an exchange of no round"
    held = position.next()
    assert position.met(MEMBERS[1], initiator=False) and position.next() == held


def test_step_that_was_brought_forward_is_not_held_again() -> None:
    position, schedule = SchedulePosition(MEMBERS[0]), Schedule(MEMBERS, bytes(16))
    position.begin(schedule, 4, 1)
    for _ in range(2):
        position.met(b"", initiator=True)
    ahead = position.next()
    position.begin(schedule, 5, 1)
    assert position.next() == ahead
    position.begin(schedule, 9, 1)
    assert position.next() == (schedule.partner(MEMBERS[0], 9) or (b"", 0.0))
