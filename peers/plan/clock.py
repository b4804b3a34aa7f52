"""Rounds by the laboratory's clock. It alone says how long a round lasts and how many bytes it moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from peers.plan.network import Network

__all__ = ["DDP", "DILOCO", "FOUR_BITS", "GOSSIP", "LOCAL_SGD", "OVERLAPPED", "WAYS", "Clock", "Round", "Way"]


@dataclass(frozen=True)
class Way:
    """A way to train, as the laboratory knows it."""

    title: str
    method: str
    """a name of the laboratory's registry"""
    options: Mapping[str, Any] = field(default_factory=dict)
    own_pace: bool = False
    """a fast host makes more steps in a round; otherwise all make as many as the slowest"""


GOSSIP: Final = "gossip"
DILOCO: Final = "DiLoCo, fp32"
FOUR_BITS: Final = "DiLoCo, 4 bits"
OVERLAPPED: Final = "DiLoCo, 4 bits, overlap"
LOCAL_SGD: Final = "local SGD"
DDP: Final = "DDP, bf16"
WAYS: Final = {
    way.title: way
    for way in (
        # Early rounds make more exchanges. Most rounds of a run are later ones.
        Way(GOSSIP, "pairwise", {"early": 0.0}, own_pace=True),
        Way(DILOCO, "diloco", {"own_pace": True}, own_pace=True),
        Way(FOUR_BITS, "diloco-4bit", {"own_pace": True}, own_pace=True),
        Way(OVERLAPPED, "diloco-4bit-overlapped", {"own_pace": True}, own_pace=True),
        Way(LOCAL_SGD, "local-sgd"),
        Way(DDP, "ddp", {"half": True}),
    )
}


@dataclass(frozen=True)
class Round:
    """A usual round of a run, after its first ones. A mean where rounds differ."""

    seconds: float
    steps: tuple[float, ...]
    """that each host makes"""
    received: float
    """bytes that a host receives, and as many it sends"""
    exchange: float
    """seconds of a whole exchange between two peers; 0 where there is none"""


class Clock(Protocol):
    def __call__(self, network: Network, way: Way, every: int, bits: int) -> Round:
        """A usual round of `every` steps of the slowest host, with `bits` a parameter in exchanges of pairs."""
