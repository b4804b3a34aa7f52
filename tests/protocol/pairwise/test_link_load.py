"""A peer's load on its link follows the transfer that it fetched, and what its exchanges mixed."""

import pytest

from gossipdp.protocol.pairwise.terms import GROWS, IN_VAIN, SLOWLY, LinkLoad

WINDOW, LEAST, PATIENCE = 8, 4, 1.0


def fetched(seconds, *, chunks=20, gaps=()):
    """The load after a transfer whose chunks came every `seconds`, with some `gaps`."""
    load, now = LinkLoad(WINDOW, LEAST, PATIENCE), 100.0
    for chunk in range(chunks):
        load.carried(now)
        now += gaps[chunk] if chunk < len(gaps) else seconds
    load.fetched()
    return load


@pytest.mark.parametrize(
    ("seconds", "bits", "window"),
    [
        (0.0, 16, 8),
        (0.01, 16, 8),
        (0.125, 16, 8),
        (0.24, 16, 4),
        (0.9, 16, 1),
        (1.2, 8, 1),
        (1.9, 8, 1),
        (2.5, 4, 1),
        (60.0, 4, 1),
    ],
)
def test_bits_and_window_follow_how_fast_the_transfer_arrived(seconds, bits, window):
    load = fetched(seconds)
    assert (load.bits(16), load.window) == (bits, window)
    assert load.bits(4) == 4 and load.bits(2) == 2, "no more than is wished"


def test_transfer_with_a_pause_is_not_slow():
    load = fetched(0.01, gaps=(30.0, 0.01, 30.0))
    assert (load.bits(16), load.window) == (16, WINDOW)


@pytest.mark.parametrize("chunks", [0, 1])
def test_transfer_of_one_chunk_changes_nothing(chunks):
    load = fetched(50.0, chunks=chunks)
    assert (load.bits(16), load.window) == (16, WINDOW)


def test_second_transfer_is_measured_anew():
    load = fetched(3.0)
    for now in (500.0, 500.01, 500.02):
        load.carried(now)
    load.fetched()
    assert (load.bits(16), load.window) == (16, WINDOW)


def test_one_exchange_in_vain_changes_nothing_but_two_in_a_row_lower_the_load():
    load = fetched(0.01)
    load.in_vain()
    load.mixed(16, 16)
    for _ in range(IN_VAIN - 1):
        load.in_vain()
    assert (load.bits(16), load.window) == (16, WINDOW)
    load.in_vain()
    assert (load.bits(16), load.window) == (8, 1)
    for _ in range(10):
        load.in_vain()
    assert (load.bits(16), load.window) == (LEAST, 1)


def test_complete_exchanges_bring_it_back_up():
    load = fetched(3.0)
    seen = []
    for _ in range(4):
        load.mixed(16, 16)
        seen.append((load.bits(16), load.window))
    assert seen == [(8, 2), (16, 4), (16, 8), (16, 8)]


@pytest.mark.parametrize(("chunks", "of", "grows"), [(GROWS - 1, 16, False), (GROWS, 16, True), (2, 2, True)])
def test_exchange_cut_short_raises_the_load_only_if_it_mixed_several_windows(chunks, of, grows):
    load = fetched(3.0)
    load.mixed(chunks, of)
    assert (load.window > 1) is grows


def test_exchanges_cut_by_rounds_bring_it_back_up_together():
    """After a minute of loss, rounds were too short for single chunks, and the load stayed at its minimum for ever."""
    load = fetched(0.01)
    for _ in range(8):
        load.in_vain()
    assert (load.bits(16), load.window) == (LEAST, 1)
    for _ in range(6):
        load.mixed(min(7, 2 * load.window), 7)
    assert (load.bits(16), load.window) == (16, WINDOW)


def test_link_that_carries_no_more_is_tried_more_and_more_rarely():
    load, vain = fetched(3.0), []
    for exchange in range(2000):
        if load.window == 1:
            load.mixed(1, 16)
        else:
            load.in_vain()
            vain.append(exchange)
    assert len([each for each in vain if each < 500]) < 32 and len([each for each in vain if each >= 500]) < 50
    for _ in range(8):
        load.mixed(16, 16)
    assert load.window == WINDOW, "the link is better now"


def test_rise_that_was_too_much_doubles_the_windows_that_the_next_rise_needs():
    load = LinkLoad(WINDOW, LEAST, PATIENCE)

    def fall():
        for _ in range(IN_VAIN):
            load.in_vain()
        assert load.window == 1

    def chunks_until_it_rises():
        count = 0
        while load.window == 1:
            load.mixed(1, of=1000)
            count += 1
        return count

    needed = []
    for _ in range(6):
        fall()
        needed.append(chunks_until_it_rises())
    assert needed == [GROWS, 2 * GROWS, 4 * GROWS, 8 * GROWS, SLOWLY, SLOWLY]
