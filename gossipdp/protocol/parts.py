"""What the machines of one peer are built with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from gossipdp.protocol.config import PeerConfig
from gossipdp.protocol.membership.membership import Membership
from gossipdp.protocol.membership.progress import ProgressBoard
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.rounds.speed import Speed
from gossipdp.protocol.strikes import Strikes

__all__ = ["Parts"]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """`Peer` makes them once. Machines of the replica take from them in their constructors."""

    config: PeerConfig
    membership: Membership
    progress: ProgressBoard
    strikes: Strikes
    """tells which members are set aside"""
    outputs: Outputs
    speed: Speed
    """this peer's speed relative to the others'"""
    random: Random
    sign: Callable[[bytes], bytes]
    """Ed25519 signature of this peer over some bytes"""
    verify: Callable[[bytes, bytes, bytes], bool]
    """checks a signature: peer id, data, signature"""
    now: float
    """seconds, when the peer is built"""
