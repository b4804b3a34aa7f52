"""H follows a peer's speed relative to the median of the reported speeds (algorithms section 8)."""

from random import Random

import pytest

from gossipdp.protocol.rounds.speed import (
    CHANGE,
    FASTEST,
    LEAST,
    MOST,
    ROUNDS,
    SAME,
    SLOWEST,
    WINDOW,
    Speed,
    settle,
    spread,
)

EVERY = 50


class Host:
    """Trains `pace` steps a second. After each round it and a random other host hear each other's speed."""

    def __init__(self, pace: float) -> None:
        self.pace = pace
        self.words: dict[Host, float] = {}
        """what each other has said last"""
        self.speed = Speed()
        self.made, self.rounds, self.due, self.began = 0, 0, 0.0, 0.0
        self.pause, self.pauses_every = 0.0, 0

    @property
    def every(self) -> int:
        return max(1, round(self.speed.factor * EVERY))

    def begin(self, now: float, random: Random, jitter: float) -> None:
        self.began, self.made = now, self.every
        self.due = now + self.made / self.pace * random.uniform(1.0 - jitter, 1.0 + jitter)
        self.rounds += 1
        if self.pauses_every and self.rounds % self.pauses_every == 0:
            self.due += self.pause


def play(hosts: list[Host], seconds: float, *, since: float = 0.0, jitter: float = 0.0) -> set[float]:
    """All factors, in order."""
    random, factors = Random(1), set()
    if not since:
        for host in hosts:
            host.begin(random.uniform(0.0, 1.0), random, jitter)
    while True:
        host = min(hosts, key=lambda host: host.due)
        now = host.due
        if now >= since + seconds:
            return factors
        host.speed.trained((now - host.began) / host.made, now)
        host.speed.compare([speed for speed in host.words.values() if speed])
        factors.add(host.speed.factor)
        host.begin(now, random, jitter)
        if others := [other for other in hosts if other is not host]:
            other = random.choice(others)
            host.words[other], other.words[host] = other.speed.own, host.speed.own


def network(*speeds: float) -> list[Host]:
    return [Host(speed) for speed in speeds]


@pytest.mark.parametrize("peers", [2, 3, 5, 16, 40])
@pytest.mark.parametrize("jitter", [0.0, 0.1])
def test_peers_of_one_speed_all_keep_h_as_configured(peers: int, jitter: float) -> None:
    assert play(network(*[10.0] * peers), 600.0, jitter=jitter) == {1.0}


@pytest.mark.parametrize("peers", [2, 4, 8])
@pytest.mark.parametrize(("pause", "every"), [(6.0, 5), (10.0, 4), (60.0, 20)])
def test_peers_that_all_pause_now_and_then_keep_h_as_configured(peers: int, pause: float, every: int) -> None:
    """To evaluate, or to write a checkpoint."""
    hosts = network(*[10.0] * peers)
    for host in hosts:
        host.pause, host.pauses_every = pause, every
    assert play(hosts, 3000.0) == {1.0}


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


def test_peer_that_is_alone_or_knows_no_speed_keeps_h_as_configured() -> None:
    assert play(network(3.0), 1000.0) == {1.0}
    speed = Speed()
    speed.trained(0.1, 1.0)
    speed.compare([1.0])
    assert (speed.own, speed.factor) == (0.0, 1.0), "one round is not enough: in the first much is compiled"
    speed.trained(0.1, 2.0)
    speed.compare([1.0])
    assert speed.own == 10.0 and speed.factor == pytest.approx(20 / 11)


def test_paused_peer_counts_for_as_long_as_the_last_rounds_took() -> None:
    speed = Speed()
    for number in range(1, ROUNDS + 3):
        assert speed.trained(0.1, 30.0 * number) == 30.0 * min(ROUNDS - 1, number - 1)


def test_short_rounds_count_for_a_minute_and_at_most_64() -> None:
    """On a machine whose cores other processes use for seconds now and then."""
    lasting = []
    speed = Speed()
    for number in range(200):
        busy = number % 40 >= 25
        lasting.append(speed.trained(0.5 if busy else 0.1, 2.0 * number))
        speed.compare([10.0])
        assert number < LEAST or (speed.own, speed.factor) == (10.0, 1.0)
    assert max(lasting) == WINDOW
    for number in range(MOST):
        lasting.append(speed.trained(0.2, 1000.0 + 0.01 * number))
    assert speed.own == 5.0 and lasting[-1] == pytest.approx(0.01 * (MOST - 1))


def test_resting_peer_reports_no_speed_until_it_has_made_a_round_again() -> None:
    speed = Speed()
    speed.trained(0.1, 1.0)
    speed.trained(0.1, 2.0)
    speed.rests()
    assert speed.own == 0.0
    speed.trained(0.1, 3.0)
    assert speed.own == 10.0


def test_peer_that_becomes_slower_for_good_is_measured_anew() -> None:
    hosts = network(10.0, 10.0, 10.0)
    play(hosts, 200.0)
    hosts[2].pace = 1.0
    play(hosts, 2000.0, since=200.0)
    assert [host.speed.factor for host in hosts] == [1.0, 1.0, pytest.approx(0.1, rel=CHANGE)]
    hosts[2].pace = 10.0
    play(hosts, 1000.0, since=2200.0)
    assert [host.speed.factor for host in hosts] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("fast", [10, 20, 32, pytest.param(77, marks=pytest.mark.long)])
def test_no_factor_goes_to_and_fro_in_a_network_of_two_speeds(fast: int) -> None:
    """The median of a sample of members would change between the fast and the slow ones."""
    hosts = network(*[10.0] * fast, *[1.0] * 20)
    play(hosts, 6000.0)
    before = {host.speed.factor for host in hosts}
    assert play(hosts, 500.0, since=6000.0) == before and len(before) > 1


@pytest.mark.parametrize("lie", [1e-300, 1e-3, 1e3, 1e300])
def test_one_liar_among_five_shortens_no_peers_rounds(lie: float) -> None:
    speed = Speed()
    for number in range(ROUNDS):
        speed.trained(0.1, float(number))
        speed.compare([10.0, 10.0, 10.0, lie])
        assert speed.factor == 1.0


def test_noise_changes_nothing() -> None:
    assert settle(1.0, 10.0, [10.0, 10.0 * (1 - SAME / 2)]) == 1.0
    assert settle(0.5, 5.0 * (1 + CHANGE / 2), [10.0, 10.0]) == 0.5
    assert settle(0.5, 5.0 * (1 + 2 * CHANGE), [10.0, 10.0]) == pytest.approx(0.7)


def test_spread_is_the_mean_distance_from_the_median_in_doublings() -> None:
    assert spread([3.0]) == spread([2.0, 2.0]) == 0.0
    assert spread([1.0, 2.0, 4.0]) == pytest.approx(2 / 3)
    assert spread([1e-300, *[1.0] * 7]) == pytest.approx(4 / 8), "one liar counts little"


def test_a_peer_knows_the_spread_once_it_knows_its_own_speed() -> None:
    speed = Speed()
    assert speed.spread == 0.0
    for now in range(LEAST):
        speed.trained(1.0, float(now))
        speed.compare([2.0, 4.0])
    assert speed.spread == pytest.approx(2 / 3)
