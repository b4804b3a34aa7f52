"""How one peer averages: how long its rounds are, how strong its outer steps, and on what terms it exchanges.

All of it follows from how far the network has come, what the last exchanges came to and how long they took. How far
they found peers apart is measured (`ConsensusRatio`), and changes nothing. No message or vector is here; whom to meet
is chosen in `partners` and `schedule`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from gossipdp.protocol import jobs
from gossipdp.protocol.config import PeerConfig
from gossipdp.protocol.events import Pace
from gossipdp.protocol.membership.membership import Membership
from gossipdp.protocol.membership.progress import Own, ProgressBoard
from gossipdp.protocol.model import Outer
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.pairwise.averaging import Averaging
from gossipdp.protocol.pairwise.link_load import Load
from gossipdp.protocol.pairwise.schedule import Schedule
from gossipdp.protocol.rounds.phases import ALONE_AFTER, WARMUP_EVERY, exchanges_per_round
from gossipdp.protocol.rounds.rounds import Rounds
from gossipdp.protocol.rounds.speed import Speed

__all__ = ["ConsensusRatio", "Pacing", "Timetable"]

FORGET_AFTER: Final = 10
"""rounds without an exchange after which how far peers were apart says nothing any more"""
STANDS_STILL: Final = 3.0
"""usual rounds without one after which a training process is not waited for: others may move this peer on"""
USUAL_ROUND: Final = 30.0
"""seconds, while it is not known"""
AGAINST_EXCHANGE: Final = 4.0
"""times as long as an exchange that a transfer may take: 2 bytes a parameter, not half a byte"""
RATIO_DECAY: Final = 0.7
"""of both means of the consensus ratio, a round or an exchange"""
FARTHEST: Final = 4.0
"""the consensus ratio that one exchange counts for at most: one bad partner must not decide the mean"""


class ConsensusRatio:
    """How far peers are apart, measured against how far they move (Kong et al. 2021, arXiv 2102.04761).

        R = EMA||delta|| / (sqrt2 EMA||y - a||)         delta = a_i - a_j before mixing

    y is the anchor after the outer step and a the one before. Independent steps and one random partner a round give
    R = sqrt(1 / (1 - rho)), at most sqrt2 for any N. A larger R says that disagreement builds up from round to round.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """What was measured says nothing of what comes: the model is another's, or no other peer is there."""
        self._distance = self._movement = math.nan

    @property
    def value(self) -> float:
        """R; NaN until an exchange and an outer step have been measured."""
        return self._distance / (math.sqrt(2.0) * self._movement) if self._movement > 0.0 else math.nan

    def exchanged(self, distance: float) -> None:
        """An exchange of the whole vector has found the two anchors this far apart, RMS per parameter."""
        if math.isfinite(distance) and self._movement > 0.0:
            self._distance = _mean(self._distance, min(distance, FARTHEST * math.sqrt(2.0) * self._movement))

    def stepped(self, movement: float) -> None:
        """An outer step has moved the anchor this far, RMS per parameter."""
        if math.isfinite(movement):
            self._movement = _mean(self._movement, movement)


def _mean(mean: float, latest: float) -> float:
    return latest if math.isnan(mean) else RATIO_DECAY * mean + (1.0 - RATIO_DECAY) * latest


class Pacing:
    """Args:

    rounds: how many this peer has made.
    averaging: is told the terms.
    speed: is told when a round is over.
    clock: the network's, in steps, as far as this peer knows.
    """

    def __init__(
        self,
        config: PeerConfig,
        rounds: Rounds,
        averaging: Averaging,
        outputs: Outputs,
        speed: Speed,
        *,
        clock: Callable[[], int],
    ) -> None:
        self._config, self._rounds, self._averaging, self._outputs = config, rounds, averaging, outputs
        self._speed, self._clock = speed, clock
        self._by_speed = config.algorithm == "pairwise" and not config.sync
        """elsewhere rounds wait for each other, or are counted in steps of the network's clock"""
        self._share = 1.0
        """of a usual round that the last one was"""
        self._alone = ALONE_AFTER
        """rounds since the last exchange"""
        self._fresh = True
        """nothing has been mixed since the model came here"""
        self._every = 0
        self._fine_round = 0
        self._step_time = self._exchange_time = self._transfer_time = 0.0
        self._submitted_at: float | None = None
        self._unsure = 0
        """snapshots of which it is not known when they were made"""
        self._still_at = math.inf
        self._steps = False
        """training makes rounds"""
        exchanges = config.averaging
        self._load = Load(exchanges.window, config.bits, exchanges.deadlines.ask)
        self._ratio = ConsensusRatio()

    @property
    def warming_up(self) -> bool:
        return self._clock() < self._config.warmup_steps

    @property
    def fresh(self) -> bool:
        """Nothing of others has been mixed in since the model came here."""
        return self._fresh

    @property
    def every(self) -> int:
        """H as it stands."""
        return self._every or self._pace()

    @property
    def speed(self) -> float:
        """H is so many times that of a peer as fast as most."""
        return self._speed.factor

    @property
    def ratio(self) -> float:
        """R, how far peers are apart against how far they move; NaN while that is not known."""
        return self._ratio.value

    def outer(self) -> Outer:
        """lr and momentum of the next outer step (algorithms sections 3 and 6)."""
        if self.warming_up or self._alone >= ALONE_AFTER:
            return Outer(1.0, 0.0, min(1.0, self._share))
        return Outer(self._config.lr, self._config.momentum, min(1.0, self._share))

    def own(self, clock: int) -> Own:
        """How far this peer has come, at `clock` of its own."""
        transfer = max(AGAINST_EXCHANGE * self._exchange_time, self._transfer_time)
        steps = transfer / self._step_time if self._step_time > 0 else 0.0
        return Own(clock, self._rounds.rounds, self._alone, steps)

    @property
    def _usual_round(self) -> float:
        """Seconds."""
        return max(1.0, self.every * self._step_time) if self._step_time > 0.0 else USUAL_ROUND

    def timer(self) -> float:
        return self._still_at

    def watch(self, now: float) -> None:
        """Whatever has happened, or when `timer` says so: is there a training process, and does it make rounds?"""
        if not self._rounds.open or self._config.algorithm != "pairwise":
            self._still_at = math.inf
        elif self._still_at == math.inf:
            self._still_at = now + STANDS_STILL * self._usual_round
        elif now >= self._still_at:
            self._still_at = now + self._usual_round
            self._steps = False
            self._speed.rests()
            self._choose_terms()
            self._outputs.ask(jobs.Renew())

    # -- what happens -----------------------------------------------------------------------------------------

    def submitted(self, steps: int, now: float) -> None:
        """A snapshot has come, `steps` after the one before; 0 if that was another session's."""
        timed = self._submitted_at is not None and steps > 0 and not self._unsure
        if self._submitted_at is not None and timed:
            self._step_time = (now - self._submitted_at) / steps
        usual = WARMUP_EVERY if self.warming_up else self._config.every
        # A round has a step at the least, and a training process may have an H of its own. This one was as long as the
        # speed that was known until now had it.
        self._share = max(self.speed, 1.0 / usual) * max(1.0, steps / self.every)
        if timed and self._by_speed:
            self._speed.trained(self._step_time, now)
        self._submitted_at, self._unsure = now, max(0, self._unsure - 1)

    def slept(self, now: float) -> None:
        """This peer did not run for a while. The snapshot that waits was made at any time since; the next is of all the
        rest, if training has gone on."""
        self._unsure = 2
        if self._still_at < math.inf:
            self._still_at = now + STANDS_STILL * self._usual_round

    def detached(self) -> None:
        """The training process is gone."""
        self._submitted_at, self._steps = None, False
        self._speed.rests()
        self._choose_terms()

    def began(self, *, fresh: bool) -> None:
        """The model is here; `fresh` if it is another's."""
        self._fresh = fresh
        self._load.fetched()
        self._measure()
        self._choose_terms()

    def resynced(self, duration: float) -> None:
        """The model is another's now, and has taken so many seconds to fetch."""
        self._transfer_time = duration
        self._fresh, self._alone = True, ALONE_AFTER
        self._load.fetched()
        self._measure()
        self._choose_terms()

    def round_done(self, now: float) -> None:
        self._alone += 1
        self._steps = self._rounds.open
        self._measure()
        self.set()
        self._still_at = now + STANDS_STILL * self._usual_round
        self._choose_terms()

    def state_came(self, now: float) -> None:
        """A chunk of the state that this peer fetches is here."""
        self._load.carried(now)

    def applied(self) -> None:
        """An increment of another has moved the anchor."""
        self._alone = 0
        self._fresh = False

    def in_vain(self) -> None:
        """An exchange has mixed nothing."""
        self._load.in_vain()
        self._choose_terms()

    def mixed(self, chunks: int, duration: float, distance: float = math.nan) -> None:
        """An exchange has mixed so many chunks, in so many seconds (0: that is not known), and found the anchors so far
        apart (RMS per parameter; NaN: that is not known)."""
        assert self._averaging.model is not None
        self._ratio.exchanged(distance)
        self._load.mixed(chunks, self._averaging.model.chunks)
        self._alone = 0
        self._fresh = False
        self._exchange_time = duration or self._exchange_time
        self._choose_terms()

    # -- what follows -----------------------------------------------------------------------------------------

    def _measure(self) -> None:
        """The consensus ratio, at the end of a round. What a peer does alone, or to warm up, is not measured."""
        if self.warming_up or self._fresh or self._alone >= FORGET_AFTER:
            self._ratio.forget()
        elif self._alone < ALONE_AFTER:
            # Far apart or not is a matter of usual rounds, as others make them.
            self._ratio.stepped(self._rounds.movement / self._share)

    def _pace(self) -> int:
        """H: proportional to speed; short while the network warms up, but then, if that is no longer than usual, as
        long as an exchange lasts. What is usual is not lengthened: an exchange that outlasts its round goes on in the
        next, and is cut in the one after."""
        every = max(1, round(self.speed * self._config.every))
        if not self.warming_up:
            return every
        lasting = self._exchange_time / self._step_time if self._step_time > 0 else 0.0
        return min(every, max(1, round(self.speed * WARMUP_EVERY), round(lasting + 0.5)))

    def set(self) -> None:
        """Tell the training process of a change of H."""
        every = self._pace()
        # What is as configured is taken to the step: whoever follows a schedule counts rounds by it.
        near = abs(every - self._every) <= 0.2 * self._every and every != self._config.every
        if every != self._every and not near:
            if self._every:
                # The next round moves by another measure than the ranges were predicted from.
                self._fine_round = self._rounds.rounds + 1
            self._every = every
            self._outputs.emit(Pace(every))

    def _choose_terms(self) -> None:
        """Codec and pull to offer next, and at least to accept; and whether training makes rounds."""
        first = self._fresh or self._rounds.rounds <= 1 or self._rounds.rounds == self._fine_round
        bits = self._config.bits
        if self._fresh and self._alone >= ALONE_AFTER:
            bits = max(bits, 16)
        elif first:
            bits = max(bits, 8)
        self._averaging.steps = self._steps
        bits, self._averaging.window = self._load.bits(bits), self._load.window
        self._averaging.codec = f"modulo{bits}" if self._config.codec == "modulo" else self._config.codec
        outer = self.outer()
        # Only an outer step lets momentum fade: without any, what exchanges pull it by would add up for ever.
        pulls = outer.momentum and self._steps
        self._averaging.pull = self._config.kappa / outer.lr if pulls else 0.0


class Timetable:
    """How many exchanges a round makes, and along which schedule, if any."""

    def __init__(
        self,
        config: PeerConfig,
        membership: Membership,
        progress: ProgressBoard,
        averaging: Averaging,
        pacing: Pacing,
    ) -> None:
        self._config, self._membership, self._progress = config, membership, progress
        self._averaging, self._pacing = averaging, pacing
        self._policy = config.averaging.matching.schedule
        self._followed: Schedule | None = None

    def begin_round(self, clock: int, seed: bytes, now: float) -> None:
        """A round begins at `clock`, which is this peer's own; the `seed` is shared by all."""
        members = 1 + len(self._averaging.company)
        if members > 1:
            early = max(clock, self._progress.clock()) < self._config.early_steps
            # Later, at one exchange a round, random matching agrees nearly as well, and favours near members. And whose
            # rounds are of another length does not keep step with a schedule.
            follows = (early or self._policy == "base2") and self._pacing.speed == 1.0
            self._averaging.schedule = self._schedule(clock, seed, now) if follows else None
            exchanges = min(exchanges_per_round(members, early), self._config.early_exchanges)
            self._averaging.want(exchanges, now, clock // self._pacing.every)

    def _schedule(self, clock: int, seed: bytes, now: float) -> Schedule | None:
        """The schedule to follow in this round, while the view is full and fresh, and all keep step."""
        members = self._membership.settled(now)
        if not self._policy or self._pacing.warming_up or not members:
            return None
        if self._policy == "hypercube" and len(members) & (len(members) - 1):
            # The Base-2 graph leaves more noise between rounds than random matching does
            # (simulations.lab.theory.matchings).
            return None
        reports = [self._progress.of(peer) for peer in members]
        if any(report is None or abs(report.clock - clock) > 2 * self._pacing.every for report in reports):
            return None
        if self._followed is None or self._followed.members != members:
            self._followed = Schedule(members, seed)
        return self._followed
