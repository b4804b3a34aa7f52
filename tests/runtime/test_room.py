"""What a peer needs for a model, and whether it is there."""

from collections.abc import Callable

import pytest

from gossipdp.errors import HardwareError
from gossipdp.runtime import room as rooms
from gossipdp.runtime.free_memory import Free
from gossipdp.runtime.memory_need import FROZEN, GIVEN, MOMENTS, RESYNC, SHARED, VECTORS, MemoryPlan
from gossipdp.runtime.room import Room

MANY = 10**9
PLAN = MemoryPlan()
NEED = PLAN.need(MANY)


@pytest.fixture(autouse=True)
def one_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "holders", lambda _: [(4711, "python\x1b", 3 * 10**9)])


def room(free: int | None, *, held: int = 0, trains: bool = False, plan: MemoryPlan = PLAN, disk: float = 1e15) -> Room:
    found = None if free is None else Free(free, 32 * 10**9, "this machine")
    return Room(plan, trains=trains, held=lambda: held, free=lambda: found, disk=lambda: disk)


def one_line(text: str) -> str:
    return " ".join(text.split())


def test_need_is_a_sum_by_parameters_and_settings() -> None:
    assert NEED.total == sum(NEED) and NEED.private == NEED.total - NEED.shared
    assert NEED.total - PLAN.need(MANY - 10**6).total == 10**6 * (SHARED + VECTORS)
    assert NEED.total <= 16 * MANY + 0.7e9
    assert PLAN.on_disk(MANY) == (FROZEN + GIVEN + MOMENTS) * MANY
    assert MemoryPlan(moments=False).on_disk(MANY) == RESYNC * MANY
    small = PLAN.need(10_000)
    assert 0.08e9 < small.total < 0.2e9, "a daemon without a model takes that much"


def attaching(room: Room) -> bool:
    return room.shortage(MANY, 0, attaches=True) is None


def allocating(room: Room) -> bool:
    return room.shortage(MANY, 0, attaches=False) is None


@pytest.mark.parametrize(
    ("fits", "trains", "need"),
    [(attaching, False, NEED.total), (attaching, True, NEED.total), (allocating, True, NEED.total),
     (allocating, False, NEED.private)],
)  # fmt: skip
def test_a_model_fits_if_all_that_is_still_to_come_is_free_but_for_a_few_percent(
    fits: Callable[[Room], bool], trains: bool, need: int
) -> None:
    assert fits(room(need, trains=trains)) and fits(room(round(0.971 * need), trains=trains))
    assert not fits(room(round(0.969 * need), trains=trains))
    assert fits(room(need - 5 * 10**9, held=5 * 10**9, trains=trains)), "what this daemon holds is there already"
    assert fits(room(None, trains=trains)), "where free memory is not known, the peer goes on"


def test_shared_memory_that_exists_is_not_needed_again() -> None:
    held = NEED.private
    assert room(0, held=held).shortage(MANY, NEED.shared, attaches=True) is None
    assert room(0, held=held).shortage(MANY, NEED.shared // 2, attaches=True) is not None
    assert room(0, held=2 * held).shortage(MANY, 0, attaches=True) is not None, "the daemon cannot give it"


def test_a_shortage_says_need_and_free_memory_what_holds_it_and_what_saves_some() -> None:
    short = room(10 * 10**9, held=10**9).shortage(MANY, 0, attaches=True)
    assert short is not None
    seen = one_line(short.seen)
    assert max(map(len, short.seen.splitlines())) < 80
    assert f"1,000,000,000 parameters need {NEED.total / 1e9:.2f} GB" in seen
    assert f"shared memory {NEED.shared / 1e9:.2f}, anchor and momentum 8.00, " in seen
    assert f"{(NEED.total - 10**9) / 1e9:.2f} GB more than is held now" in seen
    assert "10.00 GB are free of the 32.00 GB of this machine" in seen
    assert seen.endswith("hold most of the rest: python? (process 4711) 3.00 GB")
    assert "moments" not in short.do + short.seen and short.do.startswith("free memory")


def test_what_the_disk_has_no_room_for_counts_as_memory() -> None:
    assert PLAN.need(MANY, disk=1e9) == NEED._replace(unspilled=7 * MANY)
    fitting = room(NEED.total, disk=8e9)
    assert attaching(fitting) and not attaching(room(NEED.total, disk=6e9))
    short = room(NEED.total, disk=1e9).shortage(MANY, 0, attaches=True)
    assert short is not None and "copies and moments that the disk has no room for 7.00" in one_line(short.seen)
    assert short.do.startswith(
        "free disk space in `[checkpoint] dir` saves 7.00 GB, `[exchange] moments = false` saves 4.00 GB; free memory"
    )
    bare = room(0, plan=MemoryPlan(moments=False), disk=1e9).shortage(MANY, 0, attaches=True)
    assert bare is not None and bare.do.startswith("free disk space in `[checkpoint] dir` saves 3.00 GB; free memory")


def test_a_daemon_that_cannot_take_a_model_raises() -> None:
    room(NEED.total).require(MANY)
    with pytest.raises(HardwareError, match="GD-502 the model does not fit") as caught:
        room(10**9).require(MANY)
    assert "1.00 GB are free" in one_line(caught.value.seen) and "a host with more" in caught.value.do
