"""Collects what the verdict on a peer depends on: from its events, and from its parts when asked.

`health` judges. Nothing here may send, wait or touch a vector.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from typing import Final

from gossipdp.protocol import events
from gossipdp.protocol.causes import Outcome, Unused
from gossipdp.protocol.view import View
from gossipdp.protocol.wire.messages import State, short
from gossipdp.runtime.network.dial_causes import foremost
from gossipdp.runtime.observability.health import WIDE, Signs, Silent
from gossipdp.runtime.observability.unanswered import Unanswered

__all__ = ["VitalSigns"]

QUIET_ROUNDS: Final = 4
"""usual rounds without an exchange that are no trouble: one may wait for the next round, and last for two more"""
STALL_WINDOW: Final = 60.0
"""seconds, or `QUIET_ROUNDS` rounds if these are longer, over which the stall of training is taken"""
STARTS: Final = 180.0
"""seconds for which a training command may start, as with torch on a slow disk; then the supervisor tells GD-503"""
TURNED_AWAY_FOR: Final = 90.0
"""seconds for which a refused second training process is told: the supervisor starts it again within 30 s"""
STEADY: Final = 120.0
"""seconds since its last end after which a training process that makes rounds does not crash any longer"""
ENDS_WINDOW: Final = 600.0
"""seconds over which ends of the training command are counted"""
MOST_REPORTS: Final = 4096
"""reports of training kept for that"""


class VitalSigns:
    """Feed it every event, and ask `collect` about twice a second.

    Args:
        unanswered: addresses that do not answer.
        trains: a training command is started along with this peer.
    """

    def __init__(self, view: View, unanswered: Unanswered, now: float, *, trains: bool = False) -> None:
        self._view, self._unanswered = view, unanswered
        self._trains, self._starts_until = trains, now + STARTS if trains else -math.inf
        self._quiet_since = self._still_since = self._met_at = now
        self._exchanged_at = -math.inf
        self._fruitless: Counter[str] = Counter()
        """refused offers and exchanges that mixed nothing, by reason, since the last that did"""
        self._loads = False
        self._idle_since = math.inf
        self._refused: tuple[str, int] = ("", 0)
        self._second, self._second_until = (0, 0), -math.inf
        self._unsaved = ""
        self._ends: deque[float] = deque(maxlen=64)
        """when the training command ended, and is or will be started again"""
        self._counted = False
        """the last end of the command is among them"""
        self._distances: dict[bytes, float] = {}
        """partner -> distance of the anchors at the last exchange, RMS per parameter"""
        self._unseen = 0
        """exchanges in a row that showed no distance"""
        self._stalls: deque[tuple[float, float]] = deque(maxlen=MOST_REPORTS)
        """times of the training process's reports, and the seconds that it had spent in gossipdp by then"""

    # -- what happens -----------------------------------------------------------------------------------------

    def observe(self, event: events.Event, now: float) -> None:
        match event:
            case events.SessionOpened():
                self._loads, self._quiet_since, self._still_since = False, now, now
                self._stalls.clear()
                self._distances.clear()
                self._unseen = 0
            case events.RoundDone():
                self._still_since = now
                if self._ends and now - self._ends[-1] > STEADY:
                    self._ends.clear()
            case events.ExchangeEnded(partner=partner, result=result, chunks=chunks, distance=distance):
                if chunks:
                    self._mixed(now)
                    if math.isfinite(distance):
                        self._distances[partner], self._unseen = distance, 0
                    else:
                        self._distances.pop(partner, None)
                        self._unseen += 1
                else:
                    self._fruitless["no chunk averaged" if result is Outcome.DONE else result] += 1
            case events.OfferRefused(_, reason):
                self._fruitless[reason] += 1
            case events.SnapshotTaken(_, refused) if refused is not Unused.SESSION:
                self._refused = (refused or "", self._refused[1] + 1 if refused else 0)

    def _mixed(self, now: float) -> None:
        self._exchanged_at = self._quiet_since = now
        self._fruitless.clear()

    def attached(self) -> None:
        """A training process has attached, and waits for the model."""
        self._loads = True

    def detached(self, now: float, *, left: bool = False) -> None:
        """The training process is gone. left: it has detached. Its command may run on, and nothing has crashed."""
        self._loads, self._idle_since, self._refused = False, now, ("", 0)
        self._second_until = -math.inf
        if left:
            self._starts_until = -math.inf
        elif self._trains:
            self._starts_until = now + STARTS  # the supervisor, or a launcher, starts it again
            self._ends.append(now)
            self._counted = True

    def command_started(self, now: float, *, again: bool) -> None:
        """The supervisor starts the training command. again: it has failed."""
        self._starts_until = now + STARTS
        if again and not self._counted:
            self._ends.append(now)
        self._counted = False

    def turned_away(self, pid: int, attached: int, now: float) -> None:
        """A second training process, `pid`, was refused, because `attached` is attached."""
        self._second, self._second_until = (pid, attached), now + TURNED_AWAY_FOR

    def reported(self, stall_seconds: float, now: float) -> None:
        """The training process has spent `stall_seconds` in gossipdp so far."""
        self._stalls.append((now, stall_seconds))

    def checkpoint_ended(self, failure: str = "") -> None:
        """A checkpoint is saved, or failed for this reason."""
        self._unsaved = failure

    # -- what follows -----------------------------------------------------------------------------------------

    def collect(
        self, now: float, *, training: bool, partner: bytes, transfer: str, saving: bool, finishing: str = ""
    ) -> Signs:
        """The signs now.

        Args:
            training: a training process has a session.
            partner: of the last exchange; b"" if there was none.
            transfer: text on how much of the fetched model has arrived.
            saving: the peer leaves, and its last checkpoint is not written yet.
            finishing: what the end of this peer's run waits for.
        """
        view, alive = self._view, self._view.alive
        train = len(view.training) if alive else 0
        if not training or not train or view.resyncing:
            self._quiet_since = now  # no exchange is possible
        if alive:
            self._met_at = now
        patience = QUIET_ROUNDS * view.usual_round + view.config.transfer.silence
        failed = [
            member for member in view.members.values() if member.state is State.FAILED and not view.why_not(member.id)
        ]
        last = view.members.get(partner)
        held = view.resumes
        return Signs(
            joining=not view.ready and not view.me.only_carries,
            relay=view.me.only_carries,
            founds=view.founds,
            leaving=view.leaving,
            banned=view.fate,
            saving=saving,
            finishing=finishing,
            training=training,
            loads=self._loads,
            idle=now - self._idle_since if self._idle_since < math.inf else math.inf,
            starting=now < self._starts_until,
            live=1 + len(alive),
            unmet=now - self._met_at,
            dialled=view.me.addresses,
            failed=tuple((member.name, view.dead_for(member.id, now)) for member in failed),
            train=train,
            partner=short(partner) if last is None else last.name,
            exchanged=now - self._exchanged_at,
            quiet=now - self._quiet_since,
            still=now - self._still_since,
            patience=patience,
            round_seconds=view.usual_round,
            fruitless=tuple(self._fruitless.most_common(3)),
            ratio=math.nan if self._unseen else view.consensus_ratio,
            unseen=self._unseen,
            all_far=self._all_far(),
            stall=self._stall(max(STALL_WINDOW, QUIET_ROUNDS * view.usual_round)) if training else math.nan,
            sync=view.config.sync,
            silent=self._silent(now),
            transfer=transfer,
            resyncing=view.resyncing,
            resumes=None if held is None or view.ready else held.clock,
            listens=view.config.resume_after,
            refused=self._refused,
            second=self._second if now < self._second_until else (0, 0),
            unsaved=self._unsaved,
            ended=sum(now - at < ENDS_WINDOW for at in self._ends),
        )

    def reached(self) -> set[str]:
        """Addresses of the members that have a link to this peer."""
        view = self._view
        linked = (member for member in view.alive if view.linked(member.id))
        return {address for member in linked for address in member.addresses}

    def _all_far(self) -> bool:
        """Whether several members are far from this one, and none is near: then no host alone has diverged."""
        view = self._view
        self._distances = {
            member.id: self._distances[member.id] for member in view.alive if member.id in self._distances
        }
        ratios = [view.consensus_ratio_of(distance) for distance in self._distances.values()]
        return len(ratios) > 1 and min(ratios) > WIDE and not view.ran_away

    def _stall(self, window: float) -> float:
        """Share of the time that the last reports of training cover; NaN while they cover too little of it."""
        while len(self._stalls) > 2 and self._stalls[-1][0] - self._stalls[1][0] >= window:
            self._stalls.popleft()
        if len(self._stalls) < 2:
            return math.nan
        (first, least), (last, most) = self._stalls[0], self._stalls[-1]
        return (most - least) / (last - first) if last - first >= window / 6 else math.nan

    def _silent(self, now: float) -> tuple[Silent, ...]:
        """Addresses that do not answer, except those of members that this peer reaches in another way."""
        reached, failed = self.reached(), self._unanswered.recent(now).items()
        return tuple(Silent(at, foremost(dial.causes), dial.do) for at, dial in failed if at not in reached)
