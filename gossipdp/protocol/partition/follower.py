"""One peer gives up its model for another's while its training goes on: it saves what it has, ends the exchange under
way, and fetches.

Until that is done it exchanges nothing and hands nothing on, for it holds half of one model and half of another.
Training never waits: the anchor's movement reaches x as one correction at the end, or not at all: if there is nobody
left who has the rest, all of it is taken back, and the peer goes on with its own model and what it has learnt since.
Whom to follow, and why, is not decided here; the fetching itself is `transfer`'s, the saving the driver's. No vector is
here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from gossipdp.protocol import jobs
from gossipdp.protocol.carried_state import NOTHING, Carried
from gossipdp.protocol.events import ResyncBegan, ResyncEnded
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.transfer.joiner import Joiner
from gossipdp.protocol.transfer.source import Giving
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import StateManifest

__all__ = ["Follower"]

DRY: Final = {"apart": 32, "lag": 4, "diverged": 16, "idle": 4, "late": 4}
"""periods without anybody to fetch from after which it is given up. Who has only fallen behind is averaged with as it
is; who is apart has to follow some day: that is waited for longer"""
WANTED: Final = 4
"""the same, where somebody asks for the model that is being given up: perhaps nobody else has one"""
STALLED: Final = {"apart": 128, "lag": 128, "diverged": 16, "idle": 64, "late": 64}
"""periods, to twice as many by chance, after which it is given up though there is somebody, who refuses: two may have
begun to follow each other, and one of them must be the first to stop"""


class Follower:
    """Args:

    joiner: fetches the model with `Resync`, if it is newer than this step of the network's clock.
    hold: offer and accept no exchange (True), or do so again; true once none is under way.
    period: seconds.
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
        self.reason = ""
        """why this peer follows others right now: apart, lag, diverged, idle or late (see `standby`); or "" """
        self.source = b""
        """whom it has fetched from last"""
        self.began = 0.0
        self._joiner: Joiner | None = None
        self._kept = False
        self._taken: set[int] = set()
        """chunks that are another's now"""
        self._dry_at = self._stalled_at = math.inf

    def begin(
        self,
        reason: str,
        members: int,
        others: int,
        now: float,
        *,
        behind: int = 0,
        newer_than: int = -1,
        keep: bool = True,
    ) -> None:
        """Give up this peer's model, `behind` steps old, for one newer than a step of the network's clock. The driver
        saves it first, if it is to `keep` it."""
        self.reason, self.began, self._kept = reason, now, not keep
        self._dry_at = self._stalled_at = math.inf
        self._joiner = self._new_joiner(newer_than)
        self._hold(True, now)
        self._outputs.emit(ResyncBegan(reason, members, others, behind))
        if keep:
            self._outputs.ask(jobs.Keep(reason))

    def kept(self) -> None:
        """What this peer gives up is on its disk, or cannot be."""
        self._kept = True

    def fetch(self, candidates: Sequence[bytes], now: float) -> None:
        """Go on, from whoever of `candidates` will do; they are there and hold the model wanted."""
        joiner = self._joiner
        if joiner is None or not self._kept or not self._hold(True, now):
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
            self._dry_at = now + DRY[self.reason] * self._period
        if math.isinf(self._stalled_at):
            self._stalled_at = now + STALLED[self.reason] * self._period * (1.0 + self._random.random())

    @property
    def summary(self) -> bytes:
        """What is inside what has been fetched, if it is an exact state."""
        return b"" if self._joiner is None else self._joiner.summary

    @property
    def carried(self) -> Carried:
        """What came with what has been fetched, once all of it is here."""
        return NOTHING if self._joiner is None or not self._joiner.done else self._joiner.carried

    @property
    def untouched(self) -> bool:
        """Nothing of another's model has been taken in."""
        return not self._taken

    @property
    def begun(self) -> int:
        """The network's clock when the last manifest came."""
        return 0 if self._joiner is None else self._joiner.begun

    @property
    def manifest(self) -> StateManifest | None:
        """Of what has been fetched, once all of it is here."""
        return self._joiner.manifest if self._joiner is not None and self._joiner.done else None

    def over(self, now: float) -> bool:
        """All is here, or there was nobody to fetch it from for long; `end` is then to be called."""
        if self._joiner is None or self._joiner.done:
            return self._joiner is not None
        return not self._joiner.busy and now >= min(self._dry_at, self._stalled_at)

    def end(self, now: float) -> None:
        """Exchange again, with a model that is whole."""
        complete, reason = self.manifest is not None, self.reason
        self._joiner, self.reason = None, ""
        for chunk in sorted(self._taken):
            self._outputs.ask(jobs.Conclude(chunk, not complete))
        self._taken.clear()
        self._outputs.emit(ResyncEnded(reason, self.source, complete, now - self.began))
        self._hold(False, now)

    # -- inputs -----------------------------------------------------------------------------------------------

    def receive(
        self,
        message: Giving,
        buffers: list[Buffer],
        source: bytes,
        now: float,
    ) -> None:
        """A word of the source that this peer fetches from, or of a witness."""
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
        """Somebody asks for the model that is being given up, and gets none of it."""
        if not math.isinf(self._dry_at):
            self._dry_at = min(self._dry_at, now + WANTED * self._period)

    def gone(self, peer: bytes, now: float) -> None:
        """`peer` has left or failed."""
        if self._joiner is not None:
            self._joiner.gone(peer, now)

    def timer(self) -> float | None:
        if self._joiner is None:
            return None
        fetching, over = self._joiner.timer(), min(self._dry_at, self._stalled_at)
        return min(over if fetching is None else fetching, over)

    def handle_timer(self, now: float) -> None:
        if self._joiner is not None:
            self._joiner.handle_timer(now)
