"""The compute thread: order, results, errors, and the bound on what is inside."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable
from typing import Any

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
