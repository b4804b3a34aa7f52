"""H follows a peer's speed against the median of all, as reports of progress tell it (algorithms section 8)."""

from __future__ import annotations

import itertools
import math
from random import Random
from types import SimpleNamespace

import pytest

from gossipdp.protocol.messages import Progress
from gossipdp.protocol.progress import ProgressBoard
from gossipdp.protocol.speed import CHANGE, FASTEST, SAME, SAMPLE, SLOWEST, Speed, settle

EVERY = 50
PROBE = 1.0


def name(number: int) -> bytes:
    return number.to_bytes(32, "big")


class Host:
    """Trains `speed` steps a second, reports at the end of each round, and hears of the others' reports at once."""

    def __init__(self, number: int, speed: float, others: int) -> None:
        members = [SimpleNamespace(id=name(other)) for other in range(1, others + 2) if other != number]
        self.id, self.pace = name(number), speed
        self.board = ProgressBoard(self.id)
        self.membership = SimpleNamespace(
            alive=lambda: members, me=SimpleNamespace(id=self.id), config=SimpleNamespace(probe_interval=PROBE)
        )
        self.speed = Speed(self.membership, self.board)
        self.steps = self.rounds = 0
        self.due = self.began = 0.0
        self.paused_until = 0.0

    @property
    def every(self) -> int:
        return max(1, round(self.speed.factor * EVERY))

    def round(self, now: float) -> None:
        self.steps += self.made
        self.rounds += 1
        self.board.report(clock=self.steps, steps=self.steps, samples=self.steps, rounds=self.rounds)
        self.speed.look(self.steps, now)


def play(hosts: list[Host], seconds: float, *, since: float = 0.0, jitter: float = 0.0) -> set[float]:
    """Every factor that there was."""
    random, factors = Random(1), set()
    if not since:
        for host in hosts:
            host.made, host.due = host.every, host.every / host.pace * random.uniform(1.0, 2.0)
    while (now := min(host.due for host in hosts)) < since + seconds:
        host = min(hosts, key=lambda host: host.due)
        if now < host.paused_until:
            host.due += host.paused_until - now
            continue
        host.round(now)
        factors.add(host.speed.factor)
        for other in hosts:
            other.board.merge([host.board.mine])
        host.made = host.every
        host.due = now + host.made / host.pace * random.uniform(1.0 - jitter, 1.0 + jitter)
    return factors


def network(*speeds: float) -> list[Host]:
    return [Host(number, speed, len(speeds) - 1) for number, speed in enumerate(speeds, 1)]


@pytest.mark.parametrize("peers", [2, 3, 5, 16])
@pytest.mark.parametrize("jitter", [0.0, 0.1])
def test_peers_of_one_speed_all_keep_h_as_configured(peers: int, jitter: float) -> None:
    assert play(network(*[10.0] * peers), 600.0, jitter=jitter) == {1.0}


@pytest.mark.parametrize(
    ("speeds", "factors"),
    [
        ((1, 2, 4), (0.5, 1.0, 2.0)),
        ((1, 10), (2 / 11, 20 / 11)),
        ((1, 30), (2 / 31, 60 / 31)),
        ((1, 10, 10, 10), (0.1, 1.0, 1.0, 1.0)),
        ((1, 1, 1, 10), (1.0, 1.0, 1.0, FASTEST)),
        ((1, 100, 100), (SLOWEST, 1.0, 1.0)),
    ],
)
def test_h_is_proportional_to_speed_within_limits(speeds, factors) -> None:
    hosts = network(*speeds)
    play(hosts, 10_000.0)
    assert [host.speed.factor for host in hosts] == [pytest.approx(factor, rel=CHANGE) for factor in factors]


def test_ten_times_slower_peer_shortens_its_rounds_after_three_of_them() -> None:
    hosts = network(1.0, 10.0)
    play(hosts, 4.5 * EVERY)
    assert hosts[0].every < 15


def test_peer_that_is_alone_or_knows_no_rate_keeps_h_as_configured() -> None:
    assert play(network(3.0), 1000.0) == {1.0}
    [host, other] = network(1.0, 10.0)
    assert play([host], 1000.0) == {1.0}
    other.board.report(clock=5, steps=5, samples=5, rounds=1)
    host.board.merge([other.board.mine])
    assert play([host], 1000.0, since=1000.0) == {1.0}


def test_members_whose_training_has_ended_are_not_counted() -> None:
    """Three fast ones end; of the two that go on, both are as fast as the median."""
    hosts = network(1.0, 1.0, 10.0, 10.0, 10.0)
    play(hosts, 1000.0)
    assert hosts[0].speed.factor == pytest.approx(0.1, rel=CHANGE)
    play(hosts[:2], 1000.0, since=1000.0)
    assert [host.speed.factor for host in hosts[:2]] == [1.0, 1.0]


def test_one_that_pauses_changes_nobodys_h_meanwhile_nor_its_own_afterwards() -> None:
    hosts = network(10.0, 10.0, 10.0)
    play(hosts, 200.0)
    hosts[2].paused_until = 300.0
    assert play(hosts, 300.0, since=200.0) == {1.0}


def test_peer_that_becomes_slower_for_good_is_measured_anew() -> None:
    hosts = network(10.0, 10.0, 10.0)
    play(hosts, 200.0)
    hosts[2].pace = 1.0
    play(hosts, 2000.0, since=200.0)
    assert [host.speed.factor for host in hosts] == [1.0, 1.0, pytest.approx(0.1, rel=CHANGE)]
    hosts[2].pace = 10.0
    play(hosts, 1000.0, since=2200.0)
    assert [host.speed.factor for host in hosts] == [1.0, 1.0, 1.0]


def test_rate_is_not_measured_over_less_than_eight_probe_intervals() -> None:
    """Rounds of 50 ms: what was heard of them says more about the way than about the training."""
    host, other = network(1000.0, 1000.0)
    host.board.merge([Progress(other.id, 0, 1, 1, 1)])
    for tick in itertools.count(1):
        host.made = EVERY
        host.round(0.05 * tick)
        if tick in (20, 40):
            host.board.merge([Progress(other.id, 0, 500 * tick, 0, tick)])
        if tick == 60:
            break
    assert host.speed.factor == 1.0


def test_of_many_members_those_whose_ids_follow_are_looked_at() -> None:
    host = Host(90, 1.0, 99)
    assert host.speed._sample() == [name(number) for number in (*range(91, 101), *range(1, SAMPLE - 9))]


@pytest.mark.parametrize(
    ("before", "own", "others", "factor"),
    [
        (1.0, 1.0, [], 1.0),
        (0.3, math.nan, [1.0], 1.0),
        (1.0, 1.0, [1.3], 1.0),
        (1.0, 1.0 + 0.9 * CHANGE, [1.0, 1.0], 1.0),
        (1.0, 1.3, [1.0, 1.0], 1.3),
        (1.3, 1.15, [1.0, 1.0], 1.3),
        (1.3, 1.0 + 0.9 * SAME, [1.0, 1.0], 1.0),
        (0.5, 0.45, [1.0, 1.0], 0.5),
        (0.5, 0.1, [1.0, 1.0, 90.0], 0.1),
        (1.0, 99.0, [1.0, 1.0], FASTEST),
        (1.0, 1.0, [99.0, 99.0], SLOWEST),
    ],
)
def test_factor_is_against_the_median_and_noise_does_not_move_it(before, own, others, factor) -> None:
    assert settle(before, own, others) == pytest.approx(factor)
