"""Lines about a wait: none for a short one, then some that name it and how long it has lasted."""

from __future__ import annotations

from gossipdp.runtime.link.wait_lines import AFTER, EVERY, WaitLines


def test_short_waits_are_not_told_and_long_ones_are_told_again() -> None:
    lines = WaitLines()
    said = [(now, line) for now in range(100, 160) if (line := lines.look("the model" if now >= 102 else "", now))]
    assert [now for now, _ in said] == [102 + AFTER, 102 + AFTER + EVERY]
    assert said[1][1] == "waiting for the model, for 35 s"
    assert lines.look("", 170) == "" and lines.look("", 999) == ""


def test_another_wait_begins_anew() -> None:
    lines = WaitLines()
    assert [lines.look("a", 0.0), lines.look("a", 4.9), lines.look("b", 5.0), lines.look("b", 9.9)] == [""] * 4
    assert lines.due == 10.0 and lines.look("b", 10.0) == "waiting for b, for 5 s"
