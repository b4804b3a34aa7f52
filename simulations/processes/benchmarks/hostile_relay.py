"""A peer daemon that carries what it likes. It drops, repeats, changes and delays a share of what it carries.

python -m simulations.processes.benchmarks.hostile_relay --home HOME
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Final

from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Lane
from gossipdp.runtime.network.carrying import Carrier
from gossipdp.runtime.network.connections import Link
from peers import daemon

SHARE: Final = 0.05
"""of the messages, for each of the four"""
HONEST: Final = 40
"""messages of a pair before that"""
_honest = Carrier.carry
_came: Counter[tuple[bytes, bytes]] = Counter()
_chance = random.Random(1)
_held: list[tuple[Carrier, Link, Lane, bytes, Sequence[Buffer], int]] = []


def carry(self: Carrier, link: Link, lane: Lane, to: bytes, frames: Sequence[Buffer], size: int) -> None:
    _came[link.peer, to] += 1
    luck = _chance.random() / SHARE if _came[link.peer, to] > HONEST else 1 / SHARE
    if luck < 1.0:
        return
    if luck < 2.0:
        _held.append((self, link, lane, to, frames, size))
        return
    if luck < 3.0:
        frames = [*frames[:-1], bytes(byte ^ 1 for byte in bytes(frames[-1]))]
    _honest(self, link, lane, to, frames, size)
    if luck >= 3.0 and luck < 4.0:
        _honest(self, link, lane, to, frames, size)
    while _held:
        _honest(*_held.pop())


if __name__ == "__main__":
    Carrier.carry = carry  # type: ignore[method-assign]
    sys.exit(daemon.main())
