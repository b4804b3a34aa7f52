"""The network's clock as a grow-only counter: any order, loss or duplication of reports gives the same board."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gossipdp.protocol.membership import progress as module
from gossipdp.protocol.membership.progress import LARGEST, ProgressBoard
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import Member, Ping, Progress, State
from tests.protocol.membership.machines import TRUSTING


def peer(number: int) -> bytes:
    return number.to_bytes(32, "big")


def told(number: int, clock: int, steps: int, samples: int, rounds: int) -> Progress:
    return Progress(peer(number), clock, steps, samples, rounds)


def test_empty_board_stands_at_zero_and_reports_nothing() -> None:
    board = ProgressBoard(peer(0), TRUSTING)
    assert (board.clock(), board.steps(), board.samples(), board.page(8)) == (0, 0, 0, ())
    assert board.mine == told(0, 0, 0, 0, 0) and board.of(peer(1)) is None


def test_clock_is_the_furthest_and_the_counters_are_sums() -> None:
    board = ProgressBoard(peer(0), TRUSTING)
    board.report(clock=70, steps=20, samples=160, rounds=2)
    board.merge([told(1, 100, 100, 800, 10), told(2, 60, 60, 480, 6)])
    assert (board.clock(), board.steps(), board.samples()) == (100, 180, 1440)
    assert board.of(peer(2)) == told(2, 60, 60, 480, 6)


def test_own_report_never_goes_back() -> None:
    board = ProgressBoard(peer(0), TRUSTING)
    board.report(clock=50, steps=50, samples=400, rounds=5)
    board.report(clock=40, steps=40, samples=300, rounds=4)
    assert board.mine == told(0, 50, 50, 400, 5)


@pytest.mark.parametrize("other", [(8, 12, 70, 3), (10, 9, 71, 1), (9, 8, 70, 0)])
def test_report_that_is_not_ahead_in_every_field_changes_nothing_and_its_peer_is_told_the_known_one(
    other: tuple[int, int, int, int],
) -> None:
    board, known = ProgressBoard(peer(0), TRUSTING), told(1, 10, 9, 72, 1)
    board.report(clock=1, steps=1, samples=1, rounds=1)
    board.merge([known, *(told(number, 1, 1, 1, 1) for number in range(2, 40))])
    assert not board.news(told(1, *other), peer(2)) and known not in board.page(2, peer(1)), "peer 2 is just late"
    assert not board.news(told(1, *other), peer(1)) and known in board.page(2, peer(1))
    assert known not in board.page(2, peer(1)), "once is enough, until it says so again"
    board.merge([told(1, *other)])
    assert board.of(peer(1)) == known


counts = st.tuples(*(st.integers(0, 1000) for _ in range(4)))


def lives(numbers: list[tuple[int, list[tuple[int, int, int, int]]]]) -> list[Progress]:
    """Reports of some peers, each of which grows in every field."""
    made = []
    for number, steps in numbers:
        so_far = (0, 0, 0, 0)
        for step in steps:
            so_far = tuple(map(sum, zip(so_far, step, strict=True)))
            made.append(told(number, *so_far))
    return made


grown = st.lists(st.tuples(st.integers(0, 4), st.lists(counts, max_size=5)), max_size=5, unique_by=lambda each: each[0])
reports = st.lists(st.builds(told, st.integers(0, 4), *(st.integers(0, 1000) for _ in range(4))), max_size=20)


@given(grown.map(lives), st.randoms())
def test_any_order_and_duplication_gives_the_same_board(items: list[Progress], random: object) -> None:
    shuffled = items + items[::2]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, two = ProgressBoard(peer(9), TRUSTING), ProgressBoard(peer(9), TRUSTING)
    one.merge(items)
    two.merge(shuffled)
    assert {item.id: one.of(item.id) for item in items} == {item.id: two.of(item.id) for item in items}
    assert (one.clock(), one.steps(), one.samples()) == (two.clock(), two.steps(), two.samples())


@given(reports)
def test_counters_never_fall_whatever_is_merged(items: list[Progress]) -> None:
    board = ProgressBoard(peer(0), TRUSTING)
    before = (0, 0, 0)
    for turn, item in enumerate(items):
        board.merge([item])
        board.report(clock=turn, steps=turn, samples=turn, rounds=turn)
        after = (board.clock(), board.steps(), board.samples())
        assert all(late >= early for early, late in zip(before, after, strict=True))
        before = after


def rounds_of(board: ProgressBoard, *clocks: int, own: int = 100) -> list[int]:
    """Rounds of 10 steps of a peer that began at `own`; in each it hears of peer 1 at this clock. What it claims."""
    board.report(clock=own, steps=0, samples=0, rounds=0)
    claims = []
    for number, clock in enumerate(clocks, 1):
        board.merge([told(1, clock, 1, 1, 1)])
        board.report(clock=own + 10 * number, steps=10 * number, samples=1, rounds=number)
        claims.append(board.mine.clock)
    return claims


@pytest.mark.parametrize(
    ("heard", "claims"),
    [
        ((510, 520, 530), (110, 120, 130)),  # another peer leads: own steps count from the own start
        ((500, 500, 500, 500), (110, 510, 520, 530)),  # no peer leads any more
        ((500, 500, 515, 530), (110, 510, 520, 530)),  # or is faster than this peer, and late
        ((500, 500, 560, 610), (110, 510, 520, 530)),
        ((500, 500, 490, 500), (110, 510, 520, 530)),
        ((LARGEST, LARGEST, LARGEST), (110, LARGEST, LARGEST)),
    ],
)
def test_steps_count_on_from_a_clock_that_stands_still(heard: tuple[int, ...], claims: tuple[int, ...]) -> None:
    assert rounds_of(ProgressBoard(peer(0), TRUSTING), *heard) == list(claims)


def test_standing_clock_gains_nothing_by_a_second_report() -> None:
    board = ProgressBoard(peer(0), TRUSTING)
    assert rounds_of(board, 500, 500) == [110, 510]
    for _ in range(3):
        board.report(clock=120, steps=20, samples=1, rounds=2)
    assert board.clock() == 510


def test_steps_made_while_the_daemon_slept_are_not_counted_on_from_what_others_made_meanwhile() -> None:
    board = ProgressBoard(peer(0), TRUSTING)
    board.report(clock=190, steps=190, samples=1, rounds=38)
    board.merge([told(1, 200, 200, 1, 40)])
    board.report(clock=200, steps=200, samples=1, rounds=40)
    board.merge([told(1, 500, 500, 1, 100)])  # it wakes, and its training has gone on
    for steps in (205, 505):
        board.report(clock=steps, steps=steps, samples=1, rounds=steps // 5)
    assert board.clock() <= 505 + 5


@pytest.mark.parametrize("delay", [0, 1, 5, 40])
@pytest.mark.parametrize("starts", [(0, 0), (0, 3), (0, 9)])
def test_two_peers_with_late_news_do_not_run_the_clock_faster_than_one(starts: tuple[int, ...], delay: int) -> None:
    boards, sent = [ProgressBoard(peer(number), TRUSTING) for number in range(2)], []
    for time in range(1, 400):
        for number, start in enumerate(starts):
            if (time - start) % 10 == 0:
                boards[number].report(clock=time - start, steps=time - start, samples=1, rounds=1)
                sent.append((time + delay, 1 - number, boards[number].mine))
        for _, to, report in [each for each in sent if each[0] == time]:
            boards[to].merge([report])
    assert all(time - 10 - delay <= board.clock() <= time for board in boards)


def test_restarted_peer_counts_on_from_the_reports_of_others() -> None:
    board, other = ProgressBoard(peer(0), TRUSTING), ProgressBoard(peer(1), TRUSTING)
    other.merge([told(0, 500, 500, 4000, 50)])
    board.report(clock=0, steps=3, samples=24, rounds=0)
    board.merge(other.page(8))
    assert board.mine == told(0, 500, 503, 4024, 50)
    board.report(clock=510, steps=10, samples=80, rounds=1)
    board.merge(other.page(8))
    assert board.mine == told(0, 510, 510, 4080, 51)
    other.merge(board.page(8))
    assert (other.steps(), other.samples(), other.clock()) == (510, 4080, 510)


def test_echo_of_the_own_report_adds_nothing() -> None:
    board = ProgressBoard(peer(0), TRUSTING)
    for turn in range(1, 5):
        board.report(clock=turn * 10, steps=turn * 10, samples=turn * 80, rounds=turn)
        board.merge(board.page(8))
    assert board.mine == told(0, 40, 40, 320, 4)


def test_page_has_the_own_report_first_then_the_newest_and_all_in_time() -> None:
    board = ProgressBoard(peer(0), TRUSTING)
    board.report(clock=1, steps=1, samples=1, rounds=0)
    board.merge([told(number, number, 1, 1, 0) for number in range(1, 30)])
    assert [board.page(8)[0].id for _ in range(3)] == [peer(0)] * 3
    seen = {report.id for _ in range(5) for report in board.page(8)}
    assert seen == {peer(number) for number in range(30)}
    board.merge([told(17, 99, 1, 1, 0)])
    assert [report.id for report in board.page(2)] == [peer(0), peer(17)]
    assert len(board.page(1)) == 1 and board.page(0) == ()


def test_board_is_bounded_and_keeps_a_place_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REPORTS", 5)
    board = ProgressBoard(peer(0), TRUSTING)
    board.merge([told(number, 1, 1, 1, 1) for number in range(1, 10)])
    board.report(clock=1, steps=1, samples=1, rounds=1)
    assert board.steps() == 5 and board.refused == 5
    board.merge([told(2, 7, 7, 7, 7)])
    assert board.steps() == 11 and board.refused == 5


def test_absurd_report_on_me_leaves_my_own_report_sendable() -> None:
    """I9: what a member claims cannot make what I send undecodable."""
    board = ProgressBoard(peer(0), TRUSTING)
    board.report(clock=5, steps=5, samples=5, rounds=5)
    board.merge([told(0, 2**63 - 1, 2**63 - 1, 2**63 - 1, 2**32 - 1)])
    board.report(clock=9, steps=9, samples=9, rounds=9)
    message, _ = wire.decode(wire.encode(Ping(1, (), board.page(8))))
    assert message == Ping(1, (), (board.mine,))


def test_when_all_places_are_taken_the_dead_make_room_for_the_living(monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_REPORTS", 5)
    live = {peer(number): Member(peer(number), "", "", 1, 0, State.ALIVE) for number in range(10)}
    board = ProgressBoard(peer(0), TRUSTING)
    board.merge([told(number, number, 10, 80, 1) for number in (1, 2, 3, 4)])
    members = {peer(2): live[peer(2)], peer(7): replace(live[peer(7)], state=State.SUSPECT)}
    members[peer(8)] = replace(live[peer(8)], state=State.FAILED)
    assert not board.take(told(8, 9, 10, 80, 1), members)
    assert board.of(peer(8)) is None and board.refused == 1, "it is not there"
    assert board.take(told(7, 9, 10, 80, 1), members) and not board.take(told(1, 5, 11, 88, 1), members)
    assert board.of(peer(7)) and board.of(peer(2)) and board.clock() == 4
    assert len(board.reports()) == 4 and board.refused == 2
    board.take(told(9, 9, 10, 80, 1), live)
    assert board.of(peer(9)) is None and board.refused == 3, "all peers with a report are live"


def test_reports_beyond_the_limits_are_refused() -> None:
    board = ProgressBoard(b"m" * 32, TRUSTING)
    board.report(clock=5, steps=5, samples=5, rounds=1)
    board.merge([Progress(b"x" * 32, (1 << 63) - 1, 0, 0, 0), Progress(b"m" * 32, 1, 1 << 60, 0, 0)])
    assert (board.clock(), board.steps(), board.refused) == (5, 5, 2)


def test_no_clock_beyond_the_largest_is_taken() -> None:
    board = ProgressBoard(peer(0), TRUSTING)
    board.merge([told(0, 1 << 50, 0, 0, 0), told(1, LARGEST + 1, 0, 0, 0), told(2, LARGEST, 0, 1 << 50, 0)])
    board.report(clock=1 << 50, steps=1, samples=1, rounds=0)
    assert (board.clock(), board.mine.clock, board.refused) == (LARGEST, LARGEST, 2)
    assert board.samples() == (1 << 50) + 1, "samples are not bounded so"


def test_own_report_never_exceeds_the_limits() -> None:
    board, other = ProgressBoard(peer(0), TRUSTING), ProgressBoard(peer(1), TRUSTING)
    board.merge([told(0, 10, 1 << 56, 1 << 56, 0)])
    board.report(clock=20, steps=1, samples=1, rounds=0)
    other.merge([board.mine])
    assert other.clock() == 20


def test_the_clock_is_known_without_looking_at_every_report() -> None:
    board = ProgressBoard(peer(0), TRUSTING)
    board.merge([told(number, number, 1, 1, 0) for number in range(1, 30)])
    board._reports.clear()
    assert board.clock() == 29


def test_losses_travel_with_larger_counts_and_never_by_themselves() -> None:
    board, other = ProgressBoard(peer(1), TRUSTING), ProgressBoard(peer(0), TRUSTING)
    board.report(clock=5, steps=5, samples=40, rounds=1)
    other.merge(board.page(8))
    assert (other.of(peer(1)).loss, other.of(peer(1)).eval_loss) == (None, None)
    signed = board.page(8)
    board.note_losses(1.5, 2.0)
    board.report(clock=5, steps=5, samples=40, rounds=1)
    assert board.page(8) == signed, "the same counts: no new signature, no gossip"
    board.report(clock=9, steps=9, samples=72, rounds=2)
    other.merge(board.page(8))
    assert (other.of(peer(1)).loss, other.of(peer(1)).eval_loss) == (1.5, 2.0)
    assert not other.news(told(1, 9, 9, 72, 2), peer(1)), "other losses at the same counts are no news"


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, 1e31])
def test_a_loss_that_no_field_holds_is_unknown_to_others(loss: float) -> None:
    board = ProgressBoard(peer(1), TRUSTING)
    board.note_losses(loss, 0.5)
    board.report(clock=5, steps=5, samples=40, rounds=1)
    (report,) = board.page(8)
    assert (report.loss, report.eval_loss) == (None, 0.5)
    assert wire.decode(wire.encode(Ping(1, (), (report,))))[0].progress == (report,)
