"""The table of the bootstrap, against the page that shows it and against itself."""

from __future__ import annotations

from pathlib import Path

from gossipdp.protocol.transfer.bootstrap import BOOTSTRAP, Action, Event, Phase, bootstrap_diagram

PAGE = Path(__file__).resolve().parents[3] / "docs/design/protocol.md"


def test_page_shows_the_table():
    text = PAGE.read_text().split("<!-- bootstrap -->")[1].split("<!-- /bootstrap -->")[0]
    assert text.strip() == f"```mermaid\n{bootstrap_diagram()}\n```"


def test_each_phase_can_be_reached_and_each_event_and_action_is_used():
    reached = {Phase.WAITING}
    while more := {after for (phase, _), (after, _) in BOOTSTRAP.items() if phase in reached} - reached:
        reached |= more
    assert reached == set(Phase)
    assert {event for _, event in BOOTSTRAP} == set(Event)
    assert {action for _, action in BOOTSTRAP.values()} - {None} == set(Action)


def test_founder_and_ready_peer_handle_no_event():
    assert not {phase for phase, _ in BOOTSTRAP} & {Phase.FOUNDING, Phase.READY}
