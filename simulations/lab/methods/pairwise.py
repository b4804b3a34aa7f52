"""`pairwise` in the laboratory: the daemon's own algorithm, codecs and schedule, on replicas in one process.

Every replica has a `gossipdp.algorithms.pairwise.Pairwise` whose training process is its row of `lab.x`, and every
exchange is the dialogue of jobs that two daemons would ask for, in messages encoded as on the wire. What stands here
is who meets whom and when, on the simulated clock: a round is as long for all, fast peers take more steps in it, an
exchange begins where a round ends, and lands while the next is being trained, which never waits. No equation of
`pairwise` may stand here, and no other method (see `baselines`).

Simpler than the daemon: all begin their rounds at the same moment, partners find each other at once, by perfect random
matching where there is no schedule, and nobody is nearer than others.
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
from gossipdp.protocol.jobs import Turn
from gossipdp.protocol.model import Outer
from gossipdp.protocol.pairwise.schedule import Schedule
from gossipdp.protocol.pairwise.timetable import exchanges_per_round
from gossipdp.protocol.rounds.pacing import ALONE_AFTER, WARMUP_EVERY
from simulations.lab.core import Lab
from simulations.lab.methods.replica import Dialogue, Replica, greeting_bytes

__all__ = ["OpenExchange", "PairwiseGossip", "PairwiseOptions", "Tally", "match"]

TURNS: Final = 6
"""messages of an exchange that wait for one another: offer, accept, ranges, two of data, acknowledgement. Those of
several chunks overlap"""
ATTEMPTS: Final = 8


@dataclass(frozen=True, kw_only=True)
class PairwiseOptions:
    """Defaults are the daemon's (`PeerConfig`, algorithms section 3)."""

    lr: float = 0.7
    """alpha"""
    momentum: float = 0.7
    """mu"""
    kappa: float = 0.3
    """share of the mixing that momentum sees, while mu is not 0"""
    codec: str = "modulo"
    """a name of `gossipdp.codecs.CODECS`, or "modulo" for the one of `bits`"""
    bits: int = 4
    first_bits: int = 8
    """of the first round, and of the one after a change of H, at the least"""
    weight: float = 0.5
    """gamma"""
    fragments: int = 1
    """M: every exchange is of each M-th chunk, in turn"""
    schedule: str = "hypercube"
    """whom to meet in early rounds, "hypercube", if N is a power of two; "base2", in all rounds; "", at random"""
    early: float = 0.4
    """share of the rounds with several exchanges each"""
    early_exchanges: int = 0
    """so many; 0 for min(3, ceil(log2 N))"""
    exchanges: int = 1
    """in each round after these"""
    warmup_steps: int = 0
    """steps before the first round, in short rounds with lr 1 and momentum 0 (algorithms section 6). The daemon's way,
    beside `Setting.warmup`, which is synchronous"""
    warmup_exchanges: int = 0
    """in each of them; 0 for min(3, ceil(log2 N))"""
    own_pace: bool = True
    """fast peers make more steps in a round, as in the daemon; else all make as many as the slowest"""
    landing: Literal["late", "at once", "waiting"] = "late"
    """late: as in the daemon, while the next round trains. At once: an exchange takes no time, as if links were
    infinitely fast. Waiting: training waits for the exchanges of a round (the daemon's mode "sync")"""
    clip: float = CLIP_FACTOR
    """infinite: none"""
    moments: bool = True
    """who comes where peers come and go has the moments of its inner optimizer from whom it copies, too"""


@dataclass
class Tally:
    """What a run's exchanges came to. Landing is the share of the receiver's round that had passed, above 1 if an
    exchange took longer."""

    exchanges: int = 0
    failed: int = 0
    cut: int = 0
    """ended before their last chunk, having lasted for more than a round"""
    chunks: int = 0
    clipped: int = 0
    blocks: int = 0
    escalated: int = 0
    landing: float = 0.0
    """sum over exchanges"""

    def count_failed(self, exchanges: int = 1) -> None:
        self.failed += exchanges

    def count_cut(self) -> None:
        self.cut += 1

    def count_turn(self, turn: Turn) -> None:
        """One chunk of a pair."""
        self.chunks += turn.mixed
        self.clipped += turn.share < 1.0
        self.blocks += turn.blocks
        self.escalated += turn.escalated

    def count_chunk(self, blocks: int, escalated: int) -> None:
        """One chunk of a group."""
        self.chunks += 1
        self.blocks += blocks
        self.escalated += escalated

    def count_landed(self, rounds: float) -> None:
        """One exchange ended, `rounds` of the receiver's rounds after its begin."""
        self.exchanges += 1
        self.landing += rounds


@dataclass
class OpenExchange:
    """An exchange under way."""

    pair: tuple[int, int]
    """initiator and responder"""
    dialogue: Dialogue
    round: int
    began: float
    at: float
    """when the next chunk begins, or the last has ended"""
    left: list[int]
    """chunks, the next one last"""
    mixed: int = 0
    """chunks averaged"""

    def cut(self) -> None:
        """End it before the next chunk."""
        self.left.clear()

    def delay(self, seconds: float) -> None:
        """Postpone the next chunk, or the end after the last one."""
        self.at += seconds

    def average(self, chunks: int) -> None:
        self.mixed += chunks


def match(free: Sequence[int], tried: Collection[frozenset[int]], random: np.random.Generator) -> list[tuple[int, int]]:
    """Pairs of `free` peers but those `tried`, as many as a few attempts find; where nothing was tried, each perfect
    matching is as likely as any other. The first of a pair makes the offer."""
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
    """The method. `tally` counts; `replicas` are there to be looked at."""

    def __init__(self, options: PairwiseOptions | None = None, name: str = "pairwise") -> None:
        self.options, self.name = options or PairwiseOptions(), name
        self.tally = Tally()
        self.replicas: list[Replica] = []
        self._open_exchanges: list[OpenExchange] = []
        self._tried: set[frozenset[int]] = set()
        """pairs of this round, for which one time is enough"""
        self._exchanges = self._rounds = self._first_round = 0
        """begun; ended, short ones included; short ones"""
        self._fine = {1}
        """rounds whose exchanges use the finer codec"""
        self._codec, self._pull = "", 0.0
        self._steps: NDArray[np.int64] = np.zeros(0, np.int64)
        """of the schedule, behind each peer; or of its meetings, where there is no schedule"""
        self._step_limit, self._scheduled = 0, False
        """as many as this round allows"""
        self._began, self._duration = 0.0, 1.0
        """of the round that is being trained"""
        self._last_seconds = 0.0
        """seconds, the last exchange"""

    # -- what the laboratory asks for -------------------------------------------------------------------------

    def begin(self, lab: Lab) -> None:
        options = self.options
        self.replicas = [Replica(number, lab.x[number], self._algorithm(number)) for number in range(lab.peers)]
        chunks = self.replicas[0].ledger.chunks
        if not 1 <= options.fragments <= chunks:
            raise ValueError(f"{options.fragments} fragments of {chunks} chunks")
        self._steps = np.zeros(lab.peers, np.int64)
        self._schedule = Schedule([replica.id for replica in self.replicas], lab.setting.seed.to_bytes(8, "big"))
        left, several = options.warmup_steps, options.warmup_exchanges or exchanges_per_round(lab.peers, early=True)
        while left > 0:
            # As long as an exchange at the least, so that they run back to back.
            steps_of_exchange = math.ceil(self._last_seconds / lab.setting.step_seconds)
            every = min(left, lab.setting.every, max(WARMUP_EVERY, steps_of_exchange))
            left -= every
            self._play(lab, every, Outer(1.0, 0.0), several, scheduled=False)
        self._first_round = self._rounds
        # A round moves by another measure than was predicted from, if the one before was shorter.
        self._fine.add(self._rounds + 1)

    def round(self, lab: Lab) -> None:
        options = self.options
        early = self._rounds - self._first_round < options.early * lab.setting.rounds
        several = options.early_exchanges or exchanges_per_round(lab.peers, early=True)
        even = lab.peers & (lab.peers - 1) == 0
        scheduled = options.schedule == "base2" or (options.schedule == "hypercube" and early and even)
        outer = Outer(options.lr, options.momentum)
        self._play(lab, lab.setting.every, outer, several if early else options.exchanges, scheduled=scheduled)

    def _algorithm(self, peer: int) -> Pairwise:
        """A new one, for a peer that begins."""
        return Pairwise(clip=self.options.clip)

    def model(self, lab: Lab) -> Tensor:
        """Mean of the anchors, which mixing does not move."""
        return torch.from_numpy(np.mean([replica.ledger.a for replica in self.replicas], 0))

    # -- rounds -----------------------------------------------------------------------------------------------

    def _play(self, lab: Lab, every: int, outer: Outer, exchanges: int, *, scheduled: bool) -> None:
        """Train one round, while what is under way lands; then step, and begin this round's exchanges."""
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
        self._advance(lab)
        while options.landing == "waiting" and self._open_exchanges:
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
        """All that is due by now: chunks, landings, and new exchanges of those who are free."""
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
        """Those who meet by the schedule, and are both there. Others wait, for a round at the most."""
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
        one.begin_exchange()
        other.begin_exchange()
        self._open_exchanges.append(
            OpenExchange((first, second), dialogue, self._rounds, lab.seconds, lab.seconds + delay, left)
        )
        self._received(lab, self._open_exchanges[-1], *greeting_bytes(self._codec))

    def _dialogue(self, first: int, second: int, weight: float) -> Dialogue:
        """The terms of the exchange that begins now."""
        one, other = self.replicas[first], self.replicas[second]
        # A peer that stepped as if alone has no momentum to pull at.
        pull = self._pull if max(one.alone, other.alone) < ALONE_AFTER else 0.0
        return Dialogue(one, other, (1 << 32) + self._exchanges, self._codec, weight, pull)

    def _average_chunk(self, lab: Lab, exchange: OpenExchange) -> None:
        """The next chunk. It is averaged when it begins, and the one after it begins when it has come through."""
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
        self._last_seconds = lab.seconds - exchange.began
        self.tally.count_landed(self._last_seconds / self._duration)
