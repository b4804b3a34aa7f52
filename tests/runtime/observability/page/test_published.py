"""Answers for the status page: finished bytes, only while somebody watches, and never a wait without an end."""

import json
import threading
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from gossipdp.runtime.observability.page.published import EVERY, STALE, WATCHED, Published


class Row(msgspec.Struct):
    time: float
    round: int = 0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def published(clock: Clock) -> Published:
    return Published(clock, patience=0.0)


def asked_while(published: Published, ask: Callable[[], bytes | None], publish: Callable[[], None]) -> bytes | None:
    """What `ask` gets on a thread of its own, when the publisher answers once it is due."""
    got: list[bytes | None] = []
    thread = threading.Thread(target=lambda: got.append(ask()))
    thread.start()
    while thread.is_alive():
        if published.due():
            publish()
        thread.join(0.001)
    return got[0]


def test_nobody_asks__nothing_is_due_and_a_watched_page_is_due_again_and_again_for_a_minute(
    published: Published, clock: Clock
) -> None:
    assert not published.due()
    assert published.status() is None  # nobody publishes
    assert published.due()
    published.publish({}, [], [])
    assert not published.due()
    clock.now += EVERY
    assert published.due()
    clock.now += WATCHED
    assert not published.due()


def test_first_request__waits_for_the_first_answer(clock: Clock) -> None:
    published = Published(clock, patience=10.0)
    told = asked_while(published, published.status, lambda: published.publish({"round": 3}, [{"name": "a"}], []))
    assert told is not None and json.loads(told) == {"status": {"round": 3}, "members": [{"name": "a"}]}


def test_answer_too_old__is_not_given(published: Published, clock: Clock) -> None:
    published.publish({"round": 1}, [], [Row(1.0)])
    clock.now += STALE - 0.1
    assert published.status() is not None and published.history(0.0) is not None
    clock.now += 0.2
    assert published.status() is None and published.history(0.0) is None


def test_values_that_json_does_not_have__become_null_or_plain_numbers(published: Published) -> None:
    published.publish({"loss": float("nan"), "distance": np.float32(0.5)}, [], [])
    assert json.loads(published.status() or b"")["status"] == {"loss": None, "distance": 0.5}


def test_history__the_records_after_a_time_also_once_it_grew_and_was_thinned(published: Published) -> None:
    rows = [Row(float(at), at) for at in range(5)]
    published.publish({}, [], rows)
    assert json.loads(published.history(2.0) or b"") == [{"time": 3.0, "round": 3}, {"time": 4.0, "round": 4}]
    rows.append(Row(5.0, 5))
    published.publish({}, [], rows)
    assert [row["round"] for row in json.loads(published.history(3.0) or b"")] == [4, 5]
    published.publish({}, [], [*rows[::2], Row(6.0, 6)])
    assert [row["round"] for row in json.loads(published.history(float("-inf")) or b"")] == [0, 2, 4, 6]
