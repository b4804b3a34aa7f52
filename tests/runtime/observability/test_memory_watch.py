"""The daemon's warnings about its own memory."""

import mmap

import psutil

from gossipdp.runtime.free_memory import own
from gossipdp.runtime.memory_need import MemoryPlan
from gossipdp.runtime.observability.memory_watch import KEPT, SPARE, MemoryWatch


def test_memory_past_the_bounds__told_once_and_at_each_doubling__and_not_for_swings_around_them() -> None:
    held = [0]
    watch = MemoryWatch(MemoryPlan(), 1 << 30, lambda: held[0])
    bound = KEPT + SPARE * MemoryPlan().need(10**6, disk=0.0).private + (1 << 30)
    told = []
    for times in (0.5, 1.0, 1.1, 1.1, 1.9, 2.1, 2.2, 9.0, 9.1, 0.9, 1.1, 0.7, 1.1):
        held[0] = int(times * bound)
        told.append(bool(watch.look(10**6)))
    assert told == [False, False, True, False, False, True, False, True, False, False, False, False, True]
    held[0] = 8 * bound
    assert watch.look(10**6).startswith(f"this daemon holds {8 * bound / 1e9:.1f} GB of memory, but its bounds add")


def test_own_memory__without_shared_memory() -> None:
    before = own()
    with mmap.mmap(-1, 64 << 20) as shared:  # like the link's region: in memory, and shared
        shared.write(bytes(64 << 20))
        assert psutil.Process().memory_info().rss > 64 << 20
        assert own() - before < 32 << 20
