"""Bytes of memory that a peer takes for a model at its peak, from the number of parameters and the settings.

Pinned memory is the shared memory, so it is counted once. Copies for joiners, moments and what undoes a re-sync are on
disk (`runtime/storage/spill.py`). They count for memory as far as the disk has no room. Not counted: the training
process's own tensors, messages that wait to be sent or read (`[safety] memory`), and state that is carried beside the
model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from gossipdp.protocol.schema import chunk_parameters

__all__ = ["MemoryPlan", "Need"]

VECTORS: Final = 8
"""bytes a parameter: anchor and momentum, in fp32"""
SHARED: Final = 2 * 4
"""the buffers shared with the training process, in fp32"""
MOMENTS: Final = 4
"""two encoded moments, and two that replace them"""
FROZEN: Final = 2
"""the copy in bf16 that joiners fetch. A peer that re-syncs begins none"""
GIVEN: Final = 2
"""encoded moments that joiners fetch, while newer ones are held"""
RESYNC: Final = 4
"""what a re-sync has changed, until it is accepted"""
PROCESS: Final = 90 * 10**6
"""the interpreter, compiled kernels, buffers of sockets"""
OPEN: Final = 10
"""bytes a parameter of each chunk of an exchange in flight: copy or differences, and codes at 16 bits each way"""
TEMPORARY: Final = 110
"""bytes a parameter of one chunk: temporaries of jobs, received frames, and what malloc keeps of them"""
WORKER: Final = 30
"""bytes a parameter of one chunk: temporaries on each compute thread but the first"""


class Need(NamedTuple):
    """Bytes by use."""

    shared: int
    """shared with the training process"""
    vectors: int
    unspilled: int
    """copies and moments for which the disk has no room"""
    working: int

    @property
    def private(self) -> int:
        """What the daemon takes beside the shared memory."""
        return self.total - self.shared

    @property
    def total(self) -> int:
        return sum(self)

    def __str__(self) -> str:
        uses = {
            "shared memory": self.shared,
            "anchor and momentum": self.vectors,
            "copies and moments that the disk has no room for": self.unspilled,
            "working memory": self.working,
        }
        return ", ".join(f"{use} {size / 1e9:.2f}" for use, size in uses.items() if size)


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """The settings on which the need depends.

    Args:
        moments: the daemon keeps the optimizer's moments.
        window: chunks of one exchange in flight.
        workers: compute threads.
    """

    moments: bool = True
    window: int = 8
    workers: int = 1

    def on_disk(self, parameters: int) -> int:
        """Bytes of disk at the peak, beside the checkpoints."""
        return (max(FROZEN + GIVEN * self.moments, RESYNC) + MOMENTS * self.moments) * parameters

    def need(self, parameters: int, disk: float = math.inf) -> Need:
        """Bytes of memory at the peak.

        Args:
            parameters: of the model, padding and buffers included.
            disk: bytes for which the disk has room.
        """
        chunk = TEMPORARY + OPEN * self.window + WORKER * (self.workers - 1)
        return Need(
            shared=SHARED * parameters,
            vectors=VECTORS * parameters,
            unspilled=int(max(0.0, self.on_disk(parameters) - disk)),
            working=PROCESS + chunk * chunk_parameters(parameters),
        )

    def saving(self, parameters: int, disk: float = math.inf) -> str:
        """What on this host alone saves memory, and how much; "" if there is nothing left. Arguments as of `need`."""
        unspilled = self.need(parameters, disk).unspilled
        saved = unspilled - replace(self, moments=False).need(parameters, disk).unspilled
        ways = [f"free disk space in `[checkpoint] dir` saves {unspilled / 1e9:.2f} GB"] if unspilled else []
        ways += [f"`[exchange] moments = false` saves {saved / 1e9:.2f} GB"] if saved else []
        return ", ".join(ways)
