"""What the baselines share: the cost of communication, random partners, and vectors after compression.

A function that moves bytes adds them to what the peers received, and returns the seconds. The method adds these to the
clock, or overlaps them with its steps if its paper does. A transfer that fails does so at its end, so its seconds and
bytes are spent. This module changes no parameter and holds no method.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peers.plan.clock import FLOAT, tries
from simulations.lab.compressors.compressor import Compressor
from simulations.lab.compressors.error_feedback import ErrorFeedback
from simulations.lab.core import Lab

__all__ = [
    "Averaged",
    "all_gather",
    "compressed",
    "compressed_with_feedback",
    "matching",
    "meet",
    "model_bytes",
    "neighbours",
    "phases",
]


class Averaged:
    """A method whose model is the mean of the replicas. It needs no preparation."""

    def begin(self, lab: Lab) -> None:
        pass

    def model(self, lab: Lab) -> Tensor:
        return lab.mean


def model_bytes(lab: Lab) -> float:
    """Bytes of all parameters in fp32."""
    return FLOAT * lab.problem.parameters


def phases(lab: Lab, local: bool) -> tuple[int, int]:
    """Exchanges of a round and the steps before each: H and 1, or 1 and H with local steps."""
    return (1, lab.setting.every) if local else (lab.setting.every, 1)


def all_gather(lab: Lab, sizes: NDArray[np.float64]) -> float:
    """Seconds of an all-gather of payloads of `sizes` bytes, shape (N,), each sent to all other peers at once.

    The payloads arrive over the receiver's link one after another. The peer that receives most determines the seconds.
    A failed all-gather is repeated whole.
    """
    made, received = tries(lab), sizes.sum() - sizes
    lab.receive(made * received)
    return made * lab.setting.link.seconds(float(received.max()), min(1, lab.peers - 1))


def neighbours(lab: Lab, sizes: NDArray[np.float64]) -> float:
    """Seconds of messages from neighbours, `sizes` bytes, shape (N, degree), all at once over the receiver's link.

    A peer requests lost messages again. The peer that waits longest determines the seconds.
    """
    if not sizes.size:
        return 0.0
    asked = lab.random.geometric(1.0 - lab.setting.failing, sizes.shape)
    received = (asked * sizes).sum(1)
    lab.receive(received)
    return lab.setting.link.seconds(float(received.max()), int(asked.max()))


def matching(lab: Lab) -> NDArray[np.int64]:
    """A random matching: the partner of each peer, shape (N,). If N is odd, one peer is its own partner."""
    partner = np.arange(lab.peers)
    shuffled = lab.random.permutation(lab.peers)
    half = lab.peers // 2
    partner[shuffled[:half]], partner[shuffled[half : 2 * half]] = shuffled[half : 2 * half], shuffled[:half]
    return partner


def meet(lab: Lab, size: float) -> tuple[Tensor, float]:
    """A random matching in which each peer receives `size` bytes from its partner.

    Returns:
        The partner of each peer, shape (N,), and the seconds. Both sides of a failed exchange are their own partners.
    """
    partner, own = matching(lab), np.arange(lab.peers)
    lab.receive(size * (partner != own))
    lost = lab.random.random(lab.peers) < lab.setting.failing
    met = np.where(lost[np.minimum(own, partner)], own, partner)
    return torch.from_numpy(met), lab.setting.link.seconds(size) if lab.peers > 1 else 0.0


def compressed(lab: Lab, compressor: Compressor, rows: Tensor) -> tuple[Tensor, NDArray[np.float64]]:
    """Compress each row.

    Returns:
        The rows as the receivers decode them, shape as `rows`, and the bytes of each payload, shape (rows,).
    """
    return compressed_with_feedback(lab, [ErrorFeedback(compressor) for _ in rows], rows)


def compressed_with_feedback(
    lab: Lab, senders: Sequence[ErrorFeedback], rows: Tensor
) -> tuple[Tensor, NDArray[np.float64]]:
    """Compress each row plus what its sender held back before. A diverged row becomes NaN."""
    taken, sizes = torch.full_like(rows, torch.nan), np.zeros(len(rows))
    for place, (sender, row) in enumerate(zip(senders, rows, strict=True)):
        seed = int(lab.random.integers(1 << 63))
        if row.isfinite().all():
            payload, sent = sender.compress(row.numpy(), seed=seed)
            sizes[place] = memoryview(payload).nbytes
            taken[place] = torch.from_numpy(sent)
    return taken, sizes
