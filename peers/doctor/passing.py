"""Which packets pass to a member and from it, where large ones are lost.

Both directions are tried, so doctor tells the same at both ends of a way. Sizes are those of whole IP packets in bytes,
with the headers of IP and TCP.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Final, NamedTuple

from gossipdp.protocol.wire.messages import Lane
from gossipdp.runtime.network.events import LinkUp
from gossipdp.runtime.network.identity import Identity
from peers.doctor.path_mtu import Relay, search
from peers.doctor.talk import Network, Talk

__all__ = ["DIRECTIONS", "Passing", "Trials"]

DIRECTIONS: Final = ("to", "from")
"""of packets, as seen from here: to the member, and from it"""
TRIAL: Final = 0.8
"""seconds for the answer to a packet on trial, and `TRIAL_TRIPS` round trips: it may be sent again twice"""
TRIAL_TRIPS: Final = 4
MOST_TRIAL: Final = 1.5
FIRST: Final = 2
"""times as long is waited for the first packet of a direction: if it is lost, the direction is wrong"""
TRIALS: Final = 3.5
"""seconds after which no more trials of a direction begin"""


class Passing(NamedTuple):
    """What passes in one direction.

    passes: bytes of the largest packet that passed, where large ones are lost; 0: none was found.
    lost: bytes of the smallest one that was lost; None: large messages pass.
    """

    passes: int = 0
    lost: int | None = None


class Trials:
    """Tries packets on the way to `target`.

    Args:
        packet: bytes of a packet of full size.
        rtt: seconds.
    """

    def __init__(self, network: Network, target: str, packet: int, rtt: float) -> None:
        self._network, self._target, self._packet = network, target, packet
        self._patience = min(MOST_TRIAL, TRIAL + TRIAL_TRIPS * rtt)

    def both_ways(self, known: Mapping[str, Passing]) -> dict[str, Passing]:
        """What passes in each direction; a direction in which no link came up is left out.

        Args:
            known: what large messages have told about some directions.
        """

        def tried(direction: str) -> Passing | None:
            found = known.get(direction) or self._whole(direction)
            return found if found is None or found.lost is None else self._narrowed(direction)

        with ThreadPoolExecutor(len(DIRECTIONS), thread_name_prefix="gossipdp-mtu") as pool:
            found = dict(zip(DIRECTIONS, pool.map(tried, DIRECTIONS), strict=True))
        return {direction: each for direction, each in found.items() if each is not None}

    def _whole(self, direction: str) -> Passing | None:
        """Whether a packet of full size passes; None if no link came up."""
        passes = self._pass(direction, self._packet, FIRST * self._patience)
        return None if passes is None else Passing() if passes else Passing(0, self._packet)

    def _narrowed(self, direction: str) -> Passing:
        """The largest packet that passes where one of full size is lost."""
        until = time.monotonic() + TRIALS
        return Passing(*search(self._packet, lambda size: self._pass(direction, size, self._patience), until))

    def _pass(self, direction: str, size: int, patience: float) -> bool | None:
        """Whether packets of `size` bytes pass, with an answer within `patience` seconds; None without a link."""
        with closing(Talk(self._network, Identity.generate())) as talk, Relay(self._target, size) as relay:
            up = talk.dial(relay.address, 2.0 * patience)
            if not isinstance(up, LinkUp):
                return None
            send, back = (2 * size, 0) if direction == "to" else (0, 2 * size)
            return talk.ask(up.peer, Lane.DATA, send=send, back=back, patience=patience) is not None
