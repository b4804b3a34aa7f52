"""A schedule is followed only while the view is fresh and all peers keep step."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gossipdp.protocol.pairwise.timetable import Timetable


@pytest.mark.parametrize(
    ("settled", "clocks", "followed"),
    [
        (8, {}, True),
        (8, {5: 120, 6: 80}, True),
        (8, {5: 121}, False),
        (8, {5: 79}, False),
        (8, {5: None}, False),
        (7, {}, False),
        (0, {}, False),
    ],
    ids=["in-step", "two-rounds-off", "ahead", "behind", "unheard", "no-power-of-two", "in-doubt"],
)
def test_schedule_is_followed_only_while_the_view_is_fresh_and_all_keep_step(
    settled: int, clocks: dict[int, int | None], followed: bool
) -> None:
    ids = [bytes([number]) * 32 for number in range(8)]

    def report(peer: bytes) -> SimpleNamespace | None:
        clock = clocks.get(peer[0], 100)
        return None if clock is None else SimpleNamespace(clock=clock)

    pacing = SimpleNamespace(every=10, warming_up=False, speed=1.0)
    membership = SimpleNamespace(settled=lambda now: tuple(ids[:settled]))
    progress = SimpleNamespace(clock=lambda: 100, of=report, mine=SimpleNamespace(clock=100))
    timetable = Timetable(membership, progress, pacing, policy="hypercube", early_steps=1000, most=3)
    exchanges, schedule = timetable.plan(8, bytes(16), 1.0)
    assert (exchanges, schedule is not None) == (3, followed)


@pytest.mark.parametrize(("policy", "follows"), [("base2", True), ("hypercube", False), ("", False)])
def test_after_the_early_steps_only_the_base2_graph_is_followed_with_one_exchange(policy: str, follows: bool) -> None:
    ids = tuple(bytes([number]) * 32 for number in range(8))
    report = SimpleNamespace(clock=100)
    timetable = Timetable(
        SimpleNamespace(settled=lambda now: ids),
        SimpleNamespace(clock=lambda: 100, of=lambda peer: report, mine=report),
        SimpleNamespace(every=10, warming_up=False, speed=1.0),
        policy=policy,
        early_steps=100,
        most=3,
    )
    exchanges, schedule = timetable.plan(8, bytes(16), 1.0)
    assert (exchanges, schedule is not None) == (1, follows)
