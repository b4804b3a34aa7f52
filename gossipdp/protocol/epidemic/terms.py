"""The terms of an increment: how it travels and how far it moves an anchor. They follow from what all peers know."""

from __future__ import annotations

from typing import Final, NamedTuple

from gossipdp.protocol.epidemic import packing
from gossipdp.protocol.epidemic.config import EpidemicConfig
from gossipdp.protocol.model import Model

__all__ = ["WHOLE", "Schedule", "Terms"]

WHOLE: Final = "whole"
"""the compressor that leaves nothing out, 2 bytes a parameter"""


class Terms(NamedTuple):
    """How an increment travels and how far it moves an anchor, the same at all peers."""

    compressor: str
    """name in the registry"""
    lr: float
    """alpha"""


class Schedule:
    """The terms by the network's clock: whole increments in the warm start, compressed ones later."""

    def __init__(self, config: EpidemicConfig) -> None:
        self._usual, self._whole_until = Terms(config.compressor, config.lr), config.whole_until
        self._fits = False

    def ready(self, model: Model) -> None:
        """The model is here. Whole increments of a large one would not fit."""
        self._fits = packing.fit(model.chunks, packing.EXACT * model.chunk_parameters)

    def at(self, clock: int) -> Terms:
        """The terms of an increment that is cut at `clock`."""
        return Terms(WHOLE, 1.0) if clock < self._whole_until and self._fits else self._usual
