"""What one peer is told at its start: the settings of its machines, and its own.

Values and their meaning alone; what follows from them is the machines' business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from gossipdp.protocol.epidemic.broadcast import RumoursConfig
from gossipdp.protocol.epidemic.epidemic import SpreadingConfig
from gossipdp.protocol.membership import membership
from gossipdp.protocol.membership.membership import MembershipConfig
from gossipdp.protocol.pairwise.averaging import AveragingConfig
from gossipdp.protocol.pairwise.exchange import Deadlines
from gossipdp.protocol.pairwise.matching import MatchingConfig
from gossipdp.protocol.schema import MOST, MOST_EXACT
from gossipdp.protocol.strikes import QuarantineConfig
from gossipdp.protocol.transfer.source import TransferConfig

__all__ = ["LAN", "LOCAL", "PRESETS", "SIMULATED", "SIMULATED_LINK", "WAN", "PeerConfig", "TimingPreset"]


@dataclass(frozen=True, kw_only=True)
class PeerConfig:
    membership: MembershipConfig
    averaging: AveragingConfig
    transfer: TransferConfig = field(default_factory=TransferConfig)
    spreading: SpreadingConfig = field(default_factory=SpreadingConfig)
    """of epidemic"""
    quarantine: QuarantineConfig = field(default_factory=QuarantineConfig)
    algorithm: Literal["pairwise", "epidemic"] = "pairwise"
    every: int = 50
    """H, inner steps a round, after the warm start, of a peer as fast as most (`speed`)"""
    codec: str = "modulo"
    bits: int = 4
    """of the modulo codec; first rounds use 8, a joiner's first exchange 16"""
    lr: float = 0.7
    """alpha"""
    momentum: float = 0.7
    """mu"""
    kappa: float = 0.3
    """share of the mixing that momentum sees, while it is not 0"""
    warmup_steps: int = 200
    """steps of the network's clock with short rounds, lr 1 and momentum 0"""
    early_steps: int = 1000
    """steps of the network's clock with several exchanges a round, while the learning rate is high"""
    early_exchanges: int = 3
    """at most so many (`phases`)"""
    moments: bool = False
    """keep the inner optimizer's moments, for this host's next training process and for joiners; fetch them as one"""
    sync: bool = False
    """training waits for the exchanges of each round"""
    resume_after: float = 30.0
    """seconds a restarted peer looks for the network before it goes on from its own checkpoint, unless all it remembers
    are there before"""
    apart_rounds: int = 10
    """own rounds after which a member that was lost, and trained on without this peer, is no more averaged with: the
    smaller side fetches the model of the larger"""
    leave_within: float = 5.0
    """seconds for the exchange under way to end before the goodbye is said anyhow"""

    @property
    def most_chunk(self) -> int:
        """Parameters a chunk, at the most."""
        return MOST if self.algorithm == "pairwise" else MOST_EXACT


# -- presets -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TimingPreset:
    """The times of one kind of network, in seconds, for every state machine of a peer."""

    membership: MembershipConfig = membership.LAN
    deadlines: Deadlines = field(default_factory=Deadlines)
    """of one exchange"""
    matching: MatchingConfig = field(default_factory=MatchingConfig)
    transfer: TransferConfig = field(default_factory=TransferConfig)
    rumours: RumoursConfig = field(default_factory=RumoursConfig)
    """of epidemic"""
    resume_after: float = 30.0
    """see `PeerConfig`"""


LOCAL: Final = TimingPreset(
    membership=membership.LOCAL,
    deadlines=Deadlines(ask=0.5, silence=4.0, doubt=1.0),
    matching=MatchingConfig(answer=0.5, pause=0.02, longest_pause=0.5),
    transfer=TransferConfig(manifest=10.0, chunk=1.0, silence=4.0, witness=2.0),
    rumours=RumoursConfig(again=1.0, wait=0.3, patience=1.5, sync=1.0),
    resume_after=10.0,
)
"""One machine."""
LAN: Final = TimingPreset(
    deadlines=Deadlines(ask=1.0, silence=10.0, doubt=3.0),
    rumours=RumoursConfig(again=2.0, wait=0.5, patience=3.0, sync=2.0),
)
"""One site, round trips of milliseconds."""
WAN: Final = TimingPreset(
    membership=membership.WAN,
    deadlines=Deadlines(ask=4.0, silence=30.0, doubt=10.0),
    matching=MatchingConfig(answer=2.0, pause=0.1, longest_pause=4.0),
    transfer=TransferConfig(manifest=60.0, chunk=20.0, silence=60.0, window=16, witness=30.0),
)
"""Separate sites, round trips of up to a second."""
SIMULATED: Final = TimingPreset(
    membership=membership.LOCAL,
    deadlines=Deadlines(ask=0.6, silence=4.0, doubt=1.0),
    matching=MatchingConfig(answer=0.6),
    transfer=TransferConfig(manifest=4.0, chunk=1.5, silence=5.0, window=3, witness=3.0),
    rumours=RumoursConfig(again=1.0, wait=0.5, patience=1.5, sync=1.0),
    resume_after=5.0,
)
"""Simulated networks of many peers. Short times put many timeouts into a short run."""
SIMULATED_LINK: Final = TimingPreset(
    membership=membership.LOCAL,
    deadlines=Deadlines(ask=0.3, silence=2.0, doubt=0.5),
    matching=MatchingConfig(answer=0.3),
    transfer=TransferConfig(manifest=2.0, chunk=0.5, silence=2.0, window=3, witness=1.0),
    resume_after=2.0,
)
"""One simulated link between two peers. Exhaustive campaigns play it thousands of times."""
PRESETS: Final[Mapping[str, TimingPreset]] = {"local": LOCAL, "lan": LAN, "wan": WAN}
"""Values of the operator's setting `[membership] timing`."""
