"""How a joiner paces its requests for chunks on a link of unknown speed."""

from itertools import pairwise

import pytest

from gossipdp.protocol.transfer.requests import Requests


def fetch(seconds, chunks=20, *, window=8, again=5.0, silence=20.0, lost=frozenset(), slower=None):
    """Fetch over a link that carries one chunk in `seconds`. Returns time, chunks asked for, sources given up.

    lost: numbers of the requests that are lost. slower: (number, factor) from which on chunks take longer.
    """
    requests, now, free, asks, under_way, missing = (
        Requests(window, again, silence),
        0.0,
        0.0,
        0,
        [],
        set(range(chunks)),
    )
    requests.begin(now)
    given_up = 0

    def send(wanted):
        nonlocal free, asks
        for chunk in wanted:
            asks += 1
            free = max(free, now) + seconds * (slower[1] if slower and asks > slower[0] else 1.0)
            if asks not in lost:
                under_way.append((free, chunk, requests.number, given_up))

    send(requests.ask(missing, (), now))
    while missing:
        at = min([requests.timer(), *(when for when, *_ in under_way)])
        now = max(now, at)
        arrived = [event for event in under_way if event[0] <= now]
        for event in arrived:
            under_way.remove(event)
            if event[3] == given_up:  # what another source sends is of another transfer
                requests.came(event[1], event[2], now)
                missing.discard(event[1])
        if not arrived:
            if requests.silent(now):
                given_up += 1
                requests.begin(now)
            elif again := requests.repeat(now):
                send(again)
        send(requests.ask(missing, (), now))
        assert now < 1e5
    return now, asks, given_up


@pytest.mark.parametrize("seconds", [0.01, 1.0, 4.0])
def test_link_that_keeps_up_carries_every_chunk_once(seconds):
    assert fetch(seconds) == (pytest.approx(20 * seconds), 20, 0)


@pytest.mark.parametrize("seconds", [6.0, 15.0])
def test_link_slower_than_patience_carries_few_chunks_twice(seconds):
    """Otherwise each chunk is requested again every five seconds, and the queue grows without end."""
    time, asks, given_up = fetch(seconds)
    assert asks <= 23 and given_up == 0 and time <= 23 * seconds


def test_link_slower_than_silence_carries_all_chunks_in_the_end():
    time, asks, given_up = fetch(50.0)
    assert given_up <= 5 and asks <= 40 and time <= 40 * 50.0


def test_link_that_becomes_ten_times_slower_half_way_carries_few_chunks_twice():
    _, asks, given_up = fetch(1.0, slower=(10, 10.0))
    assert asks <= 32 and given_up == 0


def test_link_that_becomes_slower_than_silence_carries_all_chunks_in_the_end():
    _, asks, given_up = fetch(0.5, slower=(10, 100.0))
    assert asks <= 80 and given_up <= 11


def test_lost_chunks_are_requested_again_at_once_when_overtaken():
    time, asks, _ = fetch(0.1, lost={5, 6, 7})
    assert asks == 23 and time < 3.0, "no patience had to run out"


def test_last_chunk_lost_is_requested_again_after_patience():
    time, asks, _ = fetch(0.1, chunks=3, lost={3})
    assert asks == 4 and 5.0 < time < 6.0


def test_losses_do_not_lengthen_patience():
    """T1 seed 2397: each loss counted as a slow answer and doubled the wait for the next one, up to minutes."""
    time, asks, given_up = fetch(0.1, chunks=8, lost={1, 2, 4, 6, 9, 12}, window=1)
    assert asks == 14 and given_up == 0 and time < 6 * 5.0 + 5.0 + 2.0, (
        "5 s for each that was lost, 10 s for the second of two"
    )


def pauses(requests, source_is_silent_from):
    """Seconds between unanswered requests, until the source is given up."""
    now, asked = source_is_silent_from, [source_is_silent_from]
    while not requests.silent(now := requests.timer()):
        assert requests.repeat(now)
        asked.append(now)
    return [later - earlier for earlier, later in pairwise([*asked, now])]


def test_source_is_asked_four_times_before_it_is_given_up():
    """Cold start 746: asked at 0, 1.5 and 4.5 s and left at 5 s, with half of all messages lost."""
    requests = Requests(3, 1.5, 5.0)
    requests.begin(0.0)
    requests.ask(set(range(4)), (), 0.0)
    assert pauses(requests, 0.0) == [1.5, 1.5, 1.5, 0.5]


def test_link_that_has_carried_a_chunk_is_not_taken_for_slow_when_one_source_was_silent():
    requests = Requests(3, 1.5, 5.0)
    requests.begin(0.0)
    requests.ask({0}, (), 0.0)
    requests.came(0, requests.number, 0.01)
    for given_up, expected in enumerate(([1.5] * 3 + [0.5], [1.5, *[2.5] * 3, 1.0], [3.0, *[5.0] * 3, 2.0])):
        now = 100.0 * given_up
        requests.begin(now)
        requests.ask({1}, (), now)
        assert pauses(requests, now) == pytest.approx(expected)


def test_link_that_has_carried_nothing_is_asked_less_often_after_each_silent_source():
    requests, first = Requests(3, 1.5, 5.0), []
    for given_up in range(4):
        requests.begin(100.0 * given_up)
        requests.ask({0}, (), 100.0 * given_up)
        first.append(pauses(requests, 100.0 * given_up)[0])
    assert first == pytest.approx([1.5, 3.0, 6.0, 12.0])


def test_slow_link_is_given_the_time_that_its_answers_take():
    requests = Requests(3, 1.5, 5.0)
    requests.begin(0.0)
    requests.ask({0}, (), 0.0)
    requests.came(0, requests.number, 4.0)
    requests.ask({1}, (), 4.0)
    assert pauses(requests, 4.0) == [8.0, 8.0], "twice the time of an answer; the source is left after four times"


def test_window_opens_by_one_with_each_answer():
    requests, sizes = Requests(4, 5.0, 20.0), []
    requests.begin(0.0)
    missing = set(range(30))
    wanted = requests.ask(missing, (), 0.0)
    for _ in range(5):
        sizes.append(len(wanted))
        for chunk in wanted:
            requests.came(chunk, requests.number, 0.0)
            missing.discard(chunk)
        wanted = requests.ask(missing, (), 0.0)
    assert sizes == [1, 2, 4, 4, 4]


def test_chunks_not_taken_in_yet_count_as_open_requests():
    requests = Requests(4, 5.0, 20.0)
    requests.begin(0.0)
    for chunk in range(4):
        assert chunk in requests.ask(set(range(chunk, 4)), (), 0.0) or chunk
        requests.came(chunk, requests.number, 0.0)
    assert len(requests.ask(set(range(4, 20)), range(100, 103), 0.0)) == 1
    assert requests.ask(set(range(4, 20)), range(100, 104), 0.0) == ()


class Counted(frozenset[int]):
    """A set that counts how often all of it is looked through."""

    looks = 0

    def __sub__(self, other):
        type(self).looks += 1
        return super().__sub__(other)


def test_missing_chunks_are_sorted_once_and_not_for_each_answer():
    requests = Requests(8, 5.0, 20.0)
    requests.begin(0.0)
    missing, order = Counted(range(1000)), []
    while wanted := requests.ask(missing, (), 0.0):
        order += wanted
        for chunk in wanted:
            requests.came(chunk, requests.number, 0.0)
        if len(order) > 990:
            break
    assert order == list(range(len(order))) and Counted.looks == 1


def test_lost_chunks_are_asked_for_first__and_those_that_failed_their_check_at_the_end():
    requests = Requests(4, 5.0, 20.0)
    requests.begin(0.0)
    missing = set(range(12))
    for chunk in range(4):
        requests.ask(missing, (), 0.0)
        requests.came(chunk, requests.number, 0.0)
        missing.discard(chunk)
    missing.add(2)
    requests.ask(missing, (), 0.0)
    requests.came(7, requests.number, 1.0)
    missing.discard(7)
    assert requests.ask(missing, (), 1.0) == (4, 5, 6, 8)
    for chunk in (4, 5, 6, 8):
        requests.came(chunk, requests.number, 1.0)
        missing.discard(chunk)
    assert requests.ask(missing, (), 2.0) == (9, 10, 11, 2)
