"""After which ends of a training command the supervisor gives up."""

import pytest

from peers.verdict import NEVER_ATTACHED, OCCUPIED, Verdict, gives_up, occupied_by


@pytest.mark.parametrize(
    ("ends", "given_up"),
    [
        ([(2, 59.0)] * 3, 3),
        ([(126, 0.0)] * 3, 3),
        ([(127, 0.0)] * 3, 3),
        ([(2, 61.0)] * 9, 0),
        ([(1, 4.9)] * 5, 5),
        ([(1, 4.9)] * 4, 0),
        ([(-11, 0.1), (1, 0.1), (-9, 0.1), (1, 0.1), (1, 0.1)], 5),
        ([(1, 0.1)] * 4 + [(1, 5.0)] + [(1, 0.1)] * 4, 0),
        ([(3, 599.0)] * 9 + [(6, 599.0)] * 9 + [(7, 599.0)] * 9 + [(8, 5000.0)] * 9, 0),
    ],
)
def test_ends_in_a_row_that_no_start_can_cure__given_up_at_the_last(
    ends: list[tuple[int, float]], given_up: int
) -> None:
    verdict = Verdict()
    *before, last = [verdict.judge(code, lived, None) for code, lived in ends]
    assert before == [0] * len(before) and last == given_up


@pytest.mark.parametrize(
    ("ends", "given_up"),
    [
        ([(3, 599.0)] * 3, 3),
        ([(6, 599.0)] * 3, 3),
        ([(3, 599.0)] * 2 + [(3, 600.0)], 0),
        ([(7, 599.0)] * 3, 3),
        ([(6, 1.0), (6, 599.0), (0, 30.0), (6, 599.0), (6, 599.0)], 0),
        ([(8, 5000.0)], 1),
    ],
)
def test_refusal_of_gossipdp_that_the_process_told__given_up_whatever_the_exit_code(
    ends: list[tuple[int, float]], given_up: int
) -> None:
    verdict = Verdict()
    *before, last = [0] + [verdict.judge(1, lived, None, told=told) for told, lived in ends]  # torchrun ends with 1
    assert before == [0] * len(before) and last == given_up


def test_command_that_never_attaches__given_up_at_the_tenth_end_within_a_minute_of_its_start() -> None:
    verdict = Verdict()
    said = [verdict.judge(1, 59.0, False) for _ in range(9)]
    said += [verdict.judge(1, 59.0, None)]  # the daemon could not tell: benefit of the doubt
    said += [verdict.judge(1, 120.0, False) for _ in range(20)]  # a data set that is not mounted yet
    said += [verdict.judge(1, 59.0, False) for _ in range(10)]
    assert said == [0] * 39 + [NEVER_ATTACHED]


def test_command_that_has_trained_once__quick_failures_are_waited_out() -> None:
    verdict = Verdict()
    verdict.judge(1, 3600.0, True)
    assert [verdict.judge(1, 1.0, False) for _ in range(30)] == [0] * 30  # a device that is being reset
    assert [verdict.judge(127, 1.0, False) for _ in range(9)] == [0] * 9, "its own code: it has trained"
    given_back = [verdict.judge(7, 20.0, False, told=7) for _ in range(9)]
    assert given_back == [0] * 9, "memory that another process gives back"


@pytest.mark.parametrize("lived", [1.0, 30.0])
def test_shortage_that_may_pass__is_waited_out_also_before_the_first_attach(lived: float) -> None:
    verdict = Verdict()  # 4: the daemon has no open files left (GD-104), or no model has come in time (GD-106)
    assert [verdict.judge(1, lived, False, told=4) for _ in range(30)] == [0] * 30
    assert not verdict.doubtful
    assert [verdict.judge(1, 1.0, False) for _ in range(5)] == [0] * 4 + [5]


@pytest.mark.parametrize(
    ("told", "lines", "do"),
    [
        ("GD-317", ["GD-317 an optimizer"], "do what these lines say: gossipdp refused the script"),
        ("GD-403", [], "do what it wrote last: gossipdp refused the script"),
        ("", ["ImportError"], "run it without gossipdp until it trains, then start this peer again"),
    ],
)
def test_advice_after_a_refusal_is_that_of_the_refusal(told: str, lines: list[str], do: str) -> None:
    assert gives_up("exited with 8", 3, lines, told).do.startswith(do)


def test_another_process_is_attached_instead__given_up_at_the_eighth_end_also_after_training() -> None:
    verdict = Verdict()
    verdict.judge(1, 3600.0, True)
    said = [verdict.judge(7, 20.0, False, told=7, occupied=True) for _ in range(7)]
    said += [verdict.judge(1, 20.0, False)]
    said += [verdict.judge(1, 20.0, False, occupied=True) for _ in range(8)]
    assert said == [0] * 15 + [OCCUPIED]
    assert "process 4242 is attached" in str(occupied_by(4242, "exited with 7", OCCUPIED))


def test_ordinary_crash_after_training__the_next_start_is_not_captured() -> None:
    verdict = Verdict()
    verdict.judge(1, 1.0, False)
    assert verdict.doubtful
    verdict.judge(1, 100.0, True)
    assert not verdict.doubtful
