"""The settings of the strategy and of its broadcast."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from gossipdp.protocol.wire.epidemic_messages import NO_RUN

__all__ = ["BroadcastConfig", "EpidemicConfig"]


@dataclass(frozen=True, kw_only=True)
class BroadcastConfig:
    """Settings of the broadcast. Times are seconds. `run` and `span` must be the same at all peers."""

    run: bytes = NO_RUN
    """16 bytes that name the run and its settings; an increment signed for another run does not count"""
    span: int = 50
    """steps of the network's clock in an epoch"""
    retain: int = 1 << 30
    """bytes of payloads kept for other peers"""
    gather: bool = False
    """an epoch is handed out as a whole when it settles. Payloads are kept until then and, if there is room, longer for
    peers that have taken a state over"""
    neighbours: int = 3
    """neighbours that this peer chooses; about as many more choose it"""
    window: int = 8
    """most parts under way to one neighbour"""
    again: float = 10.0
    """time without an answer before a part is sent again; longer on a slow link (`send_window`). The largest part takes
    8.4 s at the lowest rate, 1 Mbit/s"""
    wait: float = 1.0
    """time that the tree has to bring an announced increment"""
    patience: float = 20.0
    """time to wait for the next part before another peer is asked; longer on a slow link"""
    sync: float = 5.0
    """mean time between two comparisons with a random member"""


@dataclass(frozen=True, kw_only=True)
class EpidemicConfig:
    """Settings of the strategy. All but the times of the broadcast must be the same at all peers."""

    name: ClassVar[str] = "epidemic"
    exact: ClassVar[bool] = True

    broadcast: BroadcastConfig = field(default_factory=BroadcastConfig)
    compressor: str = "topk256"
    """name in the registry"""
    whole_until: int = 0
    """steps of the network's clock until which increments travel whole, if the model is small enough. In the warm start
    peers then agree on all of every step. That is 2 bytes a parameter from each peer in each round. A slow link
    delivers part of it late, and after GRACE epochs it no longer counts"""
    lr: float = 2.0
    """alpha. Increments that travel whole use 1, because nothing waits in the residual"""
    beta: float = 0.95
    """share of the residual that is kept from round to round"""
    rule: str = ""
    """robust rule for settled epochs; "" applies increments as they come"""
