"""Of two live daemons with one identity one ends, and both know which one."""

from __future__ import annotations

from pathlib import Path

import pytest

from gossipdp.errors import GossipdpError
from gossipdp.runtime.network.duplicate_identity import AHEAD, CopyError, OvertakenError, judge
from gossipdp.runtime.network.incarnation import count_from, draw_start, next_incarnation, started_at

EARLY, LATE = draw_start(1_000_000.0), draw_start(1_000_001.0)


@pytest.mark.parametrize(
    ("mine", "copy", "end"),
    [
        ((5, EARLY), (5, LATE), None),
        ((6, EARLY), (5, LATE), None),
        ((5, EARLY), (6, LATE), OvertakenError),
        ((5, LATE), (5, EARLY), CopyError),
        ((6, LATE), (5, EARLY), CopyError),
        ((5, LATE), (6, EARLY), CopyError),
        ((5, EARLY), (5, EARLY), CopyError),
    ],
)
def test_later_daemon_ends__and_one_taken_for_its_past_starts_anew(
    mine: tuple[int, bytes], copy: tuple[int, bytes], end: type[GossipdpError] | None
) -> None:
    error = judge(mine, copy, "192.0.2.1:4710")
    assert (error and type(error)) == end
    if error is not None:
        assert error.code == "GD-205" and "192.0.2.1:4710" in error.seen and "home of its own" in error.do
        assert "1970-01-12 13:46:4" in error.seen


def test_overtaken_daemon_counts_on_from_far_above_the_copy(tmp_path: Path) -> None:
    error = judge((5, EARLY), (9, LATE), "192.0.2.1:4710")
    assert isinstance(error, OvertakenError)
    count_from(tmp_path, error.incarnation)
    assert next_incarnation(tmp_path) == 9 + AHEAD + 1


def test_starts_compare_by_their_time() -> None:
    marks = [draw_start(at) for at in (0.0, 5.0, 1.8e9, 4.2e9)]
    assert marks == sorted(marks) and [started_at(mark) for mark in marks] == [0, 5, 1_800_000_000, 4_200_000_000]
    assert len({draw_start(7.0) for _ in range(20)}) == 20
