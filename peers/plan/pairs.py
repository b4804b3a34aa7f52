"""Gossip on the simulated clock: which peers meet, when, and how long each exchange of a chunk takes.

The numbers of a round, the schedule and the bytes of every message are the daemon's own. The laboratory puts real
replicas under this clock (`simulations.lab.methods.pairwise`). `gossipdp plan` puts counts of chunks under it.

A round is equally long for all, and fast peers make more steps in it. An exchange begins at the end of a round and
lands during the next one. Training never waits for it.

Simpler than the daemon: all rounds begin at the same moment. Partners find each other at once, by a perfect random
matching where there is no schedule. All peers are equally near.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from gossipdp.config import EARLY_SHARE, Exchange
from gossipdp.protocol import jobs
from gossipdp.protocol.jobs import Turn
from gossipdp.protocol.model import Outer
from gossipdp.protocol.pairwise.schedule import Schedule
from gossipdp.protocol.pairwise.timetable import CROWDED, exchanges_per_round
from gossipdp.protocol.rounds.pacing import ALONE_AFTER, FULL, WARMUP_EVERY
from gossipdp.protocol.rounds.speed import spread
from gossipdp.protocol.rounds.usual_step import usual_step, waits
from gossipdp.protocol.schema import chunk_parameters, chunk_spans
from peers.plan.frames import chunk_bytes, greeting_bytes
from peers.plan.timeline import Timeline

__all__ = ["TURNS", "CountedPairs", "Dialogue", "OpenExchange", "PairClock", "PairOptions", "Side", "Tally", "match"]


@dataclass
class Tally:
    """Counts of a run's exchanges."""

    exchanges: int = 0
    failed: int = 0
    cut: int = 0
    """ended before the last chunk, because their round was over"""
    chunks: int = 0
    clipped: int = 0
    blocks: int = 0
    escalated: int = 0
    landing: float = 0.0
    """sum over the exchanges of their duration, in rounds"""

    def count_failed(self) -> None:
        self.failed += 1

    def count_cut(self) -> None:
        self.cut += 1

    def count_turn(self, turn: Turn) -> None:
        """Count one chunk."""
        self.chunks += turn.mixed
        self.clipped += turn.share < 1.0
        self.blocks += turn.blocks
        self.escalated += turn.escalated

    def count_landed(self, rounds: float) -> None:
        """Count one finished exchange that lasted `rounds` rounds."""
        self.exchanges += 1
        self.landing += rounds


TURNS: Final = 6
"""sequential messages of an exchange: offer, accept, ranges, two of data, acknowledgement. Chunks overlap"""
ATTEMPTS: Final = 8
CLOSING: Final = 2
"""cycles of the schedule that close a run"""
USUAL: Final = Exchange()


@dataclass(frozen=True, kw_only=True)
class PairOptions:
    """Options of gossip. The defaults are the daemon's (algorithms section 3)."""

    lr: float | None = None
    """alpha; None: the daemon's choice"""
    momentum: float | None = None
    """mu; None: the daemon's choice"""
    kappa: float = USUAL.kappa
    """share of the mixing that the momentum sees; unused if mu is 0"""
    codec: str = USUAL.codec
    """a key of `gossipdp.codecs.CODECS`, or "modulo" for the modulo codec of `bits`"""
    bits: int = USUAL.bits
    first_bits: int = 8
    """least bits in the first round, and in the round after a change of H"""
    weight: float = USUAL.weight
    """gamma"""
    fragments: int = 1
    """M: an exchange averages every M-th chunk, in turn"""
    schedule: str = USUAL.partners
    """how partners are chosen: "hypercube" in early rounds if N is a power of two, and where an exchange fills half a
    round; "base2" in all rounds; "" at random"""
    early: float = EARLY_SHARE
    """share of the rounds that count as early, with several exchanges each"""
    early_exchanges: int = 0
    """exchanges of an early round; 0 for the daemon's choice"""
    exchanges: int = 0
    """exchanges of a later round; 0 for the daemon's choice"""
    warmup_steps: int = 0
    """steps before the first round, in short rounds with lr 1 and momentum 0 (algorithms section 6). This is the
    daemon's warm start; `Setting.warmup` is the synchronous one
    """
    own_pace: bool = True
    """whether fast peers make more steps in a round, as in the daemon; otherwise all make as many as the slowest"""
    landing: Literal["late", "at once", "waiting"] = "late"
    """late: an exchange lands while the next round trains, as in the daemon. At once: it takes no time. Waiting:
    training waits for the exchanges of a round (the daemon's mode "sync")
    """


class Side:
    """One peer on the clock.

    Args:
        number: orders the peers. The peer with the lower id computes differences.
        chunks: of its model.
        alone: outer steps since the last exchange.
    """

    def __init__(self, number: int, chunks: int, alone: int = ALONE_AFTER) -> None:
        self.id, self.chunks, self.alone = number.to_bytes(32, "big"), chunks, alone
        self.first = 0
        """first chunk of the next exchange"""
        self.busy = False

    def begin_exchange(self) -> None:
        self.busy = True

    def averaged(self, chunk: int) -> None:
        """Begin the next exchange with the chunk after `chunk`."""
        self.first = (chunk + 1) % self.chunks

    def end_exchange(self, *, mixed: bool) -> None:
        """The exchange is over. `mixed` is False if it averaged no chunk."""
        self.busy = False
        if mixed:
            self.alone = 0

    def outer(self, wanted: Outer) -> None:
        """The outer step at the end of a round."""
        self.alone += 1


class Dialogue(Protocol):
    """The terms of one exchange."""

    @property
    def initiator(self) -> Side: ...

    @property
    def responder(self) -> Side: ...

    @property
    def weight(self) -> float: ...

    @property
    def pull(self) -> float: ...

    def chunk(self, chunk: int) -> tuple[int, int, jobs.Turn]:
        """Average `chunk`.

        Returns:
            Bytes that the initiator received, bytes that the responder received, and the initiator's last turn. The
            turn is not `mixed` if either side refused the chunk.
        """


@dataclass(frozen=True)
class Counted:
    """The terms of an exchange whose chunks are counted, not averaged."""

    initiator: Side
    responder: Side
    codec: str
    weight: float
    pull: float
    lengths: Sequence[int]
    """parameters of each chunk"""

    def chunk(self, chunk: int) -> tuple[int, int, jobs.Turn]:
        return chunk_bytes(self.lengths[chunk], self.codec)


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


T = TypeVar("T", bound=Timeline)
S = TypeVar("S", bound=Side)
Options = TypeVar("Options", bound=PairOptions)


class PairClock(ABC, Generic[T, S, Options]):
    """Gossip of a run. `tally` counts its exchanges.

    Args:
        options: of the daemons.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.tally = Tally()
        self.replicas: list[S] = []
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
        self._warming = self._closing = False
        """the rounds are short; training is over"""
        self._began, self._duration = 0.0, 1.0
        """begin and length of the current round, seconds"""
        self._whole = 0.0
        """seconds that the last exchange would have taken, had it not been cut, as a step notices it"""

    # -- what a run asks for ----------------------------------------------------------------------------------

    def begin(self, timeline: T) -> None:
        options = self.options
        self.replicas = self._sides(timeline)
        chunks = self.replicas[0].chunks
        if not 1 <= options.fragments <= chunks:
            raise ValueError(f"{options.fragments} fragments of {chunks} chunks")
        self._steps = np.zeros(timeline.peers, np.int64)
        self._schedule = Schedule([replica.id for replica in self.replicas], self._schedule_seed(timeline))
        left = options.warmup_steps
        self._warming = True
        while left > 0:
            # A short round lasts at least as long as an exchange, so exchanges run back to back.
            steps_of_exchange = math.ceil(self._whole / timeline.setting.step_seconds)
            every = min(left, timeline.setting.every, max(WARMUP_EVERY, steps_of_exchange))
            left -= every
            self._play(timeline, every, Outer(1.0, 0.0), 1, scheduled=False)
        self._first_round, self._warming = self._rounds, False
        # The first full round moves further than the ranges learnt in short rounds predict.
        self._fine.add(self._rounds + 1)

    def round(self, timeline: T) -> None:
        options, early, fill = self.options, self._early(timeline), self._fill(timeline)
        most = USUAL.early_exchanges if early else USUAL.late_exchanges
        chosen = options.early_exchanges if early else options.exchanges
        exchanges = chosen or exchanges_per_round(timeline.peers, most, fill)
        even = timeline.peers & (timeline.peers - 1) == 0
        helps = (early and even) or fill >= CROWDED
        scheduled = options.schedule == "base2" or (options.schedule == "hypercube" and helps)
        self._play(timeline, timeline.setting.every, self._outer_step(timeline), exchanges, scheduled=scheduled)

    def _early(self, timeline: T) -> bool:
        """Whether the round that begins is an early one."""
        return self._rounds - self._first_round < self.options.early * timeline.setting.rounds

    def _fill(self, timeline: T) -> float:
        """Share of a round that an exchange takes; 0 if rounds wait for exchanges."""
        waits = self.options.landing == "waiting"
        return 0.0 if waits else self._whole / (timeline.setting.every * timeline.setting.step_seconds)

    def _outer_step(self, timeline: T) -> Outer:
        """The outer step of the round that begins."""
        speeds, fill, options = self._speeds(timeline).tolist(), self._fill(timeline), self.options
        usual = usual_step(early=self._early(timeline), fill=fill, spread=spread(speeds), peers=len(speeds))
        momentum = usual.momentum if options.momentum is None else options.momentum
        lr = usual.lr if options.lr is None else options.lr
        return Outer(lr, momentum, waits=waits(momentum, fill))

    @abstractmethod
    def _sides(self, timeline: T) -> list[S]:
        """The peers, at the beginning of the run."""

    @abstractmethod
    def _dialogue(self, first: int, second: int, weight: float) -> Dialogue:
        """The terms of the exchange that begins now."""

    def _pull_of(self, first: int, second: int) -> float:
        """Pull of the exchange that begins now: a peer that stepped as if alone has no momentum to pull at."""
        one, other = self.replicas[first], self.replicas[second]
        return self._pull if max(one.alone, other.alone) < ALONE_AFTER else 0.0

    # -- rounds -----------------------------------------------------------------------------------------------

    def _play(self, timeline: T, every: int, outer: Outer, exchanges: int, *, scheduled: bool) -> None:
        """Train one round while open exchanges land, then step, and begin the exchanges of this round."""
        self._train(timeline, every)
        speeds = self._speeds(timeline)
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
            if exchange.round < self._rounds - 1 and exchange.left and not self._warming:
                exchange.cut()
                self.tally.count_cut()
        if options.landing == "waiting":
            self._finish_exchanges(timeline)
        else:
            self._advance(timeline)

    def _close(self, timeline: T, among: Sequence[int]) -> None:
        """Exchange `among` these peers, in 16 bits and without training, until they hold their mean."""
        self._schedule = Schedule([self.replicas[peer].id for peer in among], self._schedule_seed(timeline))
        period = self._schedule.period
        begin = -(-self._step_limit // period) * period
        self._codec, self._pull, self._scheduled, self._closing = "modulo16", 0.0, True, True
        self._step_limit = begin + CLOSING * period
        self._steps[:] = self._step_limit
        self._steps[list(among)] = begin
        self._finish_exchanges(timeline)

    @staticmethod
    def _schedule_seed(timeline: Timeline) -> bytes:
        return timeline.setting.seed.to_bytes(8, "big")

    def _finish_exchanges(self, timeline: T) -> None:
        """Advance the clock until no exchange is open."""
        self._advance(timeline)
        while self._open_exchanges:
            timeline.set_clock(max(timeline.seconds, min(exchange.at for exchange in self._open_exchanges)))
            self._advance(timeline)

    def _train(self, timeline: T, every: int) -> None:
        counts = np.maximum(1, np.round(every * self._speeds(timeline))).astype(np.int64)
        self._began, self._duration = timeline.seconds, every * timeline.setting.step_seconds
        for share, due in timeline.ticks(counts):
            timeline.set_clock(self._began + self._duration * share)
            self._advance(timeline)
            timeline.tick(due)
        timeline.set_clock(self._began + self._duration)
        self._advance(timeline)

    def _speeds(self, timeline: T) -> NDArray[np.float64]:
        speeds = timeline.setting.all_speeds
        return speeds if self.options.own_pace else np.ones_like(speeds)

    # -- meetings ---------------------------------------------------------------------------------------------

    def _advance(self, timeline: T) -> None:
        """Do everything that is due: average chunks, end exchanges, begin new ones between free peers."""
        while True:
            for exchange in self._open_exchanges:
                while exchange.left and exchange.at <= timeline.seconds:
                    self._average_chunk(timeline, exchange)
            over = [
                exchange for exchange in self._open_exchanges if not exchange.left and exchange.at <= timeline.seconds
            ]
            for exchange in over:
                self._end_exchange(timeline, exchange)
            pairs = self._scheduled_pairs() if self._scheduled else self._random_pairs(timeline)
            for first, second, weight in pairs:
                self._begin_exchange(timeline, first, second, weight)
            if not over and not pairs:
                return

    def _free(self) -> list[int]:
        return [peer for peer, one in enumerate(self.replicas) if not one.busy and self._steps[peer] < self._step_limit]

    def _random_pairs(self, timeline: T) -> list[tuple[int, int, float]]:
        return [(*pair, self.options.weight) for pair in match(self._free(), self._tried, timeline.random)]

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

    def _begin_exchange(self, timeline: T, first: int, second: int, weight: float) -> None:
        self._steps[[first, second]] += 1
        self._tried.add(frozenset((first, second)))
        if timeline.random.random() < timeline.setting.failing:
            self.tally.count_failed()
            return
        one, other = self.replicas[first], self.replicas[second]
        self._exchanges += 1
        dialogue = self._dialogue(first, second, weight)
        chunks, parts = one.chunks, self.options.fragments
        order = [(one.first + place) % chunks for place in range(chunks)]
        left = [chunk for chunk in reversed(order) if chunk % parts == self._rounds % parts]
        setting = timeline.setting
        delay = 0.0 if self.options.landing == "at once" else setting.link.seconds(0.0, TURNS)
        whole = self._closing or self.options.landing == "waiting"
        until = math.inf if whole else timeline.seconds + FULL * self._duration
        one.begin_exchange()
        other.begin_exchange()
        self._open_exchanges.append(
            OpenExchange(
                (first, second), dialogue, self._rounds, timeline.seconds, timeline.seconds + delay, left, until
            )
        )
        self._received(timeline, self._open_exchanges[-1], *greeting_bytes(self._codec))

    def _average_chunk(self, timeline: T, exchange: OpenExchange) -> None:
        """Average the next chunk. The chunk counts at its begin; the one after it begins when its transfer ends."""
        if exchange.at >= exchange.until and exchange.mixed:
            exchange.cut()
            self.tally.count_cut()
            return
        chunk = exchange.left.pop()
        down, up, turn = exchange.dialogue.chunk(chunk)
        self._received(timeline, exchange, down, up)
        exchange.dialogue.initiator.averaged(chunk)
        exchange.average(turn.mixed)
        self.tally.count_turn(turn)

    def _received(self, timeline: T, exchange: OpenExchange, down: int, up: int) -> None:
        timeline.received[list(exchange.pair)] += down, up
        if self.options.landing != "at once":
            exchange.delay(timeline.setting.link.seconds(max(down, up), 0))

    def _end_exchange(self, timeline: T, exchange: OpenExchange) -> None:
        self._open_exchanges.remove(exchange)
        for replica in (exchange.dialogue.initiator, exchange.dialogue.responder):
            replica.end_exchange(mixed=exchange.mixed > 0)
        lasted = timeline.seconds - exchange.began
        if exchange.mixed:
            chunks = exchange.dialogue.initiator.chunks
            self._whole = lasted * (chunks // self.options.fragments) / exchange.mixed
        self.tally.count_landed(lasted / self._duration)


class CountedPairs(PairClock[Timeline, Side, PairOptions]):
    """Gossip about a model of `parameters`, whose chunks are counted."""

    def __init__(self, options: PairOptions, parameters: int) -> None:
        super().__init__(options)
        spans = chunk_spans(parameters, parameters, chunk_parameters(parameters))
        self._lengths = [span.stop - span.start for span in spans]
        self.exchange_seconds = 0.0
        """that the last exchange would have taken, had it not been cut"""

    def _sides(self, timeline: Timeline) -> list[Side]:
        return [Side(number, len(self._lengths)) for number in range(timeline.peers)]

    def _dialogue(self, first: int, second: int, weight: float) -> Dialogue:
        pull = self._pull_of(first, second)
        return Counted(self.replicas[first], self.replicas[second], self._codec, weight, pull, self._lengths)

    def _end_exchange(self, timeline: Timeline, exchange: OpenExchange) -> None:
        # Between two steps the end of an exchange is noticed late.
        if exchange.mixed:
            self.exchange_seconds = (exchange.at - exchange.began) * len(self._lengths) / exchange.mixed
        super()._end_exchange(timeline, exchange)
