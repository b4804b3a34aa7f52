"""`pairwise` in the laboratory: the daemon's own algorithm, codecs and schedule, on replicas in one process.

Every replica has a `gossipdp.algorithms.pairwise.Pairwise` whose training process is a row of `lab.x`. Every exchange
runs the jobs that two daemons would run, in messages encoded as on the wire. This module decides which peers meet and
when. It holds no equation of `pairwise` and no other method (see `baselines`).

On the simulated clock a round is equally long for all, and fast peers make more steps in it. An exchange begins at the
end of a round and lands during the next one. Training never waits for it.

Simpler than the daemon: all rounds begin at the same moment. Partners find each other at once, by a perfect random
matching where there is no schedule. All peers are equally near.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossipdp.algorithms.pairwise import CLIP_FACTOR, Pairwise
from gossipdp.protocol.model import Outer
from gossipdp.protocol.pairwise.schedule import Schedule
from gossipdp.protocol.pairwise.timetable import CROWDED, EARLY, LATE, exchanges_per_round
from gossipdp.protocol.rounds.pacing import ALONE_AFTER, FULL, WARMUP_EVERY
from gossipdp.protocol.rounds.speed import spread
from gossipdp.protocol.rounds.usual_step import usual_step
from simulations.lab.core import Lab
from simulations.lab.methods.replica import Dialogue, Replica, greeting_bytes
from simulations.lab.methods.tally import Tally

__all__ = ["OpenExchange", "PairwiseGossip", "PairwiseOptions", "match"]

TURNS: Final = 6
"""sequential messages of an exchange: offer, accept, ranges, two of data, acknowledgement. Chunks overlap"""
ATTEMPTS: Final = 8


@dataclass(frozen=True, kw_only=True)
class PairwiseOptions:
    """Options of the method. The defaults are the daemon's (`PeerConfig`, algorithms section 3)."""

    lr: float | None = None
    """alpha; None: the daemon's choice"""
    momentum: float | None = None
    """mu; None: the daemon's choice"""
    kappa: float = 0.3
    """share of the mixing that the momentum sees; unused if mu is 0"""
    codec: str = "modulo"
    """a key of `gossipdp.codecs.CODECS`, or "modulo" for the modulo codec of `bits`"""
    bits: int = 3
    first_bits: int = 8
    """least bits in the first round, and in the round after a change of H"""
    weight: float = 0.5
    """gamma"""
    fragments: int = 1
    """M: an exchange averages every M-th chunk, in turn"""
    schedule: str = "hypercube"
    """how partners are chosen: "hypercube" in early rounds if N is a power of two, and where an exchange fills half a
    round; "base2" in all rounds; "" at random"""
    early: float = 0.4
    """share of the rounds that count as early, with several exchanges each"""
    early_exchanges: int = 0
    """exchanges of an early round; 0 for the daemon's choice"""
    exchanges: int = 0
    """exchanges of a later round; 0 for the daemon's choice"""
    warmup_steps: int = 0
    """steps before the first round, in short rounds with lr 1 and momentum 0 (algorithms section 6). This is the
    daemon's warm start; `Setting.warmup` is the synchronous one
    """
    warmup_exchanges: int = 0
    """exchanges of each short round; 0 for the daemon's choice"""
    warmup_scheduled: bool = False
    """whether the exchanges of short rounds follow the schedule of early rounds"""
    closing: int = 0
    """cycles of the schedule after the last round, in 16 bits, without training (`gossipdp finish`)"""
    own_pace: bool = True
    """whether fast peers make more steps in a round, as in the daemon; otherwise all make as many as the slowest"""
    landing: Literal["late", "at once", "waiting"] = "late"
    """late: an exchange lands while the next round trains, as in the daemon. At once: it takes no time. Waiting:
    training waits for the exchanges of a round (the daemon's mode "sync")
    """
    clip: float = CLIP_FACTOR
    """clipping factor; infinite for none"""
    moments: bool = True
    """whether a joiner copies the moments of the inner optimizer too, under churn"""


@dataclass
class OpenExchange:
    """An exchange that has begun and not ended."""

    pair: tuple[int, int]
    """initiator and responder"""
    dialogue: Dialogue
    round: int
    began: float
    at: float
    """when the next chunk begins, or when the last one ended; seconds"""
    left: list[int]
    """chunks still to average, the next one last"""
    until: float = math.inf
    """when to begin no more chunks, seconds"""
    mixed: int = 0
    """chunks averaged"""

    def cut(self) -> None:
        """Drop the remaining chunks."""
        self.left.clear()

    def delay(self, seconds: float) -> None:
        """Postpone the next chunk, or the end after the last one."""
        self.at += seconds

    def average(self, chunks: int) -> None:
        self.mixed += chunks


def match(free: Sequence[int], tried: Collection[frozenset[int]], random: np.random.Generator) -> list[tuple[int, int]]:
    """Pair up the `free` peers, without the pairs in `tried`; as many pairs as a few attempts find.

    Without tried pairs, every perfect matching is equally likely. The first peer of a pair makes the offer.
    """
    best: list[tuple[int, int]] = []
    for _ in range(ATTEMPTS):
        left = [int(peer) for peer in random.permutation(np.array(free, np.int64))]
        pairs = []
        while left:
            peer = left.pop()
            place = next((place for place in reversed(range(len(left))) if {peer, left[place]} not in tried), None)
            if place is not None:
                pairs.append((peer, left.pop(place)))
        best = max(best, pairs, key=len)
        if len(best) == len(free) // 2:
            break
    return best


class PairwiseGossip:
    """The method. `tally` counts its exchanges. Tests may look at `replicas`."""

    def __init__(self, options: PairwiseOptions | None = None, name: str = "pairwise") -> None:
        self.options, self.name = options or PairwiseOptions(), name
        self.tally = Tally()
        self.replicas: list[Replica] = []
        self._open_exchanges: list[OpenExchange] = []
        self._tried: set[frozenset[int]] = set()
        """pairs that met in this round; a pair meets once"""
        self._exchanges = self._rounds = self._first_round = 0
        """exchanges begun; rounds ended, short ones included; short rounds"""
        self._fine = {1}
        """numbers of the rounds that use the finer codec"""
        self._codec, self._pull = "", 0.0
        self._steps: NDArray[np.int64] = np.zeros(0, np.int64)
        """steps of the schedule that each peer has behind it; its exchanges, if there is no schedule"""
        self._step_limit, self._scheduled = 0, False
        """the last step that this round allows"""
        self._closing = False
        """training is over"""
        self._began, self._duration = 0.0, 1.0
        """begin and length of the current round, seconds"""
        self._whole = 0.0
        """seconds that the last exchange would have taken, had it not been cut"""

    # -- what the laboratory asks for -------------------------------------------------------------------------

    def begin(self, lab: Lab) -> None:
        options = self.options
        self.replicas = [Replica(number, lab.x[number], self._algorithm(number)) for number in range(lab.peers)]
        chunks = self.replicas[0].ledger.chunks
        if not 1 <= options.fragments <= chunks:
            raise ValueError(f"{options.fragments} fragments of {chunks} chunks")
        self._steps = np.zeros(lab.peers, np.int64)
        self._schedule = Schedule([replica.id for replica in self.replicas], lab.setting.seed.to_bytes(8, "big"))
        left, several = options.warmup_steps, options.warmup_exchanges or exchanges_per_round(lab.peers, EARLY)
        while left > 0:
            # A short round lasts at least as long as an exchange, so exchanges run back to back.
            steps_of_exchange = math.ceil(self._whole / lab.setting.step_seconds)
            every = min(left, lab.setting.every, max(WARMUP_EVERY, steps_of_exchange))
            left -= every
            self._play(lab, every, Outer(1.0, 0.0), several, scheduled=options.warmup_scheduled)
        self._first_round = self._rounds
        # The first full round moves further than the ranges learnt in short rounds predict.
        self._fine.add(self._rounds + 1)

    def round(self, lab: Lab) -> None:
        options, early, fill = self.options, self._early(lab), self._fill(lab)
        chosen, most = (options.early_exchanges, EARLY) if early else (options.exchanges, LATE)
        exchanges = chosen or exchanges_per_round(lab.peers, most, fill)
        even = lab.peers & (lab.peers - 1) == 0
        helps = (early and even) or fill >= CROWDED
        scheduled = options.schedule == "base2" or (options.schedule == "hypercube" and helps)
        self._play(lab, lab.setting.every, self._outer_step(lab), exchanges, scheduled=scheduled)
        if options.closing and self._rounds - self._first_round == lab.setting.rounds:
            self._close(lab)

    def _early(self, lab: Lab) -> bool:
        """Whether the round that begins is an early one."""
        return self._rounds - self._first_round < self.options.early * lab.setting.rounds

    def _fill(self, lab: Lab) -> float:
        """Share of a round that an exchange takes; 0 if rounds wait for exchanges."""
        waits = self.options.landing == "waiting"
        return 0.0 if waits else self._whole / (lab.setting.every * lab.setting.step_seconds)

    def _outer_step(self, lab: Lab) -> Outer:
        """The outer step of the round that begins."""
        apart = spread([float(speed) for speed in self._speeds(lab)])
        usual, options = usual_step(early=self._early(lab), fill=self._fill(lab), spread=apart), self.options
        return Outer(
            usual.lr if options.lr is None else options.lr,
            usual.momentum if options.momentum is None else options.momentum,
        )

    def _algorithm(self, peer: int) -> Pairwise:
        """The algorithm of a peer that begins."""
        return Pairwise(clip=self.options.clip)

    def model(self, lab: Lab) -> Tensor:
        """The mean of the anchors, which mixing does not change."""
        return torch.from_numpy(np.mean([replica.ledger.a for replica in self.replicas], 0))

    # -- rounds -----------------------------------------------------------------------------------------------

    def _play(self, lab: Lab, every: int, outer: Outer, exchanges: int, *, scheduled: bool) -> None:
        """Train one round while open exchanges land, then step, and begin the exchanges of this round."""
        self._train(lab, every)
        speeds = self._speeds(lab)
        for replica, part in zip(self.replicas, np.minimum(1.0, speeds / np.median(speeds)), strict=True):
            replica.outer(replace(outer, part=float(part)))
        options = self.options
        self._rounds += 1
        bits = max(options.bits, options.first_bits) if self._rounds in self._fine else options.bits
        self._codec = f"modulo{bits}" if options.codec == "modulo" else options.codec
        self._pull = options.kappa / outer.lr if outer.momentum else 0.0
        self._steps[:], self._step_limit = self._rounds * exchanges, (self._rounds + 1) * exchanges
        self._scheduled = scheduled
        self._tried.clear()
        for exchange in self._open_exchanges:
            if exchange.round < self._rounds - 1 and exchange.left:
                exchange.cut()
                self.tally.count_cut()
        if options.landing == "waiting":
            self._finish_exchanges(lab)
        else:
            self._advance(lab)

    def _close(self, lab: Lab) -> None:
        """Exchange without training, until all hold the mean."""
        period = self._schedule.period
        begin = -(-self._step_limit // period) * period
        self._codec, self._pull, self._scheduled, self._closing = "modulo16", 0.0, True, True
        self._steps[:], self._step_limit = begin, begin + self.options.closing * period
        self._finish_exchanges(lab)

    def _finish_exchanges(self, lab: Lab) -> None:
        """Advance the clock until no exchange is open."""
        self._advance(lab)
        while self._open_exchanges:
            lab.set_clock(max(lab.seconds, min(exchange.at for exchange in self._open_exchanges)))
            self._advance(lab)

    def _train(self, lab: Lab, every: int) -> None:
        counts = np.maximum(1, np.round(every * self._speeds(lab))).astype(np.int64)
        self._began, self._duration = lab.seconds, every * lab.setting.step_seconds
        for share, due in lab.ticks(counts):
            lab.set_clock(self._began + self._duration * share)
            self._advance(lab)
            lab.update(lab.gradients(due), due)
        lab.set_clock(self._began + self._duration)
        self._advance(lab)

    def _speeds(self, lab: Lab) -> NDArray[np.float64]:
        speeds = lab.setting.all_speeds
        return speeds if self.options.own_pace else np.ones_like(speeds)

    # -- meetings ---------------------------------------------------------------------------------------------

    def _advance(self, lab: Lab) -> None:
        """Do everything that is due: average chunks, end exchanges, begin new ones between free peers."""
        while True:
            for exchange in self._open_exchanges:
                while exchange.left and exchange.at <= lab.seconds:
                    self._average_chunk(lab, exchange)
            over = [exchange for exchange in self._open_exchanges if not exchange.left and exchange.at <= lab.seconds]
            for exchange in over:
                self._end_exchange(lab, exchange)
            pairs = self._scheduled_pairs() if self._scheduled else self._random_pairs(lab)
            for first, second, weight in pairs:
                self._begin_exchange(lab, first, second, weight)
            if not over and not pairs:
                return

    def _free(self) -> list[int]:
        return [peer for peer, one in enumerate(self.replicas) if not one.busy and self._steps[peer] < self._step_limit]

    def _random_pairs(self, lab: Lab) -> list[tuple[int, int, float]]:
        return [(*pair, self.options.weight) for pair in match(self._free(), self._tried, lab.random)]

    def _scheduled_pairs(self) -> list[tuple[int, int, float]]:
        """Pairs of the schedule in which both peers are free. A peer waits for its partner one round at most."""
        found = []
        free = set(self._free())
        for peer in sorted(free):
            met = self._schedule.partner(self.replicas[peer].id, int(self._steps[peer]))
            if met is None:
                self._steps[peer] += 1
                continue
            partner = int.from_bytes(met[0], "big")
            if peer < partner and partner in free and self._steps[partner] == self._steps[peer]:
                found.append((peer, partner, 2.0 * self.options.weight * met[1]))
        return found

    def _begin_exchange(self, lab: Lab, first: int, second: int, weight: float) -> None:
        self._steps[[first, second]] += 1
        self._tried.add(frozenset((first, second)))
        if lab.random.random() < lab.setting.failing:
            self.tally.count_failed()
            return
        one, other = self.replicas[first], self.replicas[second]
        self._exchanges += 1
        dialogue = self._dialogue(first, second, weight)
        chunks, parts = one.ledger.chunks, self.options.fragments
        order = [(one.first + place) % chunks for place in range(chunks)]
        left = [chunk for chunk in reversed(order) if chunk % parts == self._rounds % parts]
        setting = lab.setting
        delay = 0.0 if self.options.landing == "at once" else setting.link.seconds(0.0, TURNS)
        whole = self._closing or self.options.landing == "waiting"
        until = math.inf if whole else lab.seconds + FULL * self._duration
        one.begin_exchange()
        other.begin_exchange()
        self._open_exchanges.append(
            OpenExchange((first, second), dialogue, self._rounds, lab.seconds, lab.seconds + delay, left, until)
        )
        self._received(lab, self._open_exchanges[-1], *greeting_bytes(self._codec))

    def _dialogue(self, first: int, second: int, weight: float) -> Dialogue:
        """The terms of the exchange that begins now."""
        one, other = self.replicas[first], self.replicas[second]
        # A peer that stepped as if alone has no momentum to pull at.
        pull = self._pull if max(one.alone, other.alone) < ALONE_AFTER else 0.0
        return Dialogue(one, other, (1 << 32) + self._exchanges, self._codec, weight, pull)

    def _average_chunk(self, lab: Lab, exchange: OpenExchange) -> None:
        """Average the next chunk. The chunk counts at its begin; the one after it begins when its transfer ends."""
        if exchange.at >= exchange.until and exchange.mixed:
            exchange.cut()
            self.tally.count_cut()
            return
        chunk = exchange.left.pop()
        down, up, turn = exchange.dialogue.chunk(chunk)
        self._received(lab, exchange, down, up)
        exchange.dialogue.initiator.averaged(chunk)
        exchange.average(turn.mixed)
        self.tally.count_turn(turn)

    def _received(self, lab: Lab, exchange: OpenExchange, down: int, up: int) -> None:
        lab.received[list(exchange.pair)] += down, up
        if self.options.landing != "at once":
            exchange.delay(lab.setting.link.seconds(max(down, up), 0))

    def _end_exchange(self, lab: Lab, exchange: OpenExchange) -> None:
        self._open_exchanges.remove(exchange)
        for replica in (exchange.dialogue.initiator, exchange.dialogue.responder):
            replica.end_exchange(mixed=exchange.mixed > 0)
        lasted = lab.seconds - exchange.began
        if exchange.mixed:
            chunks = exchange.dialogue.initiator.ledger.chunks
            self._whole = lasted * (chunks // self.options.fragments) / exchange.mixed
        self.tally.count_landed(lasted / self._duration)
