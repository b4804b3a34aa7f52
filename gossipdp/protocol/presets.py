"""Times of all state machines of a peer, preset by the kind of network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gossipdp.protocol.membership import config as membership
from gossipdp.protocol.membership.config import MembershipConfig
from gossipdp.protocol.pairwise.exchange import Deadlines
from gossipdp.protocol.pairwise.matching import MatchingConfig
from gossipdp.protocol.transfer.source import TransferConfig

__all__ = ["LAN", "LOCAL", "PRESETS", "SIMULATED", "SIMULATED_LINK", "WAN", "TimingPreset"]


@dataclass(frozen=True, kw_only=True)
class TimingPreset:
    """The times of one kind of network, in seconds, for every state machine of a peer."""

    membership: MembershipConfig = membership.LAN
    deadlines: Deadlines = field(default_factory=Deadlines)
    """of one exchange"""
    matching: MatchingConfig = field(default_factory=MatchingConfig)
    transfer: TransferConfig = field(default_factory=TransferConfig)
    resume_after: float = 30.0
    """see `PeerConfig`"""


LOCAL: Final = TimingPreset(
    membership=membership.LOCAL,
    deadlines=Deadlines(ask=0.5, silence=4.0, doubt=1.0),
    matching=MatchingConfig(answer=0.5, pause=0.02, longest_pause=0.5),
    transfer=TransferConfig(manifest=10.0, chunk=1.0, silence=4.0, witness=2.0),
    resume_after=10.0,
)
"""One machine."""
LAN: Final = TimingPreset(
    deadlines=Deadlines(ask=1.0, silence=10.0, doubt=3.0),
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
