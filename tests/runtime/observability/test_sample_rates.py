"""Samples a second, from reports that come once a round and may be late."""

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


@pytest.mark.parametrize(
    ("seconds", "others", "patience"),
    [
        pytest.param(0.5, 0, 10.5, id="short rounds"),
        pytest.param(0.5, 99, 60.0, id="short rounds, and reports of a hundred members come in turn"),
        pytest.param(30.0, 9, 90.0, id="long rounds"),
    ],
)
def test_training_hangs__its_rate_is_zero_once_three_rounds_are_overdue(
    seconds: float, others: int, patience: float
) -> None:
    rates, silent = SampleRates(), [report(7, number.to_bytes(32)) for number in range(2, 2 + others)]
    for number in range(9):
        rates.look([report(1000 * number), *silent], seconds * number)
    last = 8 * seconds
    assert rates.of(PEER, last + patience) == 1000 / seconds
    assert rates.of(PEER, last + patience + 0.5) == 0.0


def test_training_goes_on_after_a_hang__its_rate_is_unknown_for_a_round_and_right_then() -> None:
    rates = SampleRates()
    for now, samples in ((0.0, 0), (2.0, 200), (4.0, 400), (6.0, 600), (176.0, 800)):
        rates.look([report(samples)], now)
    assert rates.of(PEER, 176.0) is None
    rates.look([report(1000)], 178.0)
    assert rates.of(PEER, 178.0) == 100.0


def test_samples_go_back__rate_starts_again() -> None:
    rates = SampleRates()
    for now, samples in ((0.0, 0), (1.0, 100), (2.0, 200), (3.0, 50)):
        rates.look([report(samples)], now)
    assert rates.of(PEER, 3.0) is None
