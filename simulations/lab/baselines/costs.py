"""What communicating costs, who meets whom, and how vectors pass through a codec: what the baselines share.

Each function that moves bytes puts them on the peers' account and gives the seconds; the method adds these to the
clock, or hides them behind its computing if its paper does. A transfer that fails does so at its end: its seconds and
its bytes are spent. Nothing here changes a parameter, and no method may stand here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossipdp.codecs.increments.compressor import Compressor
from gossipdp.codecs.increments.error_feedback import ErrorFeedback
from simulations.lab.core import Lab

__all__ = [
    "FLOAT",
    "Averaged",
    "all_gather",
    "all_reduce",
    "compressed",
    "compressed_with_feedback",
    "compute_seconds",
    "matching",
    "meet",
    "model_bytes",
    "neighbours",
    "own_pace",
    "phases",
]

FLOAT: Final = 4.0
"""bytes of one parameter in fp32"""


class Averaged:
    """A method whose model is the mean of the replicas, and which has nothing to prepare."""

    def begin(self, lab: Lab) -> None:
        pass

    def model(self, lab: Lab) -> Tensor:
        return lab.mean


def model_bytes(lab: Lab) -> float:
    """Of all parameters in fp32."""
    return FLOAT * lab.problem.parameters


def compute_seconds(lab: Lab, steps: int = 1) -> float:
    """Seconds until the slowest peer has made so many steps: what all wait for who make equally many."""
    return steps * lab.setting.step_seconds / float(lab.setting.all_speeds.min())


def own_pace(lab: Lab, every: int | None = None) -> NDArray[np.int64]:
    """Steps each peer makes while one of speed 1 makes `every`, or H."""
    steps = lab.setting.every if every is None else every
    return np.maximum(1, np.rint(steps * lab.setting.all_speeds)).astype(np.int64)


def phases(lab: Lab, local: bool) -> tuple[int, int]:
    """Exchanges of a round, and the steps before each: H and 1, or with local steps 1 and H."""
    return (1, lab.setting.every) if local else (lab.setting.every, 1)


def all_reduce(lab: Lab, size: float, turns: int | None = None) -> float:
    """All-reduce of `size` bytes a peer: seconds.

    Each peer receives 2 (1 - 1/N) size, which is the least (Patarasuk & Yuan 2009). A ring does it in 2 (N - 1) turns,
    which nobody has time for on the internet; recursive halving and doubling in 2 ceil(log2 N) (Thakur et al. 2005),
    which is what is taken here. Two `turns` if each sends every other its part at once. One that fails is repeated
    whole.
    """
    count, tries = lab.peers, _tries(lab)
    share = 2.0 * (1.0 - 1.0 / count) * size
    lab.receive(tries * share)
    least = 2 * (count - 1).bit_length()
    return tries * lab.setting.link.seconds(share, least if turns is None else min(turns, least))


def all_gather(lab: Lab, sizes: NDArray[np.float64]) -> float:
    """All-gather of payloads, shape (N,), bytes, each sent to all others at once: seconds.

    Each peer receives those of all others, over its link one after another; it lasts as long as for the one that
    receives most. One that fails is repeated whole.
    """
    tries, received = _tries(lab), sizes.sum() - sizes
    lab.receive(tries * received)
    return tries * lab.setting.link.seconds(float(received.max()), min(1, lab.peers - 1))


def neighbours(lab: Lab, sizes: NDArray[np.float64]) -> float:
    """Messages from neighbours, shape (N, degree), bytes, all at once over the receiver's link: seconds.

    Who waits for its neighbours asks again for what was lost: the step lasts as long as for the unluckiest.
    """
    if not sizes.size:
        return 0.0
    tries = lab.random.geometric(1.0 - lab.setting.failing, sizes.shape)
    received = (tries * sizes).sum(1)
    lab.receive(received)
    return lab.setting.link.seconds(float(received.max()), int(tries.max()))


def _tries(lab: Lab) -> int:
    return int(lab.random.geometric(1.0 - lab.setting.failing))


def matching(lab: Lab) -> NDArray[np.int64]:
    """A random matching: the partner of each peer, shape (N,). Of an odd number one is alone, its own partner."""
    partner = np.arange(lab.peers)
    shuffled = lab.random.permutation(lab.peers)
    half = lab.peers // 2
    partner[shuffled[:half]], partner[shuffled[half : 2 * half]] = shuffled[half : 2 * half], shuffled[:half]
    return partner


def meet(lab: Lab, size: float) -> tuple[Tensor, float]:
    """A random matching in which each peer receives `size` bytes from its partner: (whom each met, seconds).

    Both sides of an exchange that came to nothing met themselves.
    """
    partner, own = matching(lab), np.arange(lab.peers)
    lab.receive(size * (partner != own))
    lost = lab.random.random(lab.peers) < lab.setting.failing
    met = np.where(lost[np.minimum(own, partner)], own, partner)
    return torch.from_numpy(met), lab.setting.link.seconds(size) if lab.peers > 1 else 0.0


def compressed(lab: Lab, compressor: Compressor, rows: Tensor) -> tuple[Tensor, NDArray[np.float64]]:
    """Each row as its receivers take it, shape as `rows`, and the bytes of each payload, shape (rows,)."""
    return compressed_with_feedback(lab, [ErrorFeedback(compressor) for _ in rows], rows)


def compressed_with_feedback(
    lab: Lab, senders: Sequence[ErrorFeedback], rows: Tensor
) -> tuple[Tensor, NDArray[np.float64]]:
    """The same, each row with what its sender could not send before. Who has diverged sends NaN: no codec would."""
    taken, sizes = torch.full_like(rows, torch.nan), np.zeros(len(rows))
    for place, (sender, row) in enumerate(zip(senders, rows, strict=True)):
        seed = int(lab.random.integers(1 << 63))
        if row.isfinite().all():
            payload, sent = sender.compress(row.numpy(), seed=seed)
            sizes[place] = memoryview(payload).nbytes
            taken[place] = torch.from_numpy(sent)
    return taken, sizes
