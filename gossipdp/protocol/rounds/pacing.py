"""How long the rounds of one peer are, and how strong its outer steps.

Both follow from how far the network has come, what the last exchanges achieved, and how long they took. The terms of an
exchange are in `pairwise.terms`. No message or vector is handled here.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import median_low
from typing import Final

from gossipdp.protocol import jobs
from gossipdp.protocol.contribution import Contribution
from gossipdp.protocol.events import Pace, RanAway
from gossipdp.protocol.membership.membership import Membership
from gossipdp.protocol.membership.progress import Own
from gossipdp.protocol.model import Outer
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.rounds.consensus_ratio import ConsensusRatio
from gossipdp.protocol.rounds.runaway import Runaway
from gossipdp.protocol.rounds.speed import Speed
from gossipdp.protocol.rounds.usual_step import usual_step, waits

__all__ = ["ALONE_AFTER", "FULL", "WARMUP_EVERY", "Pacing", "PacingConfig"]

WARMUP_EVERY: Final = 2
"""H during the warm start of a peer of the usual speed, at least. Each of these rounds makes one exchange"""
AGES_EVERY: Final = 8
"""steps that count as a round of age during the warm start. A training process takes as many of the others' steps to
begin, and would find any model outdated that is some rounds of the warm start old"""
ALONE_AFTER: Final = 2
"""rounds without an exchange after which a peer steps as if alone: lr 1, momentum 0"""
FORGET_AFTER: Final = 10
"""rounds without an exchange after which the measured consensus ratio is outdated"""
STANDS_STILL: Final = 3.0
"""usual rounds without a round after which others may move this peer on at full weight"""
USUAL_ROUND: Final = 30.0
"""seconds, while the step time is unknown"""
FULL: Final = 0.93
"""share of a round that an exchange may take, so that both peers are free when their next rounds begin"""
MEDIAN_OF: Final = 5
"""exchanges whose median is the usual length: the first ones have finer codes, and one partner may be slow"""
KNOWN_FROM: Final = 3
"""exchanges after which the usual length is known"""
AGAINST_EXCHANGE: Final = 5.0
"""duration of a transfer as a multiple of an exchange's: 2 bytes a parameter instead of 0.4"""


@dataclass(frozen=True, kw_only=True)
class PacingConfig:
    """The settings that pacing follows."""

    every: int
    """H, inner steps a round, after the warm start, of a peer of the usual speed"""
    lr: float | None
    """alpha, after the warm start; None: as `usual_step` chooses"""
    momentum: float | None
    """mu, after the warm start; None: as `usual_step` chooses"""
    warmup_steps: int
    """steps of the network's clock with short rounds, lr 1 and momentum 0"""
    early_steps: int
    """steps of the network's clock that count as early, while the learning rate is high"""
    sync: bool
    """rounds wait for each other"""


class Pacing:
    """H and the outer step of one peer.

    Args:
        membership: tells the speeds of others.
        speed: this peer's speed relative to theirs.
        contribution: tells the network's clock.
    """

    def __init__(
        self,
        config: PacingConfig,
        outputs: Outputs,
        membership: Membership,
        speed: Speed,
        contribution: Contribution,
    ) -> None:
        self._config, self._outputs = config, outputs
        self._membership, self._speed, self._contribution = membership, speed, contribution
        self._made = 1.0
        """share of the last round that was made"""
        self._share = 1.0
        """length of the last round as a share of a usual one"""
        self._alone = ALONE_AFTER
        """rounds since the last exchange"""
        self._fresh = True
        self._every = 0
        self._rounds = self._fine_round = 0
        self._movement = math.nan
        """RMS of the last outer step, per parameter"""
        self._step_time = self._exchange_time = self._transfer_time = 0.0
        self._exchanges: deque[float] = deque(maxlen=MEDIAN_OF)
        """seconds that all chunks of each of the last exchanges would have taken"""
        self._submitted_at: float | None = None
        self._unsure = 0
        """snapshots whose time of making is unknown"""
        self._still_at = math.inf
        self._trains = False
        self._ratio = ConsensusRatio()
        self.runaway = Runaway()
        self._short = False
        """the last round was one of the warm start"""

    @property
    def warming_up(self) -> bool:
        """The network's clock is still in the warm start."""
        return self._contribution.clock < self._config.warmup_steps

    @property
    def early(self) -> bool:
        """The network's clock is still in the early rounds."""
        return self._contribution.clock < self._config.early_steps

    @property
    def fresh(self) -> bool:
        """Nothing of other peers has been mixed in since the model arrived."""
        return self._fresh

    @property
    def alone(self) -> bool:
        """No exchange has mixed anything for `ALONE_AFTER` rounds."""
        return self._alone >= ALONE_AFTER

    @property
    def first(self) -> bool:
        """The ranges of differences are not known yet: the model is new, or H has just changed."""
        return self._fresh or self._rounds <= 1 or self._rounds == self._fine_round

    @property
    def trains(self) -> bool:
        """False while no training process makes rounds. Partners then mix with full weight."""
        return self._trains

    @property
    def usual_every(self) -> int:
        """H of a peer of the usual speed, after the warm start."""
        return self._config.every

    @property
    def usual_round_steps(self) -> int:
        """H of a peer of the usual speed now."""
        return WARMUP_EVERY if self.warming_up else self._config.every

    @property
    def ages_every(self) -> int:
        """Steps of the network's clock in which a model becomes a round older."""
        return AGES_EVERY if self.warming_up else self._config.every

    @property
    def every(self) -> int:
        """H as it stands."""
        return self._every or self._pace()

    @property
    def speed(self) -> float:
        """H as a multiple of that of a peer of the usual speed."""
        return self._speed.factor

    @property
    def ratio(self) -> float:
        """The consensus ratio R; NaN while it is unknown."""
        return self._ratio.value

    def ratio_of(self, distance: float) -> float:
        """R to one partner, whose anchor has this distance, RMS per parameter; NaN while unknown."""
        return self._ratio.of(distance)

    def outer(self) -> Outer:
        """lr and momentum of the next outer step (algorithms sections 3 and 6)."""
        part, made = min(1.0, self._share), self._made
        if self.warming_up or self.alone or self.runaway.active:
            return Outer(1.0, 0.0, part, made)
        speed = self._speed
        usual = usual_step(early=self.early, fill=self.fill, spread=speed.spread, peers=max(2, speed.peers))
        lr = usual.lr if self._config.lr is None else self._config.lr
        momentum = usual.momentum if self._config.momentum is None else self._config.momentum
        return Outer(lr, momentum, part, made, waits(momentum, self.fill))

    def own(self, clock: int) -> Own:
        """This peer's progress, at `clock` steps of its own."""
        transfer = max(AGAINST_EXCHANGE * self._exchange_time, self._transfer_time)
        steps = transfer / self._step_time if self._step_time > 0 else 0.0
        return Own(clock, self._rounds, self._alone, steps)

    @property
    def usual_round(self) -> float:
        """Seconds that a round usually takes, at least 1."""
        return max(1.0, self.every * self._step_time) if self._step_time > 0.0 else USUAL_ROUND

    @property
    def fill(self) -> float:
        """Share of a round that an exchange usually takes; 0 while unknown, and if rounds wait for exchanges."""
        unknown = self._step_time == 0.0 or len(self._exchanges) < KNOWN_FROM or self._config.sync
        return 0.0 if unknown else median_low(self._exchanges) / self.usual_round

    @property
    def room(self) -> float:
        """Seconds that an exchange of a round may take; infinite while unknown, and if rounds wait for exchanges."""
        unknown = self._step_time == 0.0 or self._config.sync
        return math.inf if unknown else FULL * self.every * self._step_time

    def timer(self) -> float:
        """When `watch` is to be called at the latest."""
        return self._still_at

    def watch(self, attached: bool, now: float) -> None:
        """Notice a training process that has stopped making rounds. Call after every input, and at `timer`."""
        if not attached:
            self._still_at = math.inf
        elif self._still_at == math.inf:
            self._still_at = now + STANDS_STILL * self.usual_round
        elif now >= self._still_at:
            self._still_at = now + self.usual_round
            self._trains = False
            self._speed.rests()
            self._outputs.ask(jobs.Renew())

    # -- what happens -----------------------------------------------------------------------------------------

    def submitted(self, steps: int, now: float) -> None:
        """A snapshot has arrived, `steps` after the one before. steps: 0 if that one was another session's."""
        timed = self._submitted_at is not None and steps > 0 and not self._unsure
        if self._submitted_at is not None and timed:
            self._step_time = (now - self._submitted_at) / steps
        usual = self.usual_round_steps
        # A round has at least one step, and a training process may have an H of its own. The speed known until now
        # decided the length of this round.
        self._made = min(1.0, steps / self.every)
        length = max(self.speed, 1.0 / usual) if self.warming_up else self.every / usual
        self._share = length * max(1.0, steps / self.every)
        if timed and not self._config.sync:
            lasting = self._speed.trained(self._step_time, now)
            self._speed.compare(self._membership.speeds(lasting, now))
        self._submitted_at, self._unsure = now, max(0, self._unsure - 1)

    def slept(self, now: float) -> None:
        """This peer did not run for a while.

        The waiting snapshot was made at an unknown time. If training went on, the next one covers all the rest.
        """
        self._unsure = 2
        if self._still_at < math.inf:
            self._still_at = now + STANDS_STILL * self.usual_round

    def detached(self) -> None:
        """The training process is gone."""
        self._submitted_at, self._trains = None, False
        self._speed.rests()

    def began(self, rounds: int, *, fresh: bool) -> None:
        """The model is here, `rounds` old. fresh: another peer made it."""
        self._rounds, self._fresh = rounds, fresh
        self._measure()

    def resynced(self, rounds: int, duration: float) -> None:
        """The model is another peer's now, `rounds` old. The transfer took `duration` seconds."""
        self._rounds, self._transfer_time = rounds, duration
        self._fresh, self._alone = True, ALONE_AFTER
        self.runaway.begin()
        self._measure()

    def round_done(self, rounds: int, length: float, movement: float, attached: bool, now: float) -> None:
        """An outer step is made.

        Args:
            rounds: of the model.
            length: |D|, RMS per parameter.
            movement: of the anchor, RMS per parameter.
            attached: a training process makes rounds.
        """
        if self._short and not self.warming_up:
            self.runaway.other_rounds()
        self._short = self.warming_up
        if self.runaway.round_done(length / self._share, movement / self._share, alone=self.alone):
            self._outputs.emit(RanAway(self.runaway.active, self.runaway.again))
        self._rounds, self._movement = rounds, movement
        self._alone += 1
        self._trains = attached
        self._measure()
        self.set()
        self._still_at = now + STANDS_STILL * self.usual_round

    def mixed(self, duration: float, distance: float = math.nan) -> None:
        """An exchange has mixed chunks.

        Args:
            duration: seconds; 0 if unknown.
            distance: of the two anchors before mixing, RMS per parameter; NaN if unknown.
        """
        self._ratio.exchanged(distance)
        self._alone = 0
        self._fresh = False
        if duration:
            self._exchange_time = duration
            self._exchanges.append(duration)

    # -- what follows -----------------------------------------------------------------------------------------

    def _measure(self) -> None:
        """Update the consensus ratio at the end of a round, except of lone and warm-up rounds."""
        if self.warming_up or self._fresh or self._alone >= FORGET_AFTER:
            self._ratio.forget()
        elif self._alone < ALONE_AFTER:
            # Distances are compared in usual rounds, as other peers make them.
            self._ratio.stepped(self._movement / self._share)

    def _pace(self) -> int:
        """H, proportional to speed.

        In the warm start H is short, but at least as long as an exchange if that is no longer than usual. After it, an
        exchange mixes the chunks for which a round has room.
        """
        every = max(1, round(self.speed * self._config.every))
        if not self.warming_up:
            return every
        lasting = self._exchange_time / self._step_time if self._step_time > 0 else 0.0
        return min(every, max(1, round(self.speed * WARMUP_EVERY), round(lasting + 0.5)))

    def set(self) -> None:
        """Tell the training process of a change of H."""
        every = self._pace()
        # The configured H is followed exactly, because peers that follow a schedule count rounds by it.
        near = abs(every - self._every) <= 0.2 * self._every and every != self._config.every
        if every != self._every and not near:
            if self._every:
                # The ranges of the next round were predicted from rounds of another length.
                self._fine_round = self._rounds + 1
            self._every = every
            self._outputs.emit(Pace(every))
