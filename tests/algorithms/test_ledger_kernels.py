"""The ledger's kernels against numpy, operation by operation: every bit of a, v and pending."""

from typing import Any

import numpy as np
import pytest

from gossipdp.algorithms import kernels
from gossipdp.algorithms.ledger import LARGEST, Ledger, Step, block_max
from gossipdp.protocol import jobs

SIZE, TRAINABLE, WIDTH = 2900, 2048, 1024


def stepped_by_numpy(ledger: Ledger, chunk: int, lr: float, momentum: float, applied: int) -> Step:
    """The outer step of `Ledger.outer_step`, one numpy operation for each of its equations."""
    assert ledger.x is not None
    span = ledger.span(chunk)
    x_now = ledger.x[span] + ledger.outstanding(chunk, applied)
    d = ledger.a[span] - x_now
    if ledger.averaged(chunk) or (lr == 1.0 and momentum == 0.0):
        ledger.v[span] = 0.0
        correction = np.zeros_like(d)
    else:
        alpha, mu = np.float32(lr), np.float32(momentum)
        v, correction = ledger.v[span], d * (np.float32(1.0) - alpha)
        if momentum:
            v *= mu
            v += d
            correction -= (alpha * mu) * v
        else:
            v[:] = 0.0
    if correction.any():
        pending = ledger.pending(chunk)
        pending += correction
        x_now += correction
    m = x_now - ledger.a[span]
    ledger.a[span] = x_now
    maxima = np.maximum.reduceat(np.abs(m), np.arange(0, len(m), 256))
    return Step(float(np.sum(d.astype(np.float64) ** 2)), float(np.sum(m.astype(np.float64) ** 2)), maxima, 0.0)


def ledger(seed: int) -> Ledger:
    """A ledger with values everywhere, a slot under way, and NaN where memory may hold anything."""
    rng = np.random.default_rng(seed)
    made = Ledger(SIZE, TRAINABLE, WIDTH)
    made.a[:], made.v[:] = rng.standard_normal((2, SIZE))
    x = (made.a + 0.01 * rng.standard_normal(SIZE)).astype(np.float32)
    x[:40], made.a[:20] = -0.0, 0.0
    x[300:320] = made.a[300:320]
    made.bind((x, np.full(SIZE, np.nan, np.float32)))
    if seed % 2:
        pending = made.pending(0)
        pending += rng.standard_normal(WIDTH).astype(np.float32) * np.float32(0.1)
    return made


def state(of: Ledger) -> list[bytes]:
    return [of.a.tobytes(), of.v.tobytes(), *(of.outstanding(chunk, 0).tobytes() for chunk in range(of.chunks))]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("lr", "momentum"), [(0.7, 0.7), (0.7, 0.0), (1.0, 0.0), (1.0, 0.5), (0.0, 0.0)])
@pytest.mark.parametrize("applied", [0, 1])
def test_outer_step_has_the_bits_of_numpy(seed: int, lr: float, momentum: float, applied: int) -> None:
    ours, theirs = ledger(seed), ledger(seed)
    for chunk in range(ours.chunks):
        step, expected = (
            ours.outer_step(chunk, lr, momentum, applied),
            stepped_by_numpy(theirs, chunk, lr, momentum, applied),
        )
        assert step[:2] == pytest.approx(expected[:2], rel=1e-12)
        assert step.largest.tobytes() == expected.largest.tobytes()
    assert state(ours) == state(theirs)
    assert ours.seal() == theirs.seal()


def test_snapshot_beside_two_slots_that_it_lacks__both_count() -> None:
    """Slot 1 is sealed and not drained when a slower process's snapshot of slot 0 arrives."""
    ours, theirs = ledger(1), ledger(1)
    for each in (ours, theirs):
        assert each.seal() == jobs.Sealed(1, (0,))
        each.pending(0)[:] += np.float32(0.25)
        each.outer_step(0, 0.7, 0.7, 0) if each is ours else stepped_by_numpy(each, 0, 0.7, 0.7, 0)
    assert state(ours) == state(theirs)


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf, 2.0**101, -(2.0**101)])
@pytest.mark.parametrize("at", [0, 255, 1500, 2047])
def test_one_value_that_is_not_finite_or_too_large_is_found(bad: float, at: int) -> None:
    made = ledger(0)
    assert made.x is not None and all(made.check(chunk) for chunk in range(made.chunks))
    made.x[5] = LARGEST
    assert made.check(0)
    made.x[at] = bad
    assert [made.check(chunk) for chunk in range(made.chunks)].count(False) == 1 and not made.check(at // WIDTH)


def test_block_maxima_are_those_of_numpy_also_of_a_short_block() -> None:
    values = np.random.default_rng(3).standard_normal(700, dtype=np.float32)
    assert (block_max(values) == np.maximum.reduceat(np.abs(values), [0, 256, 512])).all()


def test_bfloat16_rounds_to_nearest_and_ties_to_even() -> None:
    bits = np.random.default_rng(4).integers(0, 0x7F7F_0000, 4096, np.uint32) | np.uint32(0x8000_0000)
    bits[:4] = 0x3F80_8000, 0x3F81_8000, 0x3F80_8001, 0
    out = np.empty(4096, np.uint16)
    kernels.to_bfloat16(bits.view(np.float32), out)
    assert out[:4].tolist() == [0x3F80, 0x3F82, 0x3F81, 0]
    exact = bits.view(np.float32).astype(np.float64)
    chosen, below, above = (((out.astype(np.int64) + step) << 16).astype(np.uint32) for step in (0, -1, 1))
    error = np.abs(chosen.view(np.float32) - exact)
    for other in (below, above):
        assert (error[4:] <= np.abs(other.view(np.float32) - exact)[4:]).all()


def test_warm_up_compiles_all_that_a_ledger_calls() -> None:
    kernels.warm_up()
    names = ("largest", "block_maxima", "to_bfloat16", "outer_step")
    compiled: dict[str, Any] = {name: getattr(kernels, name) for name in names}
    before = {name: len(kernel.signatures) for name, kernel in compiled.items()}
    made = ledger(1)
    for applied in (0, 1):
        made.outer_step(0, 0.7, 0.7, applied)
        made.outer_step(2, 0.7, 0.7, applied)
    frozen = made.freeze(0)
    assert made.check(0) and made.adopt(0, bytes(frozen.payload), frozen.hash) and made.found(1)
    made.compare(jobs.Compare(((0, 0, 4),), 4, bytes(16)))
    block_max(made.a[:300])
    assert {name: len(kernel.signatures) for name, kernel in compiled.items()} == before
