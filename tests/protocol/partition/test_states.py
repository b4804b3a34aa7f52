"""The tables of the reunion, against the page that shows them and against each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from gossipdp.protocol.partition.states import COURSE, GAP, Action, Course, Event, Gap, reunion_diagram
from gossipdp.protocol.state_machine import Machine

PAGE = Path(__file__).resolve().parents[3] / "docs/design/protocol.md"


def test_page_shows_the_tables():
    text = PAGE.read_text().split("<!-- reunion -->")[1].split("<!-- /reunion -->")[0]
    assert text.strip() == f"```mermaid\n{reunion_diagram()}\n```"


@pytest.mark.parametrize(("table", "start"), [(GAP, Gap.TOGETHER), (COURSE, Course.JOINING)])
def test_each_state_can_be_reached_and_left(table, start):
    reached = {start}
    while more := {after for (state, _), (after, _) in table.items() if state in reached} - reached:
        reached |= more
    assert reached == set(type(start))
    assert {state for (state, _), (after, _) in table.items() if state is not after} == set(type(start))


def test_each_event_and_action_is_in_a_table():
    tables = [*GAP.items(), *COURSE.items()]
    assert {event for (_, event), _ in tables} == set(Event)
    assert {action for _, (_, action) in tables} - {None} == set(Action)


def test_state_changes_before_the_action_runs_and_ignores_events_that_it_lacks():
    seen = []
    machine = Machine(COURSE, Course.CURRENT, {Action.ASK: lambda now: seen.append((machine.state, now))})
    machine.fire(Event.FETCHED, 1.0)
    assert machine.state is Course.CURRENT and not seen
    machine.fire(Event.SUSPECTED, 2.0)
    assert seen == [(Course.ASKING, 2.0)]
