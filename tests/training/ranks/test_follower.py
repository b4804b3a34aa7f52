"""How a follower connects to the daemon: how often it tries, and for how long."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gossipdp.errors import UnreachableError
from gossipdp.training.ranks import follower as followers
from gossipdp.training.ranks.follower import JOIN_WITHIN, Follower


class Layout:
    """Of one parameter."""

    schema = SimpleNamespace(size=1)

    def pin(self, region: object, rank: int, ranks: int) -> None: ...

    def pin_more(self, *, everything: bool = False) -> bool:
        return True


class Daemon:
    """Stands in for `Link`: refuses once per error in `errors`, then shares its memory at once."""

    lost = ""
    region = SimpleNamespace(size=1)

    def __init__(self, errors: list[OSError]) -> None:
        self.errors, self.tries = errors, 0

    def connect(self, home: Path) -> Daemon:
        self.tries += 1
        if self.errors:
            raise UnreachableError("GD-105", "no daemon on this host") from self.errors.pop()
        return self

    def hello_as_rank(self, rank: int, leader: int) -> None: ...


class Time:
    def __init__(self) -> None:
        self.now = 7.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(followers, "time", time)
    return time


def join(monkeypatch: pytest.MonkeyPatch, daemon: Daemon) -> bool:
    layout: Any = Layout()
    monkeypatch.setattr(followers.links.Link, "connect", daemon.connect)
    return Follower(Path("home"), layout, 2, 16).join(1)


@pytest.mark.parametrize("error", [BlockingIOError(), ConnectionRefusedError()], ids=lambda error: type(error).__name__)
def test_daemon_that_has_no_place_in_its_queue_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, time: Time, error: OSError
) -> None:
    daemon = Daemon([error] * 3)
    assert join(monkeypatch, daemon)
    assert daemon.tries == 4 and time.now - 7.0 < 1.0


def test_daemon_that_never_has_a_place_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch, time: Time) -> None:
    assert not join(monkeypatch, Daemon([BlockingIOError()] * 100_000))
    assert JOIN_WITHIN <= time.now - 7.0 < JOIN_WITHIN + 0.1


def test_daemon_that_is_not_there_is_given_up_at_once(monkeypatch: pytest.MonkeyPatch, time: Time) -> None:
    daemon = Daemon([FileNotFoundError()] * 2)
    assert not join(monkeypatch, daemon)
    assert daemon.tries == 1 and time.now == 7.0
