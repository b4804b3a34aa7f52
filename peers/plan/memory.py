"""Bytes of memory on a host that each way takes beside the model, its gradients and its optimizer.

Gossip's are those of the daemon, as it counts them itself. For the others each line of `KEPT` has what the method's
equations keep, in the model's fp32 parameters; implementations may keep more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gossipdp.codecs.base import BLOCK
from gossipdp.runtime.memory_need import MemoryPlan
from peers.plan.clock import DDP, DILOCO, FOUR_BITS, GOSSIP, LOCAL_SGD, OVERLAPPED

__all__ = ["memory"]

COPY: Final = 4.0
"""one fp32 vector, bytes a parameter"""
CODES: Final = 0.5 + 2.0 / BLOCK
"""a vector in 4 bits, with a bf16 scale a block"""
KEPT: Final[Mapping[str, float]] = {
    DILOCO: 3 * COPY,
    FOUR_BITS: 3 * COPY + 2 * CODES,
    # The snapshot waits for the mean. The difference goes straight to codes.
    OVERLAPPED: 3 * COPY + 2 * CODES,
    LOCAL_SGD: COPY,
    DDP: COPY,
}
"""bytes a parameter: DiLoCo's theta, v and Delta; DDP's buckets (torch keeps them unless gradient_as_bucket_view)"""


def memory(way: str, parameters: int, window: int) -> float:
    """Bytes on a host.

    Args:
        way: a title of `WAYS`.
        window: chunks of an exchange in flight.
    """
    if way == GOSSIP:
        return float(MemoryPlan(window=window).need(parameters).total)
    return KEPT[way] * parameters
