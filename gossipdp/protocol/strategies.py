"""The registry of strategies: a new one is one package, and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from gossipdp.protocol.epidemic.config import BroadcastConfig, EpidemicConfig
from gossipdp.protocol.epidemic.epidemic import EpidemicStrategy
from gossipdp.protocol.pairwise.config import PairwiseConfig
from gossipdp.protocol.pairwise.strategy import PairwiseStrategy
from gossipdp.protocol.strategy import Strategy, Surroundings

__all__ = ["STRATEGIES", "BroadcastConfig", "EpidemicConfig", "PairwiseConfig"]

STRATEGIES: Final[Mapping[type, Callable[[Any, Surroundings], Strategy]]] = {
    PairwiseConfig: PairwiseStrategy,
    EpidemicConfig: EpidemicStrategy,
}
"""settings class -> strategy"""
