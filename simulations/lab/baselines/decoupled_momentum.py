"""DeMo: a synchronous baseline that sends the largest coefficients of its momentum under a cosine transform.

No other method is in this file, because its kept answers would then depend on the DCT codec.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from peers.plan.clock import compute_seconds
from simulations.lab.baselines.costs import Averaged, all_gather, compressed_with_feedback
from simulations.lab.compressors.dct import DCT
from simulations.lab.compressors.error_feedback import ErrorFeedback
from simulations.lab.core import Lab

__all__ = ["DeMo"]


@dataclass
class DeMo(Averaged):
    """DeMo, decoupled momentum (Peng et al. 2024, arXiv 2411.19870): peers exchange the fast part of the momentum.

        m_i <- beta m_i + lr g_i        q_i = Q(m_i): the largest DCT coefficients of each chunk
        m_i <- m_i - q_i                theta <- theta - lr sign(sum_i q_i)        every step

    It replaces the inner optimizer of the setting. Coefficients travel in the codec's two levels and are summed. The
    authors' code sends them in full and averages each over its senders. Chunks are 64 x 64 of the flat vector. The
    authors' are tiles of each matrix, mostly with 32 coefficients.

    Bytes: an all-gather of the payloads each step. Seconds: every step waits for it, because it needs the complete
    gradient.
    """

    coefficients: int = 64
    """k, per 4,096 parameters"""
    beta: float = 0.999
    lr: float | None = None
    """peak learning rate; the setting's if None. It has the size of Adam's, because the step has that of a sign"""
    name: str = "demo"
    senders: list[ErrorFeedback] = field(init=False, repr=False)
    """m_i: a momentum that gives up what it sends is error feedback"""

    def begin(self, lab: Lab) -> None:
        self.senders = [ErrorFeedback(DCT(self.coefficients), self.beta) for _ in range(lab.peers)]

    def round(self, lab: Lab) -> None:
        setting = lab.setting
        for _ in range(setting.every):
            lr = lab.lr if self.lr is None else lab.lr / setting.lr * self.lr
            sent, sizes = compressed_with_feedback(lab, self.senders, lr * lab.gradients())
            lab.x.mul_(1.0 - lr * setting.weight_decay).sub_(sent.sum(0).sign(), alpha=lr)
            lab.steps += 1
            lab.advance()
            lab.elapse(compute_seconds(lab) + all_gather(lab, sizes))
