"""What one peer is told at its start: the settings of its machines, and its own."""

from __future__ import annotations

from dataclasses import dataclass, field

from gossipdp.protocol.membership.config import MembershipConfig
from gossipdp.protocol.pairwise.config import AveragingConfig
from gossipdp.protocol.rounds.pacing import PacingConfig
from gossipdp.protocol.strikes import QuarantineConfig
from gossipdp.protocol.transfer.source import TransferConfig

__all__ = ["PeerConfig"]


@dataclass(frozen=True, kw_only=True)
class PeerConfig:
    membership: MembershipConfig
    averaging: AveragingConfig
    settings: bytes
    """digest of what peers must agree on, 16 bytes (`settings_digest`)"""
    keys: tuple[str, ...]
    """the settings in the digest, in its order"""
    transfer: TransferConfig
    quarantine: QuarantineConfig = field(default_factory=QuarantineConfig)
    ahead: int
    """jobs of a pass over all chunks that are asked for at once; more than 1 keeps several compute threads busy"""
    every: int
    """H, inner steps a round, after the warm start, of a peer of the usual speed"""
    lr: float | None
    """alpha; None: the peer chooses it (`usual_step`)"""
    momentum: float | None
    """mu; None: the peer chooses it"""
    warmup_steps: int
    """steps of the network's clock with short rounds, lr 1 and momentum 0"""
    early_steps: int
    """steps of the network's clock with more exchanges a round and less momentum, while the learning rate is high"""
    moments: bool
    """keep the inner optimizer's moments, for this host's next training process and for joiners; fetch them as one"""
    sync: bool
    """training waits for the exchanges of each round"""
    resume_after: float
    """seconds for which a restarted peer looks for the network before it resumes from its own checkpoint, unless all
    remembered members are there before"""
    apart_rounds: int
    """own rounds after which a lost member that trained on is apart. The smaller side then fetches the other's model"""
    finish_wait: float
    """seconds that a peer whose training is over waits for members that train, and then for its partners"""
    finish_follow: bool
    """end the training when a member asks all to finish"""
    leave_within: float = 5.0
    """seconds that the exchange under way may take before this peer says goodbye"""

    @property
    def pacing(self) -> PacingConfig:
        return PacingConfig(
            every=self.every,
            lr=self.lr,
            momentum=self.momentum,
            warmup_steps=self.warmup_steps,
            early_steps=self.early_steps,
            sync=self.sync,
        )
