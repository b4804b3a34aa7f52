"""The training process of one peer: what it does, as inputs of the peer, and what follows from its rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from gossipdp.protocol import jobs
from gossipdp.protocol.carried_state import NOTHING, Carried
from gossipdp.protocol.events import RoundSettled, SnapshotTaken
from gossipdp.protocol.model_holder import ModelHolder
from gossipdp.protocol.parts import Parts
from gossipdp.protocol.round_machines import RoundMachines
from gossipdp.protocol.rounds.attachment import Attachment
from gossipdp.protocol.rounds.rounds import Done
from gossipdp.protocol.transfer.claims import Live
from gossipdp.protocol.transfers import Transfers
from gossipdp.protocol.wire.encoding import Buffer

__all__ = ["Training"]


class Training:
    """The inputs that the training process makes.

    Args:
        wake: called before a snapshot, as before every input that has to do with time.
        settle: called after every input here, so that the whole peer follows up on it.
    """

    def __init__(
        self,
        parts: Parts,
        machines: RoundMachines,
        transfers: Transfers,
        attachment: Attachment,
        holder: ModelHolder,
        *,
        wake: Callable[[float], None],
        settle: Callable[[float], None],
    ) -> None:
        self._config, self._outputs = parts.config, parts.outputs
        self._contribution, self._pacing, self._averaging, self._rounds = machines
        self._transfers, self._attachment, self._holder = transfers, attachment, holder
        self._wake, self._settle = wake, settle
        self._unsettled = 0
        """the snapshot whose exchanges training waits for"""

    # -- inputs -----------------------------------------------------------------------------------------------

    def attach(
        self,
        schema: bytes,
        now: float,
        *,
        carried: Carried = NOTHING,
        moments: bool = False,
        live: Live | None = None,
    ) -> None:
        """A training process has written its model to shared memory and waits for one to start from.

        Args:
            carried: what goes with its model.
            moments: it begins with an empty optimizer, and can use the moments that this peer holds.
            live: it trained with an earlier daemon of this peer, and its parameters may be the newest of all.
        """
        loaded = live is not None and live.loaded
        self._transfers.age.arrives(doubted=loaded and self._holder.others_train)
        self._attachment.came(schema, self._holder.model, carried, moments=moments and self._config.moments, live=live)
        if self._holder.model is None and not self._transfers.bootstrap.founder:
            self._transfers.bootstrap.lives(live)
        self._settle(now)

    def detach(self, now: float) -> None:
        """The training process is gone."""
        self._attachment.gone()
        self._transfers.bootstrap.lives(None)
        self._unsettled = 0
        self._pacing.detached()
        self._rounds.detach()
        self._settle(now)

    def submit(
        self,
        session: int,
        snapshot: int,
        applied: int,
        steps: int,
        samples: int,
        now: float,
        *,
        state: Buffer | None = None,
        losses: tuple[float, float] = (math.nan, math.nan),
    ) -> None:
        """The training process has put a snapshot into x, `steps` and `samples` after the one before.

        Args:
            session: number of the session that submits it.
            snapshot: its number, from 1.
            applied: the latest slot in it.
            state: what is not exchanged, as of this snapshot (`carried_state`); None if it is unchanged.
            losses: the script's last training and evaluation loss, for other members to see; NaN if unknown.
        """
        self._wake(now)
        self._contribution.note_losses(*losses)
        self._pacing.submitted(steps if session == self._rounds.session else 0, now)
        clock = self._contribution.own_clock + steps
        accepted = partial(self._holder.trained, clock, steps, samples, state)
        if not self._rounds.submit(session, snapshot, applied, self._pacing.outer(), clock, accepted):
            self._outputs.emit(SnapshotTaken(snapshot, "session"))
            return
        self._unsettled = snapshot if self._config.sync else 0
        self._settle(now)

    def slot_applied(self, session: int, slot: int, now: float) -> None:
        """The training process has added a sealed slot to x."""
        self._rounds.slot_applied(session, slot)
        self._settle(now)

    # -- what follows -----------------------------------------------------------------------------------------

    def job_done(self, job: jobs.Job[object], result: object, now: float) -> None:
        """The driver has carried out a job of a round or of an attachment."""
        done, founding = self._rounds.job_done(job, result), self._attachment.founding
        if done is Done.FOUNDING and founding is not None and self._holder.model is None:
            self._holder.founded(founding, now)
            self._attachment.let_in(self._holder.model)
        elif isinstance(job, jobs.Found):
            if founding is not None and founding.live is not None and not job.typed(result).finite:
                self._attachment.unusable()
                if self._transfers.bootstrap.taking is not None:
                    self._transfers.bootstrap.taken_over(now, finite=False)
            self._attachment.let_in(self._holder.model)
        if done is Done.ROUND:
            rounds = self._rounds
            self._pacing.round_done(rounds.rounds, rounds.length, rounds.movement, rounds.open, now)
            self._averaging.round_done(now)

    def step(self, candidates: Callable[[], Sequence[bytes]], now: float) -> None:
        """Draw conclusions after any input. candidates: members that may have an optimizer's moments."""
        rounds, model, replacing = self._rounds, self._holder.model, bool(self._transfers.reunion.reason)
        if model is not None:
            self._attachment.let_in(model)
        self._attachment.seek_moments(model, candidates, self._holder.giver, now)
        if rounds.held != replacing:
            rounds.hold(replacing)
            if replacing:
                self._transfers.source.forget()
            else:
                rounds.mixed()
                self._attachment.let_in(model)
        if self._unsettled and rounds.handed_out and self._averaging.satisfied:
            self._outputs.emit(RoundSettled(self._unsettled))
            self._unsettled = 0
