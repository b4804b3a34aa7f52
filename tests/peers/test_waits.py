"""What a call that blocks waits for is told while it lasts."""

from __future__ import annotations

import threading

import pytest

from peers import waits


def test_a_long_call_is_told_and_a_short_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now, told, events = [0.0], [], [threading.Event(), threading.Event()]

    def say(line: str) -> None:
        told.append(line)
        events[len(told) - 1].set()

    monkeypatch.setattr(waits, "LOOK", 0.001)
    monkeypatch.setattr(waits.time, "monotonic", lambda: now[0])
    with waits.told("the disk", say):
        now[0] = 4.0
    assert told == []
    with waits.told("the disk", say):
        now[0] = 10.0
        events[0].wait()
        now[0] = 45.0
        events[1].wait()
    assert told == ["waiting for the disk, for 6 s", "waiting for the disk, for 41 s"]
    assert not [thread for thread in threading.enumerate() if thread.name == "gossipdp-waits"]
