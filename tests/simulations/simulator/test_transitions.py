"""Which transitions of the course the networks of T1 take, and why they take no others."""

import pytest

from gossipdp.protocol.course import course, meeting
from gossipdp.protocol.course.table import COURSE, GAP, Event, Gap, State
from simulations.simulator.cluster import run_seed

SEEDS = (703, 716, 744, 768)
"""networks of T1 that together take all transitions that any of 90 networks took"""
BEYOND = {
    (State.RESTORING, Event.EARLIER): "no fault damages a checkpoint after it was written",
    (State.RESTORING, Event.UNREADABLE): "no fault damages a checkpoint after it was written",
    (State.TAKING_OVER, Event.NOT_FINITE): "no process of the simulator diverges",
    (State.DOUBTING, Event.OUTRANKED): "a meeting is judged before a peer at it is cut off for long enough to doubt",
    (State.REPLACING, Event.OUTRANKED): "two sides would have to meet within one fetch",
    (Gap.TOGETHER, Event.CHANGED_SIDES): "a member apart would have to fail and return between two meetings",
    (Gap.TOGETHER, Event.MISNAMED): "a member apart would have to return as the last other one of this side goes",
    (Gap.JUDGED, Event.MISNAMED): "a side would have to lose its members while it waits for another to follow",
}
"""why no network takes them; the tests of the course do"""


@pytest.mark.campaign("T1")
def test_networks_take_every_transition_but_those_that_need_what_no_plan_has(monkeypatch, record_property):
    taken = set()

    def noted(table, state, event, of=course.next_state):
        taken.add((state, event))
        return of(table, state, event)

    monkeypatch.setattr(course, "next_state", noted)
    monkeypatch.setattr(meeting, "next_state", noted)
    for seed in SEEDS:
        run_seed(seed)
    record_property("seeds", len(SEEDS))
    assert {*COURSE, *GAP} - taken == BEYOND.keys()
