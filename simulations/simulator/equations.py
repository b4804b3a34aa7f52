"""The equations of algorithms section 1 in fp64, to compare the daemon's fp32 vectors with."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gossipdp.codecs.blocks import Blocks
from gossipdp.protocol import jobs
from simulations.simulator.host import Host

__all__ = ["RELATIVE", "Grid", "check_close", "grid_of", "outer_step", "rms", "same"]

RELATIVE = 1e-5
"""relative error allowed to fp32 vectors"""


class Grid(NamedTuple):
    """The grid of a modulo codec on one chunk."""

    step: NDArray[np.float64]
    """distance of two points, for each block"""
    bits: int
    blocks: Blocks


def pseudo_gradient(host: Host, job: jobs.OuterStep, a: NDArray[np.float32]) -> NDArray[np.float64]:
    """D of the job's chunk before the outer step. a: its anchor."""
    ledger = host.algorithm.ledger
    assert ledger.x is not None
    span = ledger.span(job.chunk)
    d: NDArray[np.float64] = a - (ledger.x[span].astype(np.float64) + ledger.outstanding(job.chunk, job.applied))
    return d


def outer_step(
    host: Host, job: jobs.OuterStep, gain: float, a: NDArray[np.float32], v: NDArray[np.float32], d: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The anchor of the job's chunk after the outer step.

    Args:
        gain: what the job measured.
        a, v, d: anchor, momentum and D of the chunk before it.
    """
    ledger, momentum = host.algorithm.ledger, job.momentum * max(0.0, 1.0 - 2.0 * gain)
    span = ledger.span(job.chunk)
    movement = -job.lr * (d + momentum * (momentum * v + d))
    buffers = slice(max(0, ledger.trainable - span.start), None)
    movement[buffers] = -d[buffers]
    wanted: NDArray[np.float64] = a + movement
    return wanted


def grid_of(host: Host, key: jobs.ChunkKey) -> Grid | None:
    """The grid of the chunk's codec; None for a codec without one."""
    opened = host.algorithm._open.get(key)
    side: Any = None if opened is None else opened.side
    step = getattr(side, "_step", None)
    return None if step is None else Grid(step, side._codec.bits, side._layout)


def same(one: NDArray[np.float32], other: NDArray[np.float32]) -> bool:
    return bool((one == other).all())


def rms(values: NDArray[Any]) -> float:
    """Root mean square."""
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))


def check_close(found: NDArray[Any], wanted: NDArray[np.float64], what: str) -> None:
    """Raises AssertionError if `found` is off by more than `RELATIVE`."""
    worst = float(np.abs(found - wanted).max())
    assert worst <= RELATIVE * (1.0 + float(np.abs(wanted).max())), f"{what} is off by {worst}"
