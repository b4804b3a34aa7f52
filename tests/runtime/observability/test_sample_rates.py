"""Samples a second, from reports that come once a round and may be late."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from types import SimpleNamespace
from typing import cast

import pytest

from gossipdp.protocol.wire.messages import Progress
from gossipdp.runtime.observability.sample_rates import SampleRates

PEER, OTHER = bytes([1]) * 32, bytes([2]) * 32


def report(samples: int, peer: bytes = PEER) -> Progress:
    return cast(Progress, SimpleNamespace(id=peer, samples=samples))


@pytest.mark.parametrize("seconds", [1.0, 7.0, 45.0, 300.0])
def test_rounds_of_any_length__reports_up_to_a_second_late__rate_is_right(seconds: float) -> None:
    rates, random, told, seen = SampleRates(), Random(1), 0, []
    heard = [(number * seconds + random.random() * min(1.0, 0.2 * seconds), number) for number in range(1, 200)]
    for tick in range(int(40 * seconds)):
        now = 0.5 * tick
        told += sum(at <= now for at, number in heard if number == told + 1)
        rates.look([report(int(told * seconds * 100))], now)
        if told >= 8 and (rate := rates.of(PEER, now)) is not None:
            seen.append(rate)
    assert seen and min(seen) > 85 and max(seen) < 115


def test_before_the_first_whole_round_and_after_the_member_is_gone__no_rate() -> None:
    rates = SampleRates()
    for now, samples in ((0.0, 500), (3.0, 600), (10.0, 600)):
        rates.look([report(samples), report(7, OTHER)], now)
        assert rates.of(PEER, now) is None
    rates.look([report(1300), report(7, OTHER)], 13.0)
    assert rates.of(PEER, 13.0) == 70.0 and rates.of(OTHER, 13.0) is None
    rates.look([report(7, OTHER)], 14.0)
    assert rates.of(PEER, 14.0) is None


def test_member_stops_training__its_rate_falls_smoothly_once_a_report_is_overdue() -> None:
    rates = SampleRates()
    for number in range(5):
        rates.look([report(1000 * number)], 10.0 * number)
    seen = [rates.of(PEER, 40.0 + second) or 0.0 for second in range(400)]
    assert seen[:21] == [100.0] * 21 and seen[-1] < 10
    assert all(0 <= earlier - later < 4 for earlier, later in pairwise(seen))


def test_samples_go_back__rate_starts_again() -> None:
    rates = SampleRates()
    for now, samples in ((0.0, 0), (1.0, 100), (2.0, 200), (3.0, 50)):
        rates.look([report(samples)], now)
    assert rates.of(PEER, 3.0) is None
