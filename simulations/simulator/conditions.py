"""What a simulated network does to messages and jobs."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Conditions"]


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Weather of a network. Times in seconds, `loss`, `duplicate` and `reorder` as probabilities."""

    latency: float = 0.02
    """one way; each message takes up to `jitter` times as long again"""
    jitter: float = 0.2
    bandwidth: float = 12.5e6
    """bytes per second of one lane of one direction of one pair"""
    uplink: float | None = None
    """bytes per second of all data lanes of one host together, first come, first served; None: unlimited"""
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    """probability that a message leaves its place in the lane and arrives up to `late` seconds later"""
    late: float = 0.5
    job: float = 0.005
    """a job on one chunk takes between 0.5 and 1.5 times this"""
    pickup: float = 0.002
    """longest time between the end of a job and the peer's receipt of its result"""
