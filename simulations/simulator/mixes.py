"""Both sides of each mixed chunk: what one side gives, the other takes, and no chunk is mixed twice (I1, I2, I4).

Between the responder's mix and the initiator's, a chunk is mixed on one side alone. The initiator must then take
exactly what the responder gave. All sums are in fp64.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gossipdp.protocol import jobs
from simulations.simulator.equations import RELATIVE, Grid
from simulations.simulator.host import Host
from simulations.simulator.lives import Life, life_of
from simulations.simulator.tracing import number

__all__ = ["Mixes"]

FLIGHT = 1.0
"""seconds for which a chunk may be mixed on one side alone in a calm network, where peers still exchange"""


class OneSided(NamedTuple):
    """A chunk that the responder has mixed, and the initiator not yet."""

    initiator: Life
    responder: Life
    moved: NDArray[np.float64]
    """movement of the responder's anchor"""
    at: float


class Mixes:
    """The mixes of a network.

    Args:
        hosts: all hosts; the list may grow.
        clock: returns the virtual time.
    """

    def __init__(self, hosts: list[Host], clock: Callable[[], float]) -> None:
        self._hosts, self._clock = hosts, clock
        self.false_accepts = 0
        """blocks whose differences did not fit the codes, which their check missed"""
        self.at: dict[Life, list[float]] = {}
        """life -> times at which mixes moved its anchor"""
        self._one_sided: dict[jobs.ChunkKey, OneSided] = {}
        self._applied: set[tuple[Life, jobs.ChunkKey]] = set()
        self._captured: dict[jobs.ChunkKey, dict[Life, NDArray[np.float32]]] = {}
        """chunk -> life -> its anchor when the codec copied it"""

    def capture(self, host: Host, key: jobs.ChunkKey, anchor: NDArray[np.float32]) -> None:
        """The codec copies the anchor of one side."""
        self._captured.setdefault(key, {})[life_of(host)] = anchor.copy()

    def check_direction(
        self, host: Host, key: jobs.ChunkKey, moved: NDArray[np.float64], weight: float, grid: Grid | None
    ) -> None:
        """Check that a chunk moved towards the partner's anchor at the time of the copies, to a step of the grid (I4).

        Args:
            moved: movement of the host's anchor.
            weight: agreed share of the difference.
            grid: of a modulo codec; None for codecs without a grid.
        """
        sides = self._captured.get(key, {})
        mine = sides.pop(life_of(host), None)
        if mine is None or len(sides) != 1:
            return  # the other side has mixed, and was compared then; or its copy is gone
        (theirs,) = sides.values()
        wanted = weight * (theirs.astype(np.float64) - mine)
        # Buffers may travel in bfloat16, which rounds each side by 2^-8 of it.
        rounded = 2.0**-8 * (np.abs(mine) + np.abs(theirs))
        step = weight * (rounded if grid is None else grid.blocks.spread(grid.step))
        slack = step + RELATIVE * (1.0 + np.abs(mine))
        off = np.abs(moved - wanted)
        if float((off - slack).max()) <= 0.0:
            return
        what = f"I4 {host.name}: {_named(key)} moved elsewhere than to its partner"
        assert grid is not None, what
        # Differences of a block may leave the range of the code, and the check misses one such block in 2^15 to 2^16.
        # Then some differences are wrong by whole turns of the code, equally on both sides.
        turn = step * 2.0**grid.bits
        assert float((np.abs(off - np.rint(off / turn) * turn) - slack).max()) <= 0.0, f"{what}, nor by whole turns"
        blocks = len(set(np.searchsorted(grid.blocks.starts, np.flatnonzero(off > slack), "right")))
        self.false_accepts += blocks
        assert self.false_accepts == 1, f"{what} in {self.false_accepts} blocks: too many for the checks"

    def take(
        self,
        host: Host,
        key: jobs.ChunkKey,
        moved: NDArray[np.float64],
        before: NDArray[np.float32],
        hostile: Collection[bytes],
    ) -> None:
        """A side has mixed a chunk. Check that it did so once, and that both sides moved by the same difference.

        Args:
            moved: movement of its anchor.
            before: its anchor before the mix.
            hostile: ids of members whose faults are expected.
        """
        life = life_of(host)
        assert (life, key) not in self._applied, f"I2 {host.name}: {_named(key)} applied twice"
        self._applied.add((life, key))
        self.at.setdefault(life, []).append(self._clock())
        if key.initiator in hostile:
            return
        if key.initiator != host.id:
            self._give(host, key, moved)
            return
        given = self._one_sided.pop(key, None)
        if given is None and hostile:
            return  # a hostile member has answered
        assert given is not None, f"I2 {host.name}: mixed {_named(key)}, which no responder has mixed"
        scale = float(np.abs(before).max()) + float(np.abs(moved).max())
        worst = float(np.abs(moved + given.moved).max())
        assert worst <= RELATIVE * scale, f"I1 {host.name}: the sum of two anchors moved by {worst}"

    def _give(self, responder: Host, key: jobs.ChunkKey, moved: NDArray[np.float64]) -> None:
        assert key not in self._one_sided, f"I2 {responder.name}: another has answered for {_named(key)}"
        initiator = next(other.index for other in self._hosts if other.id == key.initiator)
        self._one_sided[key] = OneSided((initiator, key.exchange >> 32), life_of(responder), moved, self._clock())
        alone = sum(each[:2] == key[:2] for each in self._one_sided)
        assert alone <= responder.config.averaging.window, (
            f"I2 {responder.name}: {alone} chunks of one exchange mixed on one side alone, the last {_named(key)}"
        )

    def check_settled(self, doubts: Mapping[Life, int]) -> None:
        """Check at rest that no chunk is still mixed on one side alone.

        Args:
            doubts: life -> chunks that it has counted as in doubt.
        """
        lives = {life_of(host) for host in self._hosts if host.peer is not None}
        owed: Counter[Life] = Counter()
        for key, given in self._one_sided.items():
            ends = (given.initiator, given.responder)
            live = [end for end in ends if end in lives]
            if len(live) == 2 and given.at > self._clock() - FLIGHT:
                continue
            between = " and ".join(f"p{index}, life {incarnation}" for index, incarnation in ends)
            assert len(live) < 2, f"I2: {_named(key)} was never settled between {between}"
            # A partner that never came back is only believed dead, and may yet settle.
            if live and all(self._hosts[end[0]].peer is not None for end in ends):
                owed[live[0]] += 1
        for life, count in owed.items():
            counted = doubts.get(life, 0)
            assert counted >= count, f"I2 p{life[0]}, life {life[1]}: {count} chunks in doubt, {counted} counted"


def _named(key: jobs.ChunkKey) -> str:
    """A chunk as `tracing` names it."""
    return f"chunk {key.chunk} of exchange {number(key.exchange)}"
