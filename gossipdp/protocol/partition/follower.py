"""A peer gives up its model for another one while its training goes on.

The driver saves a checkpoint, the exchange under way ends, then the model is fetched. Until all of it is here the peer
holds parts of two models, so it exchanges nothing and gives its state to no other peer. Training never waits. At the
end the anchor's movement reaches x as one correction. If no source is left, all chunks are taken back, and the peer
goes on with its own model and what it has learnt since. `reunion` decides which members to follow, and why. `transfer`
fetches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from gossipdp.protocol import jobs
from gossipdp.protocol.events import ResyncBegan, ResyncEnded
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.partition.reasons import Reason
from gossipdp.protocol.transfer.arrived import Arrived
from gossipdp.protocol.transfer.joiner import Joiner
from gossipdp.protocol.transfer.source import Giving
from gossipdp.protocol.wire.encoding import Buffer

__all__ = ["WANTED", "Follower"]

DRY: Final = {Reason.APART: 32, Reason.LAG: 4, Reason.IDLE: 4, Reason.LATE: 4}
"""Periods without any source after which the peer gives up. A peer that lags can be averaged as it is. A peer held
apart has to follow some day, so it waits longer."""
WANTED: Final = 4
"""The same, once another peer asks for the model that is given up: there may be no other model."""
STALLED: Final = {Reason.APART: 128, Reason.LAG: 128, Reason.IDLE: 64, Reason.LATE: 64}
"""Periods with sources that all refuse, after which the peer gives up; times 1 to 2 at random. Two peers may have begun
to follow each other. One of them must stop first."""


class Follower:
    """Fetches the network's model anew and replaces this peer's by it.

    Args:
        joiner: Makes a joiner that replaces the model with `Resync` jobs, by a model newer than this network clock.
        hold: True: offer and accept no exchange. False: exchange again. Returns True once no exchange is under way.
        period: Seconds.
    """

    def __init__(
        self,
        joiner: Callable[[int], Joiner],
        outputs: Outputs,
        hold: Callable[[bool, float], bool],
        period: float,
        random: Random,
    ) -> None:
        self._new_joiner, self._outputs, self._hold = joiner, outputs, hold
        self._period, self._random = period, random
        self.reason: Reason | None = None
        """Why this peer follows another model right now."""
        self.source = b""
        """The member that it fetched from last."""
        self.began = 0.0
        """Time at which this began."""
        self._joiner: Joiner | None = None
        self._kept = False
        """The checkpoint of the own model is saved, or not wanted."""
        self._taken: set[int] = set()
        """Chunks that are replaced."""
        self._dry_at = self._stalled_at = math.inf
        """When the peer gives up, for want of sources or of progress."""

    def begin(
        self,
        reason: Reason,
        members: int,
        others: int,
        now: float,
        *,
        behind: int = 0,
        newer_than: int = -1,
        keep: bool = True,
    ) -> None:
        """Give up this peer's model.

        Args:
            members: Of this peer's side.
            others: Members held apart that are present.
            behind: Steps that the own model is old.
            newer_than: Network clock that the fetched model must exceed.
            keep: The driver saves a checkpoint of the own model first.
        """
        self.reason, self.began, self._kept = reason, now, not keep
        self._dry_at = self._stalled_at = math.inf
        self._joiner = self._new_joiner(newer_than)
        self._hold(True, now)
        self._outputs.emit(ResyncBegan(reason.value, members, others, behind))
        if keep:
            self._outputs.ask(jobs.Keep(reason.value))

    def kept(self) -> None:
        """The checkpoint of the own model is saved, or cannot be."""
        self._kept = True

    def fetch(self, candidates: Sequence[bytes], now: float) -> None:
        """Go on fetching, from any of `candidates`: live members that hold the model wanted."""
        joiner, reason = self._joiner, self.reason
        if joiner is None or reason is None or not self._kept or not self._hold(True, now):
            return
        if joiner.outdone(candidates):
            self._dry_at = now
            return
        joiner.seek(candidates, now)
        self.source = joiner.source or self.source
        if joiner.busy:
            self._dry_at = self._stalled_at = math.inf
            return
        if candidates:
            self._dry_at = math.inf
        elif math.isinf(self._dry_at):
            self._dry_at = now + DRY[reason] * self._period
        if math.isinf(self._stalled_at):
            self._stalled_at = now + STALLED[reason] * self._period * (1.0 + self._random.random())

    @property
    def untouched(self) -> bool:
        """No chunk has been replaced."""
        return not self._taken

    @property
    def busy(self) -> bool:
        """A model is coming, or is taken in."""
        return self._joiner is not None and self._joiner.busy

    @property
    def complete(self) -> bool:
        """All of the other model is here."""
        return self._joiner is not None and self._joiner.done

    @property
    def arrived(self) -> Arrived | None:
        """The fetched model, once all of it is here."""
        return None if self._joiner is None else self._joiner.arrived

    def over(self, now: float) -> bool:
        """Whether all is here, or no source was found for long. The caller then calls `end`."""
        if self._joiner is None or self._joiner.done:
            return self._joiner is not None
        return not self._joiner.busy and now >= min(self._dry_at, self._stalled_at)

    def end(self, now: float) -> None:
        """Exchange again, with a model that is whole."""
        complete, reason = self.complete, self.reason
        assert reason is not None
        self._joiner, self.reason = None, None
        for chunk in sorted(self._taken):
            self._outputs.ask(jobs.Conclude(chunk, not complete))
        self._taken.clear()
        self._outputs.emit(ResyncEnded(reason.value, self.source, complete, now - self.began))
        self._hold(False, now)

    # -- inputs -----------------------------------------------------------------------------------------------

    def receive(self, message: Giving, buffers: list[Buffer], source: bytes, now: float) -> None:
        """A message of the source or of a witness."""
        if self._joiner is not None:
            self._joiner.receive(message, buffers, source, now)

    def resynced(self, job: jobs.Resync, result: jobs.Checked, now: float) -> None:
        """The result of a Resync."""
        if result.finite:
            self._taken.add(job.chunk)
        if self._joiner is not None:
            self._joiner.adopted(job, result, now)

    def checked(self, job: jobs.CheckPiece, result: jobs.Checked, now: float) -> None:
        """The result of a CheckPiece."""
        if self._joiner is not None:
            self._joiner.adopted(job, result, now)

    def compared(self, result: jobs.Compared | None, now: float) -> None:
        """The result of a Compare."""
        if self._joiner is not None:
            self._joiner.compared(result, now)

    def wanted(self, now: float) -> None:
        """Another peer asks for the model that is given up, and gets none of it."""
        if not math.isinf(self._dry_at):
            self._dry_at = min(self._dry_at, now + WANTED * self._period)

    def gone(self, peer: bytes, now: float) -> None:
        """`peer` has left or failed."""
        if self._joiner is not None:
            self._joiner.gone(peer, now)

    def timer(self) -> float | None:
        if self._joiner is None:
            return None
        fetching = self._joiner.timer()
        # A joiner whose jobs run is not given up: the peer would call `handle_timer` again and again until they end.
        over = math.inf if self._joiner.busy else min(self._dry_at, self._stalled_at)
        return min(over if fetching is None else fetching, over)

    def handle_timer(self, now: float) -> None:
        if self._joiner is not None:
            self._joiner.handle_timer(now)
