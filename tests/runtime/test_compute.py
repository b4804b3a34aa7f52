"""Compute threads, one or several: order, results, errors, work that runs alone, and the bound on what is inside."""

import select
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gossipdp.runtime.compute import Compute, Finished


def collect(compute: Compute, count: int) -> list[Finished]:
    finished: list[Finished] = []
    poll = select.poll()
    poll.register(compute, select.POLLIN)
    while len(finished) < count:
        assert poll.poll(5000), f"only {len(finished)} of {count} finished in 5 s"
        finished += compute.collect()
    return finished


def call(work: Callable[[], Any]) -> Any:
    return work()


def test_results_come_in_the_order_of_submission() -> None:
    compute = Compute(lambda number: sum(range(number)))
    numbers = [100_000, 1, 50_000, 2]
    for number in numbers:
        compute.submit(number)
    assert [(done.work, done.result) for done in collect(compute, 4)] == [(n, sum(range(n))) for n in numbers]
    compute.close()


def test_all_work_runs_on_one_thread_that_is_not_the_caller() -> None:
    compute = Compute(lambda _: threading.get_ident())
    for number in range(5):
        compute.submit(number)
    threads = {done.result for done in collect(compute, 5)}
    assert len(threads) == 1 and threading.get_ident() not in threads
    compute.close()


def test_exception_is_a_result_and_the_thread_goes_on() -> None:
    compute = Compute(lambda number: 1 // number)
    for number in (1, 0, 1):
        compute.submit(number)
    first, second, third = collect(compute, 3)
    assert (first.result, third.result) == (1, 1)
    assert isinstance(second.error, ZeroDivisionError)
    compute.close()


def test_work_past_the_limit_waits_outside_in_order() -> None:
    gate, started = threading.Event(), []

    def work(number: int) -> int:
        started.append(number)
        gate.wait()
        return number

    compute = Compute(work, limit=2)
    for number in range(6):
        compute.submit(number)
    assert compute.waiting == 6
    gate.set()
    assert [done.result for done in collect(compute, 6)] == started == list(range(6))
    assert compute.waiting == 0
    compute.close()


def test_collect_without_finished_work__empty_and_does_not_wait() -> None:
    compute = Compute(call)
    assert compute.collect() == []
    compute.close()


def test_places_run_at_once_and_each_on_one_thread() -> None:
    together = threading.Barrier(3)

    def work(place: int) -> int:
        together.wait()
        return threading.get_ident()

    compute = Compute(work, workers=3)
    for place in (0, 1, 2, 3, 4, 5):
        compute.submit(place, place)
    threads = [done.result for done in collect(compute, 6)]
    assert threads[:3] == threads[3:] and len(set(threads)) == 3
    compute.close()


def test_results_come_in_the_order_of_submission_whichever_is_done_first() -> None:
    second = threading.Event()

    def first() -> str:
        second.wait()
        return "first"

    compute = Compute(call, workers=2)
    compute.submit(first, 0)
    compute.submit(lambda: second.set() or "second", 1)
    second.wait()
    assert compute.waiting == 2, "what is done and not reported still counts"
    assert [done.result for done in collect(compute, 2)] == ["first", "second"]
    assert compute.waiting == 0
    compute.close()


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_work_without_a_place_runs_alone_between_what_was_before_and_after(workers: int) -> None:
    running, seen, lock = set[str](), list[tuple[str, frozenset[str]]](), threading.Lock()

    def work(name: str) -> str:
        with lock:
            running.add(name)
            seen.append((name, frozenset(running)))
        time.sleep(0)
        with lock:
            running.discard(name)
        return name

    compute, asked = Compute(work, workers=workers, limit=5), []
    for number in range(60):
        name, place = (f"all {number}", None) if number % 7 in (3, 4) else (f"chunk {number}", number * number)
        asked.append(name)
        compute.submit(name, place)
    assert [done.result for done in collect(compute, 60)] == asked
    began = [name for name, _ in seen]
    for at, name in enumerate(asked):
        if name.startswith("all"):
            assert dict(seen)[name] == {name}
            assert set(began[:at]) == set(asked[:at])
    compute.close()


def test_work_behind_one_that_runs_alone_waits_outside() -> None:
    gate, ran = threading.Event(), list[str]()

    def alone() -> None:
        gate.wait()
        ran.append("alone")

    compute = Compute(call, workers=2)
    compute.submit(alone)
    compute.submit(lambda: ran.append("after"), 1)
    assert compute.waiting == 2 and ran == []
    gate.set()
    collect(compute, 2)
    assert ran == ["alone", "after"]
    compute.close()


def test_exception_is_reported_in_its_turn_and_its_worker_goes_on() -> None:
    compute = Compute(lambda number: 1 // number, workers=2)
    for place, number in enumerate((1, 0, 1, 1)):
        compute.submit(number, place)
    one, failed, *others = collect(compute, 4)
    assert one.result == 1 and isinstance(failed.error, ZeroDivisionError)
    assert [done.result for done in others] == [1, 1]
    compute.close()


def test_system_shows_the_threads_by_name() -> None:
    compute = Compute(lambda _: Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text(), name="vectors")
    compute.submit(0, 0)
    assert collect(compute, 1)[0].result == "vectors\n"
    compute.close()


def test_close_ends_every_thread_and_drops_what_waits_outside() -> None:
    before, ran = threading.active_count(), list[int]()
    compute = Compute(ran.append, workers=3)
    assert threading.active_count() == before + 3
    compute.submit(1, 1)
    compute.submit(2)
    compute.submit(3)
    compute.close()
    assert threading.active_count() == before and ran == [1]
