"""Whether other peers can dial this one: the questions, their times and the verdict."""

from __future__ import annotations

import math

import pytest

from gossipdp.runtime.network.reachability import OPINIONS, Reachability

PEERS = [bytes([number]) * 32 for number in range(5)]
ADDRESS = "192.0.2.1:4710"


def asking(said: int = 0) -> tuple[Reachability, float]:
    """A peer in its first round, in which `said` peers have answered that their dials failed."""
    reachability = Reachability(ADDRESS, 10.0)
    assert not reachability.link_up(False, 100.0)
    now = reachability.timer()
    assert not reachability.end_round(now)
    for peer in reachability.begin_round(PEERS, now)[:said]:
        reachability.in_vain(peer, ADDRESS, now)
    return reachability, now


def test_nothing_advertised__never_asks() -> None:
    reachability = Reachability("", 10.0)
    reachability.link_up(False, 1.0)
    reachability.link_up(True, 2.0)
    assert reachability.timer() == math.inf and reachability.dialable is None


def test_no_link_yet__waits_for_one() -> None:
    assert Reachability(ADDRESS, 10.0).timer() == math.inf


def test_dialled_out__asks_some_peers_soon_after() -> None:
    reachability, now = asking()
    assert now == 102.0 and list(reachability.asked) == PEERS[:OPINIONS]
    assert reachability.timer() == 112.0


@pytest.mark.parametrize("said", [0, 3])
def test_link_comes_in__dialable_and_never_asks_again(said: int) -> None:
    reachability, now = asking(said)
    assert not reachability.link_up(True, now)
    assert reachability.dialable is True and reachability.timer() == math.inf
    assert not reachability.link_up(False, now + 1)
    assert reachability.timer() == math.inf


def test_two_failed_rounds__not_dialable_and_asks_less_and_less_often() -> None:
    reachability, _ = asking(said=2)
    pauses = []
    for number in range(10):
        now = reachability.timer()
        assert reachability.end_round(now) is (number == 1)
        reachability.begin_round(PEERS[:1], now)
        reachability.in_vain(PEERS[0], ADDRESS, now)
        pauses.append(reachability.timer() - now)
        assert reachability.dialable is (None if number == 0 else False)
    # The first verdict is not waited for longer than those asked take to answer.
    assert pauses == [6, 20, 40, 80, 160, 320, 640, 640, 640, 640]
    assert reachability.link_up(True, now)
    assert reachability.dialable is True


def test_no_answers__nothing_is_known() -> None:
    reachability, _ = asking()
    for _ in range(5):
        now = reachability.timer()
        assert not reachability.end_round(now)
        reachability.begin_round(PEERS, now)
    assert reachability.dialable is None


@pytest.mark.parametrize(("peer", "address"), [(PEERS[4], ADDRESS), (PEERS[0], "192.0.2.2:4710")])
def test_answer_that_was_not_asked_for__ignored(peer: bytes, address: str) -> None:
    reachability, now = asking()
    reachability.in_vain(peer, address, now)
    assert not any(reachability.asked.values())


def test_last_answer_is_late__the_round_ends_at_once() -> None:
    reachability, now = asking(said=2)
    assert reachability.timer() == now + 10.0
    reachability.in_vain(PEERS[2], ADDRESS, now + 8.0)
    assert reachability.timer() == now + 8.0
