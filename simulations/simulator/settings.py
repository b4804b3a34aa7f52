"""The product's settings on a simulated host. It has one compute thread and keeps no moments, unless a run says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from gossipdp.algorithms.ledger import Keep, in_memory
from gossipdp.algorithms.pairwise import Pairwise
from gossipdp.config import Compute, Config, Exchange
from gossipdp.protocol.config import PeerConfig
from gossipdp.protocol.membership.config import LOCAL
from gossipdp.protocol.pairwise.config import AveragingConfig
from gossipdp.protocol.presets import TimingPreset
from peers import settings

__all__ = ["HOST", "averaging_config", "pairwise", "peer_config"]

HOST: Final = Config(exchange=Exchange(moments=False), compute=Compute(workers=1))
TIMING: Final = TimingPreset(membership=LOCAL)
"""times, unless a run names a preset"""


def pairwise(keep: Keep = in_memory) -> Pairwise:
    """The arithmetic of averaging. keep: see `Pairwise`."""
    return settings.pairwise(HOST, keep)


def averaging_config(timing: TimingPreset = TIMING, **changes: Any) -> AveragingConfig:
    """The settings of averaging with the times of `timing`, except for `changes`."""
    return replace(settings.peer_config(HOST, timing).averaging, **changes)


def peer_config(timing: TimingPreset = TIMING, **changes: Any) -> PeerConfig:
    """The settings of a peer with the times of `timing`, except for `changes`."""
    # The product's limit on parameters follows from the memory of the machine that runs the simulation.
    usual = replace(settings.peer_config(HOST, timing), keys=(), transfer=timing.transfer)
    return replace(usual, **changes)
