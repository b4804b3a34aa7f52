"""The settings of a node. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["NodeConfig"]


@dataclass(frozen=True, kw_only=True)
class NodeConfig:
    network: str
    """the network's name"""
    home: str = ""
    """folder, for `status`"""
    metrics: str = ""
    """URL of the metrics, for `status`"""
    page: str = ""
    """URL of the status page, for `status`"""
    log: str = ""
    """log file, for `status`"""
    address_why: str = ""
    """where the advertised address comes from, for `status`"""
    trains: bool = False
    """a training command is started along with this peer"""
    only_seeds: tuple[str, ...] = ()
    """addresses of the only members that this peer knows; see `refusals`"""
    checkpoint_every: float
    """seconds"""
    mode: Literal["async", "overlap", "sync"]
    """when corrections reach the live parameters"""
    deadline: float
    """seconds that training waits for a round with mode sync"""
    heal: bool
    """load the model again into a training process whose snapshots are all NaN"""
    workers: int
    """compute threads"""
    waiting: int
    """bytes that messages may take, those to send and those received"""
